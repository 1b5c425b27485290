"""Reading parallel text: every format gives the same pairs, and what cannot be read is named with
file and line."""

import os
import random
import re
from threading import Thread

import numpy as np
import pytest

from tests.data.conftest import compress, encoded, read, refused, write_bytes
from tests.refusals import refusal
from transduct.data import lines, tables, text
from transduct.data.files import Refused
from transduct.data.replacements import Replacement
from transduct.data.samples import generate
from transduct.data.sources import TextSource
from transduct.data.text import drift, read_examples, read_pairs, read_rows, rows_or_errors
from transduct.errors import TransductError

# What other programs take for the end of a line, or of a file, is text.
PAIRS = [
    ("a b", "x"),
    ("nel\x85 and\u2028ls", "\x1c\x0b\x0c"),
    ("한국어", ""),
    ("cr\rlone", "\ufeff later"),
    ("", "😀"),
]


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("format", [".txt", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_every_format_gives_the_same_pairs(tmp_path, monkeypatch, format, compression, block):
    monkeypatch.setattr(lines, "BLOCK", block)
    monkeypatch.setattr(text, "CHUNK", 2)
    monkeypatch.setattr(tables, "ROWS", 3)
    if format == ".txt":
        for side, name in enumerate(("a", "b")):
            data = "".join(f"{pair[side]}\n" for pair in PAIRS).encode()
            write_bytes(tmp_path, name + compression, compress(data, compression))
        source = TextSource(source="a" + compression, target="b" + compression)
    else:
        name = "both" + format + compression
        source = TextSource(
            pairs=write_bytes(tmp_path, name, compress(encoded(format, PAIRS), compression))
        )
    chunks = list(read_pairs(source, tmp_path))
    assert [pair for chunk in chunks for pair in chunk] == PAIRS
    assert max(map(len, chunks)) == 2


def test_of_long_texts_fewer_are_handed_on_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 4)
    monkeypatch.setattr(text, "CHARACTERS", 100)
    lengths = [1, 2, 3, 4, 60, 39, 1, 99, 1, 500, 5, 5]
    name = write_bytes(tmp_path, "a.tsv", "".join(f"{'x' * (n - 1)}\ty\n" for n in lengths))
    chunks = [
        [len("".join(pair)) for pair in chunk]
        for chunk in read_pairs(TextSource(pairs=name), tmp_path)
    ]
    assert chunks == [[1, 2, 3, 4], [60, 39, 1], [99, 1], [500], [5, 5]]


def test_missing_and_empty_files_are_named(tmp_path):
    missing = "none: no such file; check the path (those in a recipe start at data.root)"
    assert refused(tmp_path, TextSource(source="none", target="none")) == missing
    empty = write_bytes(tmp_path, "empty", "")
    message = "empty, empty: nothing in it; name files that hold text"
    assert refused(tmp_path, TextSource(source=empty, target=empty)) == message
    write_bytes(tmp_path, "a.parquet", "no table")
    assert "a.parquet: cannot be read" in refused(tmp_path, TextSource(pairs="a.parquet"))


def test_several_files_are_one_corpus_one_after_the_other(tmp_path):
    write_bytes(tmp_path, "a.tsv", "1\ta\n2\tb")
    write_bytes(tmp_path, "b.jsonl", '{"source": "3", "target": "c", "more": 0}')
    assert read(tmp_path, TextSource(pairs=["a.tsv", "b.jsonl"])) == [
        ("1", "a"),
        ("2", "b"),
        ("3", "c"),
    ]
    for name, line in (("s1", "1"), ("s2", "2"), ("t1", "a"), ("t2", "b")):
        write_bytes(tmp_path, name, line)
    assert read(tmp_path, TextSource(source=["s1", "s2"], target=["t1", "t2"])) == [
        ("1", "a"),
        ("2", "b"),
    ]


def test_generated_corpora_are_read_like_files(tmp_path):
    source = TextSource(generate="reverse", count=5, part="valid")
    assert read(tmp_path, source) == list(generate("reverse", 5, "valid"))


def test_examples_hold_every_reference(tmp_path):
    write_bytes(tmp_path, "a.tsv", "s\tone\ttwo\t\tthree\nt\t\t\n")
    source = TextSource(pairs="a.tsv", alternatives=True)
    assert read_examples(source, tmp_path) == (["s", "t"], [["one", "two", "three"], [""]])
    assert read_examples(TextSource(pairs="a.tsv"), tmp_path) == (["s", "t"], [["one"], [""]])
    assert read(tmp_path, source) == [("s", "one"), ("t", "")]
    for columns, expected in (([1, 0], ["s", "two", "three"]), ([1, 2], ["two", "three"])):
        source = TextSource(pairs="a.tsv", columns=columns, alternatives=True)
        assert read_examples(source, tmp_path)[0] == ["one", ""]
        assert read_examples(source, tmp_path)[1][0] == expected


def test_replacements_happen_in_order_on_their_side(tmp_path):
    write_bytes(tmp_path, "a.tsv", "a b\ta b")
    replace = [
        Replacement("both", "a", "b"),
        Replacement("source", r"(b) (b)", r"\2+\1"),
        Replacement("target", "b$"),
    ]
    source = TextSource(pairs="a.tsv")
    assert read(tmp_path, source, replace) == [("b+b", "b ")]
    assert read_examples(source, tmp_path, replace) == (["a b"], [["b "]]), (
        "sources are changed by whoever translates"
    )


BROKEN = {
    "a.tsv": (b"a\tx\nb\n\xff\ty\nc\tz\n", "found 1, expected at least 2", "row 3: not UTF-8"),
    "a.jsonl": (
        b'{"source": "a", "target": "x"}\n{"source": 1}\n{"source": "\xff", "target": "y"}\n'
        b'{"source": "c", "target": "z"}\n',
        "found 1 for 'source', expected text",
        "row 3: not UTF-8",
    ),
    "a.mrg": (
        b"(S (A a))\n(S\n(S (B \xff))\n(S (C c))\n",
        "expected one tree a line",
        "row 3: not UTF-8",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_row_that_is_wrong_comes_as_its_error(tmp_path, name):
    content, *said = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    source = TextSource(**{"trees" if name == "a.mrg" else "pairs": name})
    rows = list(rows_or_errors(source, tmp_path))
    assert [rows[0][0], rows[3][0], len(rows)] == ["a", "c", 4]
    for row, expected in zip(rows[1:3], said, strict=True):
        assert isinstance(row, TransductError)
        assert expected in str(row)
    refused = Refused("skip")
    kept = list(read_rows(source, tmp_path, refused=refused))
    assert (kept, refused.errors) == ([rows[0], rows[3]], [str(row) for row in rows[1:3]])
    (tmp_path / name).write_bytes(content.replace(b"\xff", b"b"))
    with refusal(re.escape(said[0])):
        list(read_rows(source, tmp_path))


def test_rows_of_aligned_files_are_refused_together(tmp_path):
    for name, content in (
        ("a", b"a\nb\n\xff\nd\n"),
        ("x", b"x\n\xff\ny\nz\n"),
        ("u", b"1\n2\n3\n4\n"),
    ):
        (tmp_path / name).write_bytes(content)
    refused, corpora = Refused("skip"), [TextSource(source="a", target=name) for name in "xu"]
    found = read_examples(corpora[0], tmp_path, refused=refused, more=corpora[1:])
    assert found == (["a", "d"], [["x", "1"], ["z", "4"]])
    assert len(refused.errors) == 2
    (tmp_path / "a").write_bytes(b"\xff\nb\n")
    (tmp_path / "x").write_bytes(b"x\n\xff\n")
    with refusal(r"no row is right \(.*not UTF-8.*\); fix them"):
        read_examples(corpora[0], tmp_path, refused=Refused("skip"))


def test_training_stops_at_a_line_that_is_not_utf8_or_skips_it(tmp_path):
    (tmp_path / "a").write_bytes("ä\n".encode() * 9 + b"\xe4\nb\n")
    (tmp_path / "x").write_bytes(b"x\n" * 11)
    source = TextSource(source="a", target="x")
    with refusal(r"a:10: byte 1 .* or leave such out with data.broken=s"):
        list(read_pairs(source, tmp_path, (), Refused("stop")))
    refused = Refused("skip")
    [pairs] = read_pairs(source, tmp_path, (), refused)
    assert pairs == [("ä", "x")] * 9 + [("b", "x")]
    assert refused.errors == [
        f"{tmp_path / 'a'}, {tmp_path / 'x'}, row 10: not UTF-8; write it again in UTF-8"
    ]
    (tmp_path / "a").write_bytes("д\n".encode("cp1251") * 11)
    with refusal("11 of 11 lines are not UTF-8; convert the file"):
        list(read_pairs(source, tmp_path, (), Refused("skip")))


@pytest.mark.parametrize("given", [{"text": "{0}"}, {"source": "{0}", "target": "a"}])
@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.json", b'["a"]', "a.json: found JSON, expected lines of text; write its texts"),
        ("a.ndjson", b'{"a": 1}', "a.ndjson: found JSON lines, .* or train on it as pairs"),
        ("a.pq", b"PAR1", "a.pq: found a Parquet file, .*; give it as pairs, named .parquet"),
        ("a", None, "a: a folder; name the files in it"),
    ],
)
def test_files_with_a_structure_are_no_lines_of_text(given, name, content, message, tmp_path):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    source = TextSource(**{key: value.format(name) for key, value in given.items()})
    with refusal(message):
        list(read_rows(source, tmp_path))


def aligned(folder, sources, targets):
    write_bytes(folder, "a", "".join(f"{line}\n" for line in sources))
    write_bytes(folder, "b", "".join(f"{line}\n" for line in targets))
    return TextSource(source="a", target="b")


def translations(count):
    """Texts and translations of about one and a half times the length, as texts are."""
    random.seed(count)
    lengths = [random.randint(5, 150) for _ in range(count)]
    return ["s" * n for n in lengths], ["t" * round(n * random.uniform(1.2, 1.8)) for n in lengths]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("place", [0, 150, 290, 300])
@pytest.mark.parametrize("extra", [1, 3])
def test_files_of_unequal_length_say_where_they_part(tmp_path, side, place, extra):
    sides = translations(300)
    sides[side][place:place] = ["inserted"] * extra
    message = refused(tmp_path, aligned(tmp_path, *sides))
    counts = [f"{name} has {len(lines)} lines" for name, lines in zip("ab", sides)]
    near = re.fullmatch(
        rf"{counts[0]} and {counts[1][:-6]} \(they seem to differ from line (\d+) on\); "
        "expected line i of the one to translate line i of the other; align them again",
        message,
    )
    assert near
    assert abs(int(near[1]) - (place + 1)) <= 3


def test_pipes_of_unequal_length_are_read_once(tmp_path):
    for name, count in (("a", 5), ("b", 3)):
        os.mkfifo(tmp_path / name)
        Thread(target=(tmp_path / name).write_text, args=["x\n" * count], daemon=True).start()
    message = refused(tmp_path, TextSource(source="a", target="b"))
    assert message.startswith("one of ")
    assert (
        "b ends after 3 lines, the other goes on; expected line i of the one to translate"
        in message
    )


@pytest.mark.parametrize(
    "source, target",
    [
        (["x"] * 300, ["x"] * 301),  # lengths that tell nothing
        (
            translations(300)[0],
            translations(301)[0],
        ),  # lengths that have nothing to do with each other
        (translations(8)[0], translations(8)[1][1:]),  # too few lines to tell
        (translations(300)[0], translations(300)[1][20:]),  # too many lines apart
        (["x"], []),
    ],
)
def test_no_place_is_named_without_evidence(tmp_path, source, target):
    message = refused(tmp_path, aligned(tmp_path, source, target))
    assert f"a has {len(source)} lines and b has {len(target)}; expected" in message


def test_drift_by_chance_is_rare():
    draw = np.random.default_rng(1)
    assert all(
        drift(draw.integers(0, 99, 200), draw.integers(0, 99, 201)) is None for _ in range(500)
    )


def test_lines_that_are_missing_at_the_end_are_not_looked_for_before_it():
    for count in range(250, 300):
        source, target = (np.array([*map(len, lines)]) for lines in translations(count))
        assert drift(source, target[:-1]) == count
