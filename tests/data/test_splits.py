"""Parts of a corpus hold each row once, in order, with the numbers that its lines have in the
file."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import PAIRS, compress, write
from tests.refusals import refusal
from transduct.data import splits
from transduct.data.files import Refused
from transduct.data.sources import TextSource
from transduct.data.splits import splits_of
from transduct.data.text import read_pairs, read_part, read_rows

ROWS = PAIRS[:80]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(splits, "SIZE", 300)
    monkeypatch.setattr(splits, "BLOCK", 50)


def tsv(folder, title=""):
    (folder / "a.tsv").write_text(title + "".join(f"{a}\t{b}\n" for a, b in ROWS), newline="\n")
    return TextSource(pairs="a.tsv", columns=["s", "t"] if title else None)


def jsonl(folder):
    lines = (json.dumps({"source": a, "target": b}) + "\n" for a, b in ROWS)
    (folder / "a.jsonl").write_text("".join(lines) + "\n \n")
    return TextSource(pairs="a.jsonl")


def parquet(folder):
    rows = [{"source": a, "target": b} for a, b in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=7)
    return TextSource(pairs="a.parquet")


def packed(folder):
    source = tsv(folder)
    (folder / "a.tsv.gz").write_bytes(compress((folder / "a.tsv").read_bytes(), ".gz"))
    return replace(source, pairs="a.tsv.gz")


CASES = {
    "aligned": (lambda folder: write(folder, ROWS), True),
    "table": (tsv, True),
    "titles": (lambda folder: tsv(folder, "s\tt\n"), True),
    "jsonl": (jsonl, True),
    "parquet": (parquet, True),
    "packed": (packed, False),
    "generated": (lambda folder: TextSource(generate="sort", count=30), False),
}


def pairs_of(found, folder):
    """The pairs of each part."""
    refused = Refused("stop")
    return [
        [pair for chunk in read_part(each.source, folder, refused, each.spans) for pair in chunk]
        for each in found
    ]


@pytest.mark.parametrize("kind", CASES)
def test_parts_hold_each_row_once_in_order(kind, tmp_path):
    make, cut = CASES[kind]
    source = make(tmp_path)
    found = splits_of([source, source], tmp_path)
    half = len(found) // 2
    assert [each.place for each in found] == [0] * half + [1] * half
    assert [each.number for each in found] == [*range(2 * half)]
    assert half > 3 if cut else half == 1
    parts = pairs_of(found[:half], tmp_path)
    assert all(parts)
    whole = [pair for chunk in read_pairs(source, tmp_path) for pair in chunk]
    assert [pair for part in parts for pair in part] == whole
    assert kind == "generated" or whole == ROWS


def test_files_are_parts_of_their_own(tmp_path):
    one, other = write(tmp_path, ROWS[:2], "x"), write(tmp_path, ROWS[2:4], "y")
    both = TextSource(source=[one.source, other.source], target=[one.target, other.target])
    found = splits_of([both], tmp_path)
    assert [each.source for each in found] == [one, other]
    assert pairs_of(found, tmp_path) == [ROWS[:2], ROWS[2:4]]


@pytest.mark.parametrize("lines", [40, 79, 90])
def test_files_that_are_not_aligned_are_refused_with_their_lines(lines, tmp_path):
    source = write(tmp_path, ROWS)
    (tmp_path / "a.t").write_text("x\n" * lines)
    with refusal(f"a.s has 80 lines and .*a.t has {lines}"):
        pairs_of(splits_of([source], tmp_path), tmp_path)


@pytest.mark.parametrize("kind", ["table", "jsonl", "titles"])
def test_a_row_that_is_wrong_has_the_number_of_its_line(kind, tmp_path):
    source = CASES[kind][0](tmp_path)
    path = tmp_path / source.pairs
    lines = path.read_text().splitlines()[:60]
    path.write_text("\n".join([*lines, "wrong", *lines]) + "\n")
    with refusal(rf"{path}:61: ") as part:
        pairs_of(splits_of([source], tmp_path), tmp_path)
    with pytest.raises(type(part.value)) as whole:
        list(read_rows(source, tmp_path))
    assert str(part.value).startswith(str(whole.value))


@pytest.mark.parametrize("kind", ["table", "jsonl"])
def test_a_blank_line_before_a_record_is_refused_wherever_parts_end(kind, tmp_path):
    source = CASES[kind][0](tmp_path)
    path = tmp_path / source.pairs
    lines = path.read_text().splitlines()[:20]
    for place in range(1, 20):
        path.write_text("\n".join([*lines[:place], "", "", *lines[place:]]) + "\n")
        with refusal(f"{path}:{place + 1}: "):
            pairs_of(splits_of([source], tmp_path), tmp_path)


def test_a_row_of_parquet_that_is_wrong_has_its_number(tmp_path):
    rows = [{"source": a, "target": b} for a, b in ROWS]
    rows[50]["target"] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    source = TextSource(pairs="a.parquet")
    with refusal("a.parquet, row 51: found nothing for 'target'"):
        pairs_of(splits_of([source], tmp_path), tmp_path)


def test_a_line_that_is_no_utf8_has_its_number_in_both_policies(tmp_path):
    source = write(tmp_path, ROWS)
    lines = (tmp_path / "a.t").read_bytes().splitlines()
    lines[60] = b"ab\xff\xfe"
    (tmp_path / "a.t").write_bytes(b"\n".join(lines) + b"\n")
    with refusal(f"{tmp_path / 'a.t'}:61: "):
        pairs_of(splits_of([source], tmp_path), tmp_path)
    refused = Refused("skip")
    found = splits_of([source], tmp_path)
    kept = [
        pair
        for each in found
        for chunk in read_part(each.source, tmp_path, refused, each.spans)
        for pair in chunk
    ]
    assert kept == [*ROWS[:60], *ROWS[61:]]
    assert "row 61: not UTF-8" in refused.errors[0]
