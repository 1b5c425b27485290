"""Files are opened and decompressed whole or refused by name, and broken ones are counted."""

import lzma
import os
from threading import Thread
from unicodedata import normalize

import numpy as np
import pytest

from tests.data.conftest import compress
from tests.refusals import refusal
from transduct.data import files
from transduct.data.files import (
    Refused,
    names_of,
    opened,
    pack,
    require_files,
    unpack,
)
from transduct.data.recordings import SoundSource
from transduct.data.sources import DataConfig, TextSource
from transduct.errors import MissingExtra, TransductError


def test_sources_name_their_files():
    sources = [
        SoundSource("a.tar", "a.tsv"),
        TextSource(pairs="b.tsv", columns=[1]),
        TextSource(text=["c", "d"]),
    ]
    assert names_of(sources) == ["a.tar", "a.tsv", "b.tsv", "c", "d"]


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


def test_a_library_that_is_missing_is_no_files_fault():
    refused = Refused("skip")
    with pytest.raises(MissingExtra, match="Pillow is not installed"), refused.each():
        raise MissingExtra("Pillow is not installed")
    assert not refused.errors


ONE, TWO = b"one" * 3000, b"two"
STREAMS = [lzma.compress(ONE), lzma.compress(TWO)]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("padding", [0, 4, 4096])
def test_an_xz_file_is_read_beyond_its_first_stream(tmp_path, monkeypatch, block, padding):
    monkeypatch.setattr(files, "BLOCK", block)
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


def test_files_that_a_recipe_names_are_looked_for(tmp_path):
    here, gone = TextSource(pairs="here.tsv"), TextSource(pairs="gone.tsv")
    (tmp_path / "here.tsv").touch()
    require_files(DataConfig([here], root=str(tmp_path)))
    # not needed for training
    require_files(DataConfig([here], valid=here, test=gone, root=str(tmp_path)))
    for data in (
        DataConfig([here, gone], root=str(tmp_path)),
        DataConfig([here], valid=gone, root=str(tmp_path)),
    ):
        with refusal(f"^{tmp_path}/gone.tsv: no such file; check the path"):
            require_files(data)


@pytest.mark.parametrize(
    "name, message",
    [
        ("x" * 300, r"x: cannot be read \(File name too long\); check it and its folder"),
        ("here.tsv/deeper", "here.tsv/deeper: no such file; check the path"),
        ("\udcff.tsv", "\ufffd.tsv: its name is not UTF-8; rename it"),
    ],
)
def test_files_that_cannot_be_looked_for_are_said(tmp_path, name, message):
    (tmp_path / "here.tsv").touch()
    (tmp_path / os.fsdecode(b"\xff.tsv")).touch()
    with refusal(message):
        require_files(DataConfig([TextSource(source=name, target=name)], root=str(tmp_path)))


def test_pipes_are_not_trained_on(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    with refusal(r"pipe\.tsv: a pipe, which can be read once; training reads more often: wr"):
        require_files(DataConfig([TextSource(pairs="pipe.tsv")], root=str(tmp_path)))


def test_broken_files_stop_or_are_counted_and_named():
    def broken(number):
        raise TransductError(f"{number}.png: broken")

    expected = r"0\.png: broken; or leave such out with data\.broken=skip"
    with refusal(expected), Refused("stop").each():
        broken(0)
    with refusal(r"^0\.png: broken$"), Refused("stop", advise=False).each():
        broken(0)
    refused = Refused("skip")
    assert refused.summary() == ""
    for number in range(12):
        with refused.each():
            broken(number)
    assert refused.dropped == {"broken": 12}
    assert (
        refused.summary()
        == "".join(f"{number}.png: broken; " for number in range(10)) + "and 2 more"
    )
    said = []
    refused.report(said.append, "training, ")
    refused.trimmed.append("a box")
    refused.report(said.append)
    assert said == [
        f"training, 12 left out: {refused.summary()}",
        f"12 left out: {refused.summary()}",
        "1 kept in part: a box",
    ]


def test_only_errors_that_a_user_can_mend_are_refused():
    with pytest.raises(ZeroDivisionError), Refused("skip").each():
        raise ZeroDivisionError


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 3072])
def test_packed_bytes_come_back(size):
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    words = pack(data)
    assert words.dtype == np.int32
    assert len(words) == (size + 3) // 4
    assert np.array_equal(unpack(words.astype(np.int64), size), data)
    assert np.array_equal(pack(data.tobytes()), words)


def test_packed_numbers_come_back():
    samples = np.array([-32768, 5, 32767], np.int16)
    assert np.array_equal(unpack(pack(samples), 3, np.int16), samples)


def test_labels_are_composed_unless_a_model_tells_their_forms_apart():
    forms = [normalize(form, "긍정") for form in ("NFC", "NFD")]
    assert files.composed_labels(["a", forms[1]]) == ["a", forms[0]]
    assert files.composed_labels(forms) == forms
