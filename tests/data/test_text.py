"""Reading parallel text: every format gives the same pairs, and what cannot be read is named with
file and line."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
from threading import Thread
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.data.conftest import compress
from tests.refusals import refusal
from transduct.data import text
from transduct.data.archives import read_members
from transduct.data.files import Refused, require_file, stored
from transduct.data.samples import generate
from transduct.data.sources import Replacement, TextSource
from transduct.data.text import (
    LongLine,
    drift,
    read_examples,
    read_lines,
    read_pairs,
    read_rows,
    rows_or_errors,
    same_text,
    suspicions,
    tsv_rows,
)
from transduct.errors import TransductError

# What other programs take for the end of a line, or of a file, is text.
PAIRS = [
    ("a b", "x"),
    ("nel\x85 and\u2028ls", "\x1c\x0b\x0c"),
    ("한국어", ""),
    ("cr\rlone", "\ufeff later"),
    ("", "😀"),
]


def encoded(format, pairs):
    """The bytes of a file of one format that holds both sides."""
    if format == ".tsv":
        return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    if format == ".jsonl":
        return "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs).encode()
    sink = io.BytesIO()
    columns = {"source": [s for s, _ in pairs], "target": [t for _, t in pairs]}
    pa.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def write(folder, name, data):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return name


def read(folder, source, replace=()):
    return [pair for chunk in read_pairs(source, folder, replace) for pair in chunk]


def refused(folder, source):
    """The error message, less the folder."""
    with pytest.raises(TransductError) as error:
        read(folder, source)
    message = str(error.value)
    del error  # it holds the files that were being read
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("format", [".txt", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_every_format_gives_the_same_pairs(tmp_path, monkeypatch, format, compression, block):
    monkeypatch.setattr(text, "BLOCK", block)
    monkeypatch.setattr(text, "CHUNK", 2)
    monkeypatch.setattr(text, "ROWS", 3)
    if format == ".txt":
        for side, name in enumerate(("a", "b")):
            data = "".join(f"{pair[side]}\n" for pair in PAIRS).encode()
            write(tmp_path, name + compression, compress(data, compression))
        source = TextSource(source="a" + compression, target="b" + compression)
    else:
        name = "both" + format + compression
        source = TextSource(
            pairs=write(tmp_path, name, compress(encoded(format, PAIRS), compression))
        )
    chunks = list(read_pairs(source, tmp_path))
    assert [pair for chunk in chunks for pair in chunk] == PAIRS
    assert max(map(len, chunks)) == 2


def test_of_long_texts_fewer_are_handed_on_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 4)
    monkeypatch.setattr(text, "CHARACTERS", 100)
    lengths = [1, 2, 3, 4, 60, 39, 1, 99, 1, 500, 5, 5]
    name = write(tmp_path, "a.tsv", "".join(f"{'x' * (n - 1)}\ty\n" for n in lengths))
    chunks = [
        [len("".join(pair)) for pair in chunk]
        for chunk in read_pairs(TextSource(pairs=name), tmp_path)
    ]
    assert chunks == [[1, 2, 3, 4], [60, 39, 1], [99, 1], [500], [5, 5]]


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_line_ends_and_the_byte_order_mark(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text, "BLOCK", block)
    name = write(tmp_path, "a", b"\xef\xbb\xbfone\r\n\r\ntwo\r\r\nthree\rfour\nfive\r")
    assert list(read_lines(tmp_path / name)) == ["one", "", "two\r", "three\rfour", "five\r"]
    assert list(read_lines(tmp_path / write(tmp_path, "b", ""))) == []
    assert list(read_lines(tmp_path / write(tmp_path, "c", "\n\n"))) == ["", ""]


def test_lines_of_a_stream_come_before_the_stream_ends():
    class Slow(io.RawIOBase):
        def __init__(self):
            self.parts = [b"one\ntw", b"o\nthree"]

        def readable(self):
            return True

        def readinto(self, buffer):
            part = self.parts.pop(0) if self.parts else b""
            buffer[: len(part)] = part
            return len(part)

    slow = Slow()
    lines = read_lines(io.BufferedReader(slow))
    assert next(lines) == "one"
    assert len(slow.parts) == 1
    assert list(lines) == ["two", "three"]


@pytest.mark.parametrize("block", [3, 1 << 20])
@pytest.mark.parametrize("ends", ["x", "\nx\n"])
def test_a_line_is_refused_once_it_is_too_long(monkeypatch, block, ends):
    monkeypatch.setattr(text, "BLOCK", block)
    monkeypatch.setattr(text, "LONGEST_LINE", 10)
    whole = "a\n" + "x" * 10 + "\n" + "y" * 9 + "\n"
    assert [*map(len, read_lines(io.BytesIO(whole.encode())))] == [1, 10, 9]
    lines = read_lines(io.BytesIO((whole + "z" * 10 + ends).encode()))
    if ends == "x":
        expected = (
            "the input:4: found a line of more than 10 bytes, the most that is read; break it, for"
        )
        with pytest.raises(LongLine, match=f"{expected} example with: fold -s -w 1000"):
            list(lines)
    else:
        assert [*map(len, lines)] == [1, 10, 9, 10, 1]


def test_a_long_line_is_not_read_to_its_end():
    stream = io.BytesIO(b"x" * (30 << 20))
    with pytest.raises(LongLine, match="the input:1: found a line of more than 4,194,304 bytes"):
        list(read_lines(stream))
    assert stream.tell() < 6 << 20


def test_bytes_that_are_not_utf8_are_refused_with_their_place_or_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 4)
    data = b"good\nalso g\xc3\xb6od\nbad \xe4 \xe4\nrest \xe2\x82"
    with refusal(r"a:3: byte 5 is 0xe4, which is not UTF-8, as in 2 of 4 lines; write such"):
        list(read_lines(tmp_path / write(tmp_path, "a", data)))
    with refusal("the input:3: byte 5"):
        list(read_lines(io.BytesIO(data)))
    for wide in ("utf-16", "utf-16-be"):
        written = "\ufeff" * (wide != "utf-16") + "a b\n"
        with refusal("not UTF-8; convert the file, for example with: iconv -f utf-16 -t"):
            list(read_lines(io.BytesIO(written.encode(wide))))
    lines = list(read_lines(io.BytesIO(data), strict=False))
    assert lines == ["good", "also göod", "bad \udce4 \udce4", "rest \udce2\udc82"]


def test_a_compressed_file_without_its_ending_is_named(tmp_path):
    """The advice for other bytes, to convert from latin1, would turn any bytes into text."""
    for kind, content in (
        ("gzip", gzip.compress(b"a b\n" * 100, mtime=0)),
        ("a zip archive", b"PK\x03\x04\xff\n"),
    ):
        (tmp_path / "a").write_bytes(content)
        message = (
            rf"a: found {kind}, expected text, plain or compressed as its name says .*; "
            r"name it so or unpack it"
        )
        with refusal(message):
            list(text.read_lines(tmp_path / "a"))


@pytest.mark.parametrize(
    "text",
    ["a b\nc d\n", "Привет, как дела? Хорошо.\n" * 9, "für dich\n" * 3, "안녕, 잘 지내? 응.\n" * 9],
)
@pytest.mark.parametrize("wide", ["utf-16le", "utf-16be"])
def test_text_of_two_bytes_a_character_is_refused_in_its_own_name(tmp_path, text, wide):
    """Without this check nothing would fail: such a file may be valid UTF-8."""
    (tmp_path / "a").write_bytes(text.encode(wide))
    with refusal(rf"a:\d: .*convert the file, for example with: iconv -f {wide} -t utf-8"):
        list(read_lines(tmp_path / "a"))
    if text.isascii():
        with refusal("a:1: found UTF-16 without a mark; convert the file"):
            list(read_lines(tmp_path / "a"))


OFFICE = b"PK\x03\x04\x14\0\6\0\x08\0\0\0!\0" + bytes(16) + b"[Content_Types].xml\n"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "data, said",
    [
        ("Ein Haus.\nZwei.\nDrei.\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("Ein Haus.\n".encode("utf-16-le"), "iconv -f utf-16le -t utf-8"),
        ("Ein Haus.\n".encode("utf-32"), "iconv -f utf-32 -t utf-8"),
        ("Ein Haus.\n".encode("utf-32-le"), "iconv -f utf-32le -t utf-8"),
        ("Привет, как дела? Хорошо.\n".encode("utf-16-be") * 9, "iconv -f utf-16be -t utf-8"),
        (gzip.compress(b"a\n", mtime=0), "found gzip, .* name it so or unpack it"),
        (lzma.compress(b"a\n"), "found xz, .* name it so or unpack it"),
        (bz2.compress(b"a\n"), "found bzip2, .* name it so or unpack it"),
        (b"PK\x03\x04" + bytes(26) + b"a.txtabc\n", "found a zip archive, .* unpack it"),
        (OFFICE, r"found an Office document, .* save it as plain text \(UTF-8\)"),
        (b"%PDF-1.7\n", r"found a PDF document, .* save it as plain text \(UTF-8\)"),
        (bytes(257) + b"ustar\n", "found a tar archive, .* unpack it"),
    ],
    ids=repr,
)
def test_what_is_no_text_is_refused_wherever_lines_are_read(data, said, strict):
    with refusal(f"the input:?1?: .*{said}"):
        list(read_lines(io.BytesIO(data), strict))


@pytest.mark.parametrize("data", [b"a\0\n" * 9, b"a\0b\n" * 9, b"BZhang\n", b"Rar!\n", b"PKA\n"])
def test_a_line_that_only_resembles_something_else_is_text(data):
    assert list(read_lines(io.BytesIO(data), strict=False)) == data.decode().splitlines()


@pytest.mark.parametrize(
    "name, row, bad",
    [
        ("a.jsonl", '{"source": "a", "target": "b"}\n', "a.jsonl:2: not JSON"),
        ("a.tsv", "a\tb\n", "a.tsv:2: found 1, expected at least 2 columns"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", " \n", "\r\n"])
def test_blank_lines_at_the_end_of_records_are_none(tmp_path, name, row, bad, end):
    write(tmp_path, name, row * 2 + end)
    assert read(tmp_path, TextSource(pairs=name)) == [("a", "b")] * 2
    if end:
        write(tmp_path, name, row + end + row)
        with refusal(bad):
            read(tmp_path, TextSource(pairs=name))


def test_a_blank_line_of_a_single_column_is_a_row(tmp_path):
    write(tmp_path, "a.tsv", "a\n\n")
    assert [*read_rows(TextSource(pairs="a.tsv", columns=[0]), tmp_path)] == [["a"], [""]]


def test_a_few_zeros_are_text(tmp_path):
    for number, data in enumerate((b"a\0\n", b"a b c d\n" * 99 + b"\0\0\0\0\0\0", b"\0" * 40, b"")):
        (tmp_path / str(number)).write_bytes(data)
        assert "\n".join(read_lines(tmp_path / str(number))) == data.decode().removesuffix("\n")


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_damaged_compressed_files_are_named(tmp_path, ending):
    numbers = random.Random(1)
    whole = compress("".join(f"{numbers.random()}\n" for _ in range(5000)).encode(), ending)
    for data in (whole[: len(whole) // 2], b"plain text", whole[:200] + whole[300:]):
        name = write(tmp_path, "a" + ending, data)
        with refusal(rf"a{ending}: cannot be read \(.+\); fetch or write the file again"):
            list(read_lines(tmp_path / name))


def test_missing_and_empty_files_are_named(tmp_path):
    missing = "none: no such file; check the path (those in a recipe start at data.root)"
    assert refused(tmp_path, TextSource(source="none", target="none")) == missing
    empty = write(tmp_path, "empty", "")
    message = "empty, empty: nothing in it; name files that hold text"
    assert refused(tmp_path, TextSource(source=empty, target=empty)) == message
    write(tmp_path, "a.parquet", "no table")
    assert "a.parquet: cannot be read" in refused(tmp_path, TextSource(pairs="a.parquet"))


def aligned(folder, sources, targets):
    write(folder, "a", "".join(f"{line}\n" for line in sources))
    write(folder, "b", "".join(f"{line}\n" for line in targets))
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
    for name, lines in (("a", 5), ("b", 3)):
        os.mkfifo(tmp_path / name)
        Thread(target=(tmp_path / name).write_text, args=["x\n" * lines], daemon=True).start()
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


def test_several_files_are_one_corpus_one_after_the_other(tmp_path):
    write(tmp_path, "a.tsv", "1\ta\n2\tb")
    write(tmp_path, "b.jsonl", '{"source": "3", "target": "c", "more": 0}')
    assert read(tmp_path, TextSource(pairs=["a.tsv", "b.jsonl"])) == [
        ("1", "a"),
        ("2", "b"),
        ("3", "c"),
    ]
    for name, line in (("s1", "1"), ("s2", "2"), ("t1", "a"), ("t2", "b")):
        write(tmp_path, name, line)
    assert read(tmp_path, TextSource(source=["s1", "s2"], target=["t1", "t2"])) == [
        ("1", "a"),
        ("2", "b"),
    ]


def test_generated_corpora_are_read_like_files(tmp_path):
    source = TextSource(generate="reverse", count=5, part="valid")
    assert read(tmp_path, source) == list(generate("reverse", 5, "valid"))


def test_columns_by_number_by_header_by_key_and_by_field(tmp_path):
    write(tmp_path, "a.tsv", "id\tde\ten\n0\tja\tyes\n")
    assert read(tmp_path, TextSource(pairs="a.tsv", columns=[2, 1])) == [
        ("en", "de"),
        ("yes", "ja"),
    ]
    assert read(tmp_path, TextSource(pairs="a.tsv", columns=["de", "en"])) == [("ja", "yes")]
    write(tmp_path, "a.jsonl", '{"de": "ja", "en": "yes"}')
    assert read(tmp_path, TextSource(pairs="a.jsonl", columns=["en", "de"])) == [("yes", "ja")]
    write(
        tmp_path,
        "b.jsonl",
        '{"translation": {"de": "ja", "en": {"us": "yes"}}, "translation.fr": "oui"}',
    )
    nested = ["translation.de", "translation.en.us"]
    assert read(tmp_path, TextSource(pairs="b.jsonl", columns=nested)) == [("ja", "yes")]
    literal = ["translation.fr", "translation.de"]
    assert read(tmp_path, TextSource(pairs="b.jsonl", columns=literal)) == [("oui", "ja")]
    table = pa.table({"id": [0], "translation": [{"de": "ja", "en": {"us": "yes"}}]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(
        tmp_path, TextSource(pairs="a.parquet", columns=["translation.en.us", "translation.de"])
    ) == [("yes", "ja")]


def test_a_line_feed_inside_a_value_becomes_a_blank(tmp_path):
    for format in (".jsonl", ".parquet"):
        name = write(tmp_path, "a" + format, encoded(format, [("one\ntwo\r\nthree", "\n")]))
        assert read(tmp_path, TextSource(pairs=name)) == [("one two three", " ")]


@pytest.mark.parametrize(
    "name, data, columns, message",
    [
        (
            "a.tsv",
            "a\tb\nc",
            None,
            r"a.tsv:2: found 1, expected at least 2 columns with tabs between; fix it or set",
        ),
        ("a.tsv", "a\tb\n\na\tb\n", None, "a.tsv:2: found 1, expected at least 2 columns"),
        ("a.tsv", "a\tb", [0, 2], "a.tsv:1: found 2, expected at least 3 columns"),
        (
            "a.tsv",
            "de\ten\n",
            ["de", "fr"],
            "a.tsv:1: no column 'fr'; set columns to some of: de, en",
        ),
        ("a.tsv", "", ["de", "fr"], "a.tsv:1: no column 'de'; set columns to some of: "),
        ("a.tsv", "de\ten\tde\n", ["de", "en"], "a.tsv:1: 2 columns are named 'de'; give each"),
        (
            "a.jsonl",
            "{",
            None,
            r"a.jsonl:1: not JSON \(.*\); expected an object with 'source' and 'target' on "
            r"every line",
        ),
        (
            "a.jsonl",
            "[1]",
            None,
            r"a.jsonl:1: found \[1\], expected an object with 'source' and 'target'",
        ),
        (
            "a.jsonl",
            '{"s": ""}',
            ["s.x", "t"],
            "a.jsonl:1: no key 's.x'; set columns to some of: s$",
        ),
        (
            "a.jsonl",
            "[" * 100_000,
            ["t", "t"],
            r"a.jsonl:1: not JSON \(maximum recursion depth .*\); expected an object",
        ),
        (
            "a.jsonl",
            '{"source": ""}',
            None,
            "a.jsonl:1: no key 'target'; set columns to some of: ",
        ),
        (
            "a.jsonl",
            '{"source": 12, "target": ""}',
            None,
            "a.jsonl:1: found 12 for 'source', expected text",
        ),
        (
            "a.jsonl",
            r'{"source": "\ud83d\ude00", "target": ""}'
            + "\n"
            + r'{"source": "\uD83d", "target": ""}',
            None,
            "a.jsonl:2: found an unpaired surrogate, expected text; fix the line",
        ),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path, name, data, columns, message):
    write(tmp_path, name, data)
    assert re.match(message, refused(tmp_path, TextSource(pairs=name, columns=columns)))


def test_labels_may_be_whole_numbers(tmp_path):
    write(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n')
    pa.parquet.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / "a.parquet")
    for name, other in (("a.jsonl", "x"), ("a.parquet", "0")):
        source = TextSource(pairs=name, columns=["text", "label"])
        assert [[*row] for row in read_rows(source, tmp_path, labelled=True)] == [
            ["a", "1"],
            ["b", other],
        ]
        with refusal("found 1 for 'label', expected text"):
            list(read_rows(source, tmp_path))
    write(tmp_path, "a.jsonl", '{"text": "a", "label": true}\n')
    with refusal("found True for 'label', expected text"):
        list(
            read_rows(
                TextSource(pairs="a.jsonl", columns=["text", "label"]), tmp_path, labelled=True
            )
        )


def test_parquet_columns_that_do_not_fit_are_named(tmp_path):
    pa.parquet.write_table(pa.table({"de": ["a", None], "n": [1, 2]}), tmp_path / "a.parquet")
    cases = {
        ("de", "en"): "a.parquet: no column 'en'; set columns to some of: de, n",
        ("n", "de"): "a.parquet, row 1: found 1 for 'n', expected text; fix it or set columns",
        (
            "de",
            "de",
        ): "a.parquet, row 2: found nothing for 'de', expected text; fix it or set columns",
    }
    for columns, message in cases.items():
        assert refused(tmp_path, TextSource(pairs="a.parquet", columns=list(columns))) == message


def test_a_long_text_of_parquet_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LONGEST_LINE", 10)
    name = write(tmp_path, "a.parquet", encoded(".parquet", [("x" * 10, "y"), ("x" * 11, "y")]))
    message = "row 2: found 11 characters for 'source', at most 10 are read; cut the text"
    with refusal(message) as caught:
        read(tmp_path, TextSource(pairs=name))
    assert caught.value.skippable


def test_parquet_times_are_no_text(tmp_path):
    times = pa.array([1], pa.timestamp("ns"))
    pa.parquet.write_table(pa.table({"de": ["a"], "en": times}), tmp_path / "a.parquet")
    # Arrow gives a time of pandas where that is installed, else it raises
    message = r"a\.parquet, rows? 1.*: found [Tt]imestamp.* for 'en', expected text; fix it or set"
    assert re.match(message, refused(tmp_path, TextSource(pairs="a.parquet", columns=["de", "en"])))


def test_parquet_bytes_that_are_not_utf8_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "ROWS", 2)
    broken = pa.array([b"a", b"b", b"c", b"\xe4"]).view(pa.string())
    pa.parquet.write_table(
        pa.table({"de": broken, "en": ["a", "b", "c", "d"]}), tmp_path / "a.parquet"
    )
    message = "a.parquet, rows 3 and on: 'de' holds bytes that are not UTF-8; write the file again"
    assert refused(tmp_path, TextSource(pairs="a.parquet", columns=["en", "de"])) == message


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array([{"x": "c"}]), pa.array(["d"])]
    pa.parquet.write_table(
        pa.Table.from_arrays(columns, ["de", "de", "en", "en.x"]), tmp_path / "a.parquet"
    )
    pa.parquet.write_table(
        pa.Table.from_arrays(columns[1:], ["de", "", "en.x"]), tmp_path / "b.parquet"
    )
    for columns in (["de", "de"], ["en.x", "de"]):
        message = f"a.parquet: 2 columns are named '{columns[0]}'; give each its own name"
        assert refused(tmp_path, TextSource(pairs="a.parquet", columns=columns)) == message
    assert read(tmp_path, TextSource(pairs="b.parquet", columns=["de", "en.x"])) == [("b", "d")]


def test_examples_hold_every_reference(tmp_path):
    write(tmp_path, "a.tsv", "s\tone\ttwo\t\tthree\nt\t\t\n")
    source = TextSource(pairs="a.tsv", alternatives=True)
    assert read_examples(source, tmp_path) == (["s", "t"], [["one", "two", "three"], [""]])
    assert read_examples(TextSource(pairs="a.tsv"), tmp_path) == (["s", "t"], [["one"], [""]])
    assert read(tmp_path, source) == [("s", "one"), ("t", "")]
    for columns, expected in (([1, 0], ["s", "two", "three"]), ([1, 2], ["two", "three"])):
        source = TextSource(pairs="a.tsv", columns=columns, alternatives=True)
        assert read_examples(source, tmp_path)[0] == ["one", ""]
        assert read_examples(source, tmp_path)[1][0] == expected


def test_replacements_happen_in_order_on_their_side(tmp_path):
    write(tmp_path, "a.tsv", "a b\ta b")
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


def test_columns_and_keys_are_found_in_either_form_of_unicode(tmp_path):
    forms = [normalize(form, "긍정") for form in ("NFC", "NFD")]
    for held, asked in (forms, forms[::-1]):
        (tmp_path / "a.tsv").write_text(f"x\t{held}\n1\t2\n", encoding="utf-8")
        assert [*tsv_rows(tmp_path / "a.tsv", [asked, "x"])] == [["2", "1"]]
        line = json.dumps({held: "2", "x": "1"}, ensure_ascii=False)
        (tmp_path / "a.jsonl").write_text(line, encoding="utf-8")
        pa.parquet.write_table(pa.table({"x": ["1"], held: ["2"]}), tmp_path / "a.parquet")
        for name in ("a.jsonl", "a.parquet"):
            source = TextSource(pairs=name, columns=[asked, "x"])
            assert [*read_rows(source, tmp_path)] == [["2", "1"]]
    pa.parquet.write_table(pa.table({form: ["1"] for form in forms}), tmp_path / "a.parquet")
    with refusal("2 columns are named '긍정'; give each its own name"):
        list(read_rows(TextSource(pairs="a.parquet", columns=[forms[0], "x"]), tmp_path))


def test_a_file_is_found_in_either_form_of_unicode(tmp_path):
    forms = [normalize(form, "긍정/부정.txt") for form in ("NFC", "NFD")]
    for held, asked in (forms, forms[::-1]):
        folder = tmp_path / normalize("NFC", str(len(held)))
        (folder / held).parent.mkdir(parents=True)
        (folder / held).write_text("a\n")
        assert [*read_lines(folder / asked)] == ["a"]
        require_file(folder / asked)
        [(name, content)] = read_members((folder / asked).parent, [".txt"])
        assert (name, content()) == (normalize("NFC", "부정.txt"), b"a\n")
        assert stored(folder / asked / "none") == folder / held / "none"
        with refusal(r"none: no such file"):
            require_file((folder / asked).parent / "none")


def test_sides_that_are_the_same_text_are_told(tmp_path):
    for name, content in (("a", "x\ny\n"), ("b", "x\ny\n"), ("c", "x\nz\n"), ("d", "x\n")):
        (tmp_path / name).write_text(content)
    with gzip.open(tmp_path / "a.gz", "wt") as file:
        file.write("x\ny\n")
    for other, same in (("a", True), ("b", True), ("a.gz", True), ("c", False), ("d", False)):
        assert same_text(tmp_path / "a", tmp_path / other) == same
    assert not same_text(tmp_path, tmp_path)
    (tmp_path / "zip").write_bytes(b"PK\3\4" + bytes(99))
    assert not same_text(tmp_path / "zip", tmp_path / "zip")
    [said] = suspicions(TextSource(source=["a", "c"], target=["b", "a"]), tmp_path)
    assert said.startswith(f"{tmp_path / 'a'} and {tmp_path / 'b'} hold the same text")
    [said] = suspicions(TextSource(pairs="a.tsv", columns=[1, 1]), tmp_path)
    assert said == "a.tsv: columns is [1, 1], which takes one twice; is another meant?"
    assert [*suspicions(TextSource(pairs="a.tsv"), tmp_path)] == []


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


def test_parquet_rows_that_are_wrong_come_as_their_errors(tmp_path):
    table = pa.table({"source": ["a", None, "c"], "target": ["x", "y", "z"]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    first, wrong, last = rows_or_errors(TextSource(pairs="a.parquet"), tmp_path)
    assert (first, last) == (["a", "x"], ["c", "z"])
    assert "row 2: found nothing for 'source', expected text" in str(wrong)


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


@pytest.mark.parametrize("kind, mark", [("tsv", "\t"), ("csv", ",")])
@pytest.mark.parametrize(
    "row, header",
    [
        (("de", "en"), True),
        (("Source", "TARGET"), True),
        (("Korean", "zh-Hant"), True),
        (("text", "label"), True),
        (("source_text", "translation.de"), True),
        (("한국어", "text-en"), True),
        (("Ein Haus", "A house"), False),
        (("text", "Ein Text"), False),
        (("is it", "es ist"), False),
    ],
)
def test_a_first_row_of_names_of_columns_is_reported(tmp_path, kind, mark, row, header):
    path = tmp_path / f"a.{kind}"
    path.write_text(mark.join(row) + "\n" + mark.join(["a b", "c d"]) + "\n")
    both = ", ".join(row)
    line = (
        f"{path}:1: the first row ({both}) looks like the names of the columns; if it is, read "
        f"them by these: columns [{both}], on the command line --columns {','.join(row)}"
    )
    assert [*suspicions(TextSource(pairs=path.name), tmp_path)] == [line] * header
    assert [*suspicions(TextSource(pairs=path.name, columns=[0, 1]), tmp_path)] == [line] * header
    assert [*suspicions(TextSource(pairs=path.name, columns=[*row]), tmp_path)] == []


@pytest.mark.parametrize("columns", [[0, 1], [0, 1, 2]])
def test_a_first_row_whose_label_occurs_once_is_reported(tmp_path, columns):
    row = ["Satz", "Gefühl", "Gefühl"][: len(columns)]
    rows = [[f"a {i}", "bc"[i % 2], "bc"[i % 2]][: len(columns)] for i in range(6)]
    source = TextSource(pairs="a.tsv", columns=columns)

    def warned(table, labelled=True):
        lines = ("\t".join(each) + "\n" for each in table)
        (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
        return [*suspicions(source, tmp_path, labelled)]

    [line] = warned([row, *rows])
    assert f"a.tsv:1: the first row ({', '.join(row)}) looks like the names of the col" in line
    assert warned([row, *rows], labelled=False) == warned([*rows, row]) == []
    answers = [[*each[:-1], str(i)] for i, each in enumerate(rows)]  # none comes again
    assert warned([row, *answers]) == []
    [line] = warned([["text", "text", "label"][-len(columns) :], *rows], labelled=False)
    assert "looks like the names" in line


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
        list(text.read_rows(source, tmp_path))
