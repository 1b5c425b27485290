"""Members of archives and folders come by name, and what is broken is refused by name."""

import io
import lzma
import subprocess
import tarfile

import numpy as np
import pyarrow as pa
import pytest

from transduct.data import files
from transduct.data.files import Refused, opened, pack, read_members, require_files, unpack
from transduct.data.sources import DataConfig, TextSource
from transduct.errors import TransductError

CONTENT = {"cat/2.png": b"two" * 500, "dog/1.PNG": b"one", "cat/notes.txt": b"no"}


def written(path):
    """An archive of the content, compressed as its name says."""
    data = io.BytesIO()
    mode = {".gz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(fileobj=data, mode=mode) as archive:
        folder = tarfile.TarInfo("./cat")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in CONTENT.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    held = data.getvalue()
    path.write_bytes(pa.compress(held, "zstd", asbytes=True) if path.suffix == ".zst" else held)
    return path


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_an_archive_gives_its_files_in_order(tmp_path, ending):
    found = list(read_members(written(tmp_path / f"a{ending}"), (".png",)))
    assert found == [("cat/2.png", CONTENT["cat/2.png"]), ("dog/1.PNG", b"one")]


def test_a_folder_gives_its_files_sorted(tmp_path):
    for name, content in CONTENT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.png").mkdir()
    assert [name for name, _ in read_members(tmp_path, (".png",))] == ["cat/2.png", "dog/1.PNG"]


def test_nothing_there_is_said(tmp_path):
    with pytest.raises(TransductError, match=r"none\.tar: no such file; a relative path in a recipe"):
        list(read_members(tmp_path / "none.tar", (".png",)))


DAMAGED = r"a\.tar.*: (not a whole tar archive|cannot be read) \(.+\); fetch"


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_an_archive_that_ends_anywhere_before_its_end_is_refused(tmp_path, ending):
    path = written(tmp_path / f"a{ending}")
    whole = path.read_bytes()
    needed = 10 * 512 if ending == ".tar" else len(whole)  # the rest of a tar is padding
    for kept in [*range(0, needed, 97), needed - 1]:
        path.write_bytes(whole[:kept])
        with pytest.raises(TransductError, match=DAMAGED):
            list(read_members(path, (".png",)))


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_what_is_no_archive_is_refused(tmp_path, ending):
    (tmp_path / f"a{ending}").write_bytes(b"hello" * 400)
    with pytest.raises(TransductError, match=DAMAGED):
        list(read_members(tmp_path / f"a{ending}", (".png",)))


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
        pytest.raises(TransductError, match=rf"a\.xz: cannot be read \({reason}\); fetch or write the file again"),
        opened(path) as stream,
    ):
        stream.read()


def test_files_that_a_recipe_names_are_looked_for(tmp_path):
    here, gone = TextSource(pairs="here.tsv"), TextSource(pairs="gone.tsv")
    (tmp_path / "here.tsv").touch()
    require_files(DataConfig([here], root=str(tmp_path)))
    require_files(DataConfig([here], valid=here, test=gone, root=str(tmp_path)))  # not needed for training
    for data in (DataConfig([here, gone], root=str(tmp_path)), DataConfig([here], valid=gone, root=str(tmp_path))):
        with pytest.raises(TransductError, match=f"^{tmp_path}/gone.tsv: no such file; a relative path in a recipe"):
            require_files(data)


def test_a_file_that_may_not_be_read_is_said(tmp_path):
    (tmp_path / "a.png").symlink_to("/proc/self/mem")  # reading it fails, even for root
    with pytest.raises(TransductError, match=r"a\.png: cannot be read \(.*\); check it and its folder"):
        list(read_members(tmp_path, (".png",)))


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        archive.addfile(tarfile.TarInfo("caf\xe9/1.png"))
        archive.addfile(tarfile.TarInfo("caf\xe9/1.txt"))
    message = "a.tar: 'caf\ufffd/1.png': its name is not UTF-8; rename it, and pack the archive again"
    with pytest.raises(TransductError, match=message):
        list(read_members(tmp_path / "a.tar", (".png",)))
    assert list(read_members(tmp_path / "a.tar", (".wav",))) == []


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1000)
    with pytest.raises(
        TransductError, match=r"a\.tar: '\./cat/2\.png': holds 1,500 bytes, at most 1,000 are read; take"
    ):
        list(read_members(written(tmp_path / "a.tar"), (".png",)))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").write_bytes(bytes(1001))
    with pytest.raises(TransductError, match=r"b: '1\.png': holds 1,001 bytes"):
        list(read_members(tmp_path / "b", (".png",)))


def test_broken_files_stop_or_are_counted_and_named():
    def broken(number):
        raise TransductError(f"{number}.png: broken")

    expected = r"0\.png: broken; or leave such files out with data\.broken=skip"
    with pytest.raises(TransductError, match=expected), Refused("stop").each():
        broken(0)
    with pytest.raises(TransductError, match=r"^0\.png: broken$"), Refused("stop", advise=False).each():
        broken(0)
    refused = Refused("skip")
    assert refused.said() == ""
    for number in range(5):
        with refused.each():
            broken(number)
    assert refused.dropped == {"broken": 5}
    assert refused.said() == "0.png: broken; 1.png: broken; 2.png: broken; and 2 more"


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


def test_the_control_tar_reads_what_we_write(tmp_path):
    path = written(tmp_path / "a.tar.gz")
    listed = subprocess.run(["tar", "tzf", path], check=True, capture_output=True, text=True).stdout
    assert "./cat/2.png" in listed
