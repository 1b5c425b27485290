"""Lines come one by one, whatever ends them; what is no text is named with file and line."""

import bz2
import gzip
import io
import lzma
import os
import random
from threading import Thread
from unicodedata import normalize

import pytest

from tests.data.conftest import compress, write_bytes
from tests.refusals import refusal
from transduct.data import lines as module
from transduct.data.archives import read_members
from transduct.data.files import require_file
from transduct.data.lines import LongLine, ending_of, kind_of, opened, read_lines, refuse, stored
from transduct.errors import TransductError


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_line_ends_and_the_byte_order_mark(tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    name = write_bytes(tmp_path, "a", b"\xef\xbb\xbfone\r\n\r\ntwo\r\r\nthree\rfour\nfive\r")
    assert list(read_lines(tmp_path / name)) == ["one", "", "two\r", "three\rfour", "five\r"]
    assert list(read_lines(tmp_path / write_bytes(tmp_path, "b", ""))) == []
    assert list(read_lines(tmp_path / write_bytes(tmp_path, "c", "\n\n"))) == ["", ""]


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
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
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
    monkeypatch.setattr(module, "BLOCK", 4)
    data = b"good\nalso g\xc3\xb6od\nbad \xe4 \xe4\nrest \xe2\x82"
    with refusal(r"a:3: byte 5 is 0xe4, which is not UTF-8, as in 2 of 4 lines; write such"):
        list(read_lines(tmp_path / write_bytes(tmp_path, "a", data)))
    with refusal("the input:3: byte 5"):
        list(read_lines(io.BytesIO(data)))
    for wide in ("utf-16", "utf-16-be"):
        written = "\ufeff" * (wide != "utf-16") + "a b\n"
        with refusal("not UTF-8; convert the file, for example with: iconv -f utf-16 -t"):
            list(read_lines(io.BytesIO(written.encode(wide))))
    lines = list(read_lines(io.BytesIO(data), strict=False))
    assert lines == ["good", "also göod", "bad \udce4 \udce4", "rest \udce2\udc82"]


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


@pytest.mark.parametrize(
    "data",
    [
        *(b"a\0\n" * 9, b"a\0b\n" * 9, b"BZhang\n", b"Rar!\n", b"PKA\n", b"a\0\n", b"\0" * 40),
        b"a b c d\n" * 99 + b"\0" * 6,
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_line_that_only_resembles_something_else_is_text(data, strict):
    assert list(read_lines(io.BytesIO(data), strict)) == data.decode().splitlines()


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_damaged_compressed_files_are_named(tmp_path, ending):
    numbers = random.Random(1)
    whole = compress("".join(f"{numbers.random()}\n" for _ in range(5000)).encode(), ending)
    for data in (whole[: len(whole) // 2], b"plain text", whole[:200] + whole[300:]):
        name = write_bytes(tmp_path, "a" + ending, data)
        with refusal(rf"a{ending}: cannot be read \(.+\); fetch or write the file again"):
            list(read_lines(tmp_path / name))


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


# compressed files


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_an_empty_file_is_not_a_compressed_one(tmp_path, ending):
    (tmp_path / f"a{ending}").touch()
    with (
        refusal(rf"a\{ending}: cannot be read \(it .*\); fetch or write the file again"),
        opened(tmp_path / f"a{ending}") as stream,
    ):
        stream.read()


def test_a_window_that_is_not_read_is_said_with_the_remedy(tmp_path):
    # what `zstd --long=31` makes of a pipe that says "line": its window is 2 GiB
    (tmp_path / "a.zst").write_bytes(bytes.fromhex("28b52ffd04a82900006c696e650ac9d5a782"))
    unpack = r"unpack it first, with: zstd -d --long=31 .*a\.zst$"
    with (
        refusal(f"a window of more than 128 MiB, .*; {unpack}"),
        opened(tmp_path / "a.zst") as stream,
    ):
        stream.read()


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_a_pipe_is_read_as_a_file_is(tmp_path, ending):
    path, text = tmp_path / f"a.txt{ending}", b"line\n" * 100_000
    content = compress(text, ending)
    os.mkfifo(path)
    writer = Thread(target=path.write_bytes, args=[content * 2], daemon=True)
    writer.start()
    with opened(path) as file:
        assert file.read() == text * 2
    writer.join()


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_a_file_comes_line_by_line(tmp_path, ending):
    lines = [b"%d\n" % number for number in range(5000)]
    (tmp_path / f"a{ending}").write_bytes(compress(b"".join(lines), ending))
    with opened(tmp_path / f"a{ending}") as file:
        assert list(file) == lines


ONE, TWO = b"one" * 3000, b"two"
STREAMS = [lzma.compress(ONE), lzma.compress(TWO)]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("padding", [0, 4, 4096])
def test_an_xz_file_is_read_beyond_its_first_stream(tmp_path, monkeypatch, block, padding):
    monkeypatch.setattr(module, "BLOCK", block)
    path = tmp_path / "a.xz"
    path.write_bytes(bytes(padding).join([*STREAMS, b""]))
    with opened(path) as stream:
        assert stream.read() == ONE + TWO
        assert stream.read() == b""


@pytest.mark.parametrize(
    "between, second, reason",
    [
        (b"", b"garbage" * 2, "Input format not supported by decoder"),
        (bytes(4), b"\xfd" + STREAMS[1][2:], "Input format not supported by decoder"),
        (bytes(3), STREAMS[1], "found 3 bytes of padding, expected a multiple of 4"),
        (bytes(5), b"", "found 5 bytes of padding, expected a multiple of 4"),
        (bytes(4), STREAMS[1][:-9], "it ends before its end is marked"),
        (bytes(4), STREAMS[1][:3], "it ends before its end is marked"),
    ],
)
def test_what_follows_an_xz_stream_and_is_none_is_refused(tmp_path, between, second, reason):
    path = tmp_path / "a.xz"
    path.write_bytes(STREAMS[0] + between + second)
    with (
        refusal(rf"a\.xz: cannot be read \({reason}\); fetch or write the file again"),
        opened(path) as stream,
    ):
        stream.read()


# files with a structure


STARTS = {
    "a.tmx": (b'<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "x">\n<tmx version="1.4">', ".tmx"),
    "a.xliff": (b'<xliff version="2.0">', ".xlf"),
    "a.po": (b'# by\n\nmsgid ""\nmsgstr ""\n', ".po"),
    "a.pot": (b'msgctxt "menu"\nmsgid "a"\n', ".po"),
    "a.srt": (b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,000\r\n", ".srt"),
    "a.vtt": (b"WEBVTT - a title\n\n", ".vtt"),
    "a.HTML": (b"<!-- c -->\n<!DOCTYPE html><p>", ".html"),
    "a.htm": (b"<html lang=en>", ".html"),
    "a.json": (b'[\n {"de": 1}', ".json"),
    "a.jsonl": (b'{"de": 1}\n', ".jsonl"),
    "a.csv": (b"de,en\n", ".csv"),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_kind_is_that_of_ending_and_content(name):
    start, kind = STARTS[name]
    assert kind_of(name, start) == kind_of(f"{name}.gz", start) == kind
    assert kind_of(None, start) == ("" if kind == ".csv" else kind)
    assert kind_of("a.txt", start) == kind_of(name, b"A line\nof text\n") == ""
    with pytest.raises(TransductError, match=r"x: found .*, expected lines of text; .*; forced"):
        refuse("x", kind, "; forced")
    refuse("x", "")


def test_a_part_of_a_page_is_known_by_its_name_alone():
    assert [kind_of(name, b"\n<p>One.</p>") for name in ("a.html", None)] == [".html", ""]
    assert kind_of("a.html", b"a < b") == ""


def test_json_on_several_lines_in_a_pipe_is_no_list_of_lines():
    assert kind_of(None, b'{\n "a": "b"\n}\n') == ".json"
    assert kind_of(None, b'{"a": "b"}\n') == kind_of("a.jsonl", b'{\n "a": "b"\n}\n') == ".jsonl"


@pytest.mark.parametrize(
    "start", [b"", b"1\n", b"[1] See below.\n", b"{a} b\n", b"<b>a</b>\n", b"msgid a"]
)
def test_lines_of_text_in_a_pipe_are_no_structure(start):
    assert kind_of(None, start) == ""


def test_the_ending_is_that_before_the_compression():
    assert [ending_of(each) for each in ("a.PO.xz", "a.b", "a", "x.gz")] == [".po", ".b", "", ""]
