"""The rows of the benchmark of the server are there, and each is a ratio."""

import re

import pytest

from benchmarks import serving


@pytest.mark.slow
def test_every_ratio_has_a_row(trained_run, tmp_path, capsys):
    (tmp_path / "text").write_text("a b c\nd e\n")
    serving.main([str(trained_run), str(tmp_path / "text"), "--miniature", "--ratios"])
    rows = capsys.readouterr().out.splitlines()
    ratio = r".{60} +[\d.]+  \([\d.]+ to [\d.]+\)"
    assert all(re.fullmatch(ratio, each) for each in rows), rows
    assert len(rows) == 9 + 2 * 2 * 7 + 3
