"""A server is measured beside a client that does its worst."""

import re

import pytest

from benchmarks import serving


@pytest.mark.slow
def test_short_requests_are_answered_beside_every_attack(trained_run, tmp_path, capsys):
    (tmp_path / "text").write_text("a b c\nd e\n")
    told = [str(trained_run), str(tmp_path / "text"), "--miniature"]
    serving.main([*told, "--attack"])
    rows = capsys.readouterr().out.splitlines()
    row = r"beside .{28} +[\d,]+ answers +0 refused  median [\d.]+ s .* +[\d.]+ times"
    assert len(rows) == 5
    assert all(re.fullmatch(row, each) for each in rows), rows
    assert rows[0].endswith(" 1.0 times")


@pytest.mark.slow
def test_the_cpu_time_of_a_sentence_is_compared_with_translate(trained_run, tmp_path, capsys):
    (tmp_path / "text").write_text("a b c\nd e\n")
    serving.main([str(trained_run), str(tmp_path / "text"), "--miniature", "--ratios"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 9
    assert all(re.fullmatch(r".{60} +[\d.]+  \([\d.]+ to [\d.]+\)", each) for each in rows), rows
