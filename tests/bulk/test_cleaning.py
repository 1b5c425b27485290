"""`transduct filter`: kept rows come back in their formats, and every other one is reported."""

import gzip
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.data.test_quality import pairs_of
from tests.refusals import refusal
from transduct.bulk import cleaning
from transduct.bulk.cleaning import filter_corpus
from transduct.data import duplicates, splits
from transduct.data.sources import DataConfig, FiltersConfig, TextSource
from transduct.interfaces.cli import app

COPIED = FiltersConfig(copied=True)
PAIRS = [("a house", "ein Haus"), ("Same", "same"), ("", "leer"), ("a dog", "ein Hund")]
KEPT = [PAIRS[0], PAIRS[3]]


def data_of(folder, **source):
    config = DataConfig([TextSource(**source)], root=str(folder), filters=COPIED)
    return replace(config, drop_duplicates=False)


def lines_of(pairs):
    return "".join(f"{one}\t{other}\n" for one, other in pairs)


def test_aligned_text_keeps_its_bytes_and_compression(tmp_path):
    (tmp_path / "t.en").write_bytes(b"a house\r\nSame\r\n\r\na dog\r\n")
    with gzip.open(tmp_path / "t.de.gz", "wt") as file:
        file.write("ein Haus\nsame\nleer\nein Hund\n")
    out = tmp_path / "out"
    report = filter_corpus(data_of(tmp_path, source="t.en", target="t.de.gz"), out, False, str)
    assert (out / "t.en").read_bytes() == b"a house\r\na dog\r\n"
    assert gzip.decompress((out / "t.de.gz").read_bytes()) == b"ein Haus\nein Hund\n"
    assert str(report) == "kept 2 of 4 pairs; left out: 1 copied, 1 empty"
    assert [*map(json.loads, (out / "dropped.jsonl").read_text().splitlines())] == [
        {"reason": "copied", "file": "t.en", "line": 2},
        {"reason": "empty", "file": "t.en", "line": 3},
    ]
    counts = json.loads((out / "report.json").read_text())
    assert (counts["read"], counts["kept"]) == (4, 2)
    assert counts["dropped"] == {"copied": 1, "empty": 1}
    page = (out / "report.html").read_text()
    assert "<h2>copied: 1</h2><table><tr><td>Same<td>same" in page


@pytest.mark.parametrize("columns", [None, ["en", "de"]])
def test_tables_come_back_in_their_formats(tmp_path, columns):
    header = "en\tde\n" if columns else ""
    (tmp_path / "t.tsv").write_text(header + lines_of(PAIRS) + "\n \n")  # as editors leave them
    rows = [{"en": one, "de": other, "id": n} for n, (one, other) in enumerate(PAIRS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ["t.tsv", "t.parquet", "t.jsonl"] if columns else ["t.tsv"]
    out = tmp_path / "out"
    filter_corpus(data_of(tmp_path, pairs=names, columns=columns), out, False, str)
    assert (out / "t.tsv").read_text() == header + lines_of(KEPT)
    if columns:
        assert pq.read_table(out / "t.parquet").to_pylist() == [rows[0], rows[3]]
        kept = (out / "t.jsonl").read_text().splitlines()
        assert [json.loads(line)["id"] for line in kept] == [0, 3]
        first = json.loads((out / "dropped.jsonl").read_text().splitlines()[0])
        assert first == {"reason": "copied", "file": "t.tsv", "line": 3}


def test_a_corpus_spoilt_on_purpose_is_cleaned_by_the_command(tmp_path):
    pairs = pairs_of(400)
    spoilt = [
        (pairs[9][0], pairs[9][0]),
        pairs[19][::-1],
        (pairs[29][0], f"<i>{pairs[29][1]}</i>"),
    ]
    places = (9, 19, 29)
    for place, pair in zip(places, spoilt):
        pairs[place] = pair
    (tmp_path / "t.en").write_text("".join(f"{one}\n" for one, _ in pairs))
    (tmp_path / "t.de").write_text("".join(f"{other}\n" for _, other in pairs))
    files = ["--source", str(tmp_path / "t.en"), "--target", str(tmp_path / "t.de")]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["filter", *files, "--out", str(out), "--report-only"])
    assert done.stdout.startswith("kept "), done.output
    found = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    reasons = {each["line"] - 1: each["reason"] for each in found}
    assert [reasons[place] for place in places] == ["copied", "swapped", "markup"]
    assert {each for place, each in reasons.items() if place not in places} <= {
        "duplicate",
        "near_duplicates",
    }
    assert {path.name for path in out.iterdir()} == {
        "dropped.jsonl",
        "report.json",
        "report.html",
    }


class Killed(cleaning.Look):
    """A worker that is killed at its second part, once."""

    def __call__(self, split):
        mark = self.folder.parents[1] / "killed"
        if split.number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(split)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A table and aligned text, and what one process makes of them in one part."""
    folder, pairs = tmp_path_factory.mktemp("corpus"), pairs_of(300)
    pairs[40], pairs[250] = (pairs[40][0], pairs[40][0]), ("", "leer")
    (folder / "t.tsv").write_text("en\tde\n" + lines_of(pairs))
    for side, texts in zip(("en", "de"), zip(*pairs_of(300, 2))):
        (folder / f"a.{side}").write_text("".join(f"{text}\n" for text in texts))
    sources = [
        TextSource(pairs="t.tsv", columns=["en", "de"]),
        TextSource(source="a.en", target="a.de"),
    ]
    data = DataConfig(sources, root=str(folder), filters=FiltersConfig())
    filter_corpus(data, folder / "once", False, str)
    return data, bytes_of(folder / "once")


@pytest.fixture
def filtered(corpus, monkeypatch):
    """The same corpus, now in several parts and ranges of hashes."""
    monkeypatch.setattr(splits, "SIZE", 4000)
    monkeypatch.setattr(duplicates, "RANGE", 100)
    data, _ = corpus
    assert len(splits.splits_of(data.train, Path(data.root))) > 6
    return corpus


@pytest.mark.parametrize(
    ("workers", "ray"), [(1, None), (2, None), pytest.param(2, "local", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_bytes_do_not_depend_on_parts_and_workers(filtered, tmp_path, workers, ray):
    data, expected = filtered
    filter_corpus(data, tmp_path / "out", False, str, workers, ray)
    assert bytes_of(tmp_path / "out") == expected
    reasons = {json.loads(line)["reason"] for line in expected["dropped.jsonl"].splitlines()}
    assert reasons >= {"copied", "empty", "near_duplicates"}


@pytest.mark.slow
def test_the_part_of_a_killed_worker_is_done_again(filtered, tmp_path, monkeypatch):
    data, expected = filtered
    monkeypatch.setattr(cleaning, "Look", Killed)
    filter_corpus(data, tmp_path / "out", False, str, workers=2)
    assert (tmp_path / "killed").exists()
    assert bytes_of(tmp_path / "out") == expected


def test_parts_in_another_order_are_noticed(filtered, tmp_path, monkeypatch):
    data, expected = filtered
    found = cleaning.repeated
    monkeypatch.setattr(cleaning, "repeated", lambda parts, *more: found(parts[::-1], *more))
    filter_corpus(data, tmp_path / "out", False, str)
    assert bytes_of(tmp_path / "out") != expected


def test_no_workers_are_refused(tmp_path):
    with refusal("--workers is 0, must be at least 1"):
        filter_corpus(data_of(tmp_path, pairs="t.tsv"), tmp_path / "out", False, str, 0)


def test_an_empty_or_missing_file_is_refused(tmp_path):
    (tmp_path / "t.tsv").write_text("")
    with refusal(r"t\.tsv: nothing in it; name files that hold text"):
        filter_corpus(data_of(tmp_path, pairs="t.tsv"), tmp_path / "out", False, str)
    with refusal(r"gone\.tsv"):
        filter_corpus(data_of(tmp_path, pairs="gone.tsv"), tmp_path / "out", False, str)


def test_unknown_languages_are_reported_and_not_checked(tmp_path):
    (tmp_path / "t.tsv").write_text(lines_of(PAIRS))
    said, data = [], replace(data_of(tmp_path, pairs="t.tsv"), filters=FiltersConfig())
    filter_corpus(data, tmp_path / "out", True, said.append)
    assert said == ["the languages are not known and not checked; name them with --from and --to"]


def test_validation_pairs_among_them_are_reported(tmp_path):
    (tmp_path / "t.tsv").write_text(lines_of(PAIRS))
    data, said = data_of(tmp_path, pairs="t.tsv"), []
    filter_corpus(replace(data, valid=data.train[0]), tmp_path / "out", True, said.append)
    assert said[0].startswith("warning: 2 of 4 validation pairs are in training")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"generate": "reverse", "part": "train", "count": 9},
            "a generated corpus: cannot be",
        ),
        ({"pairs": "t.tmx"}, r"t\.tmx: cannot be filtered; give aligned text or tables"),
        ({"pairs": "quoted.csv"}, r"quoted\.csv: holds 3 lines, but 2 pairs; write it in UTF-8"),
    ],
)
def test_what_cannot_be_filtered_is_refused_and_nothing_is_left(tmp_path, source, message):
    (tmp_path / "b").mkdir()
    for name in ("t.tsv", "b/t.tsv"):
        (tmp_path / name).write_text(lines_of(PAIRS))
    (tmp_path / "quoted.csv").write_text('a,b\n"two\nlines",c\n')
    with refusal(message):
        filter_corpus(data_of(tmp_path, **source), tmp_path / "out", False, str)
    assert not (tmp_path / "out").exists()


def test_what_would_fail_at_the_end_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    for name in ("t.tsv", "b/t.tsv"):
        (tmp_path / name).write_text(lines_of(PAIRS))
    monkeypatch.delattr(cleaning, "chosen")
    with refusal("b: exists already; choose another name"):
        filter_corpus(data_of(tmp_path, pairs="t.tsv"), tmp_path / "b", False, str)
    with refusal("t.tsv: two files have this name"):
        filter_corpus(data_of(tmp_path, pairs=["t.tsv", "b/t.tsv"]), tmp_path / "c", False, str)
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    filter_corpus(data_of(tmp_path, pairs=["t.tsv", "b/t.tsv"]), tmp_path / "empty", True, str)
    assert len([*(tmp_path / "empty").iterdir()]) == 3


def test_a_broken_row_is_named_without_a_remedy_that_does_not_hold(tmp_path):
    (tmp_path / "t.tsv").write_text("a house\tein Haus\nalone\n")
    data = data_of(tmp_path, pairs="t.tsv")
    with refusal(r"t\.tsv:2: found 1, expected at least 2 columns .*numbers count from 0\)$"):
        filter_corpus(data, tmp_path / "out", False, str)
    with refusal(r"data\.broken is skip, but here every line counts; fix the rows that are named"):
        filter_corpus(replace(data, broken="skip"), tmp_path / "out", False, str)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--out is missing; name a new folder for what is kept"),
        (["--out", "x"], "nothing to filter; give a recipe, a table, or --source and --target"),
    ],
)
def test_what_is_missing_is_named(given, message):
    done = CliRunner().invoke(app, ["filter", *given])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_what_a_kill_has_left_is_removed_by_the_next_call(tmp_path, monkeypatch):
    (tmp_path / "t.tsv").write_text(lines_of(PAIRS))
    data = data_of(tmp_path, pairs="t.tsv")
    if not (child := os.fork()):
        monkeypatch.setattr(cleaning, "repeated", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            filter_corpus(data, tmp_path / "out", False, str)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [path.name for path in tmp_path.glob(".*")] == [f".out.{child}.part"]
    filter_corpus(data, tmp_path / "out", False, str)
    assert not [*tmp_path.glob(".*")]
