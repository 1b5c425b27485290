"""Members of archives and folders come by name, and what is broken is refused by name."""

import errno
import gzip
import io
import os
import subprocess
import tarfile
import tracemalloc
from unicodedata import normalize

import pyarrow as pa
import pytest

from tests.refusals import refusal
from transduct.data import archives
from transduct.data.archives import read_members
from transduct.data.files import Refused

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


def contents(path, endings=(".png",)):
    """Name and content of each member, all of them read."""
    return [(name, content()) for name, content in read_members(path, endings)]


def kept(path, endings=(".png",)):
    """The names of the members that can be read, and what is said of the others."""
    names, refused = [], Refused("skip")
    for name, content in read_members(path, endings):
        with refused.each():
            content()
            names.append(name)
    return names, refused.errors


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_an_archive_gives_its_files_in_order(tmp_path, ending):
    found = contents(written(tmp_path / f"a{ending}"), (".png",))
    assert found == [("cat/2.png", CONTENT["cat/2.png"]), ("dog/1.PNG", b"one")]


def test_a_folder_gives_its_files_sorted(tmp_path):
    for name, content in CONTENT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.png").mkdir()
    assert [name for name, _ in read_members(tmp_path, (".png",))] == ["cat/2.png", "dog/1.PNG"]


def test_the_files_of_a_folder_come_in_the_order_of_the_parts_of_their_paths(tmp_path):
    names = [
        "a/b/1.png",
        "a/1.png",
        "a b/1.png",
        "a-b.png",
        "a.png",
        "B/.hidden.png",
        "10.png",
        "9.png",
        "\uac00/1.png",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [name for name, _ in read_members(tmp_path, (".png",))] == [
        path.relative_to(tmp_path).as_posix()
        for path in sorted(tmp_path.rglob("*"))
        if path.is_file()
    ]


def test_folders_behind_links_are_read(tmp_path):
    (tmp_path / "pool" / "cats" / "old").mkdir(parents=True)
    (tmp_path / "pool" / "cats" / "1.png").write_bytes(b"one")
    (tmp_path / "pool" / "cats" / "old" / "0.png").write_bytes(b"none")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "cat").symlink_to(tmp_path / "pool" / "cats")
    (tmp_path / "all" / "kitten").symlink_to(tmp_path / "pool" / "cats" / "old")
    names = [(name, content) for name, content in contents(tmp_path / "all")]
    assert names == [("cat/1.png", b"one"), ("cat/old/0.png", b"none"), ("kitten/0.png", b"none")]


def test_a_link_back_to_its_own_folder_is_refused(tmp_path):
    (tmp_path / "all" / "a").mkdir(parents=True)
    (tmp_path / "all" / "b").mkdir()
    (tmp_path / "all" / "a" / "up").symlink_to(tmp_path)
    with refusal(r"all/a/up: a link back to a folder that contains it; remove it"):
        contents(tmp_path / "all")
    (tmp_path / "all" / "a" / "up").unlink()
    (tmp_path / "all" / "a" / "x").symlink_to("../b")
    (tmp_path / "all" / "b" / "y").symlink_to("../a")
    with refusal(r"(a/x/y|b/y/x): a link back to a folder that contains it; remove it"):
        contents(tmp_path / "all")


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    """The error is simulated, since root may read everything."""
    (tmp_path / "all" / "cat").mkdir(parents=True)
    scandir = os.scandir

    def forbidden(path):
        if str(path).endswith("cat"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    message = r"all/cat: cannot be read \(Permission denied\); make it readable, or take it out"
    with refusal(message):
        contents(tmp_path / "all")


def test_what_only_looks_like_a_file_is_refused_by_name(tmp_path):
    (tmp_path / "1.png").write_bytes(b"one")
    (tmp_path / "2.png").symlink_to("gone.png")
    (tmp_path / "dogs").symlink_to(tmp_path / "gone")
    (tmp_path / "notes.txt").symlink_to("gone.txt")
    (tmp_path / "same.png").symlink_to("1.png")
    os.mkfifo(tmp_path / "3.png")
    names, errors = kept(tmp_path)
    assert names == ["1.png", "same.png"]
    assert errors == [
        f"{tmp_path}/2.png: cannot be read (its link leads nowhere); check it and its folder",
        f"{tmp_path}/3.png: not a regular file; remove it",
        f"{tmp_path}/dogs: cannot be read (its link leads nowhere); check it and its folder",
    ]


def test_links_in_an_archive_are_refused_by_name(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "cat/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    os.link(tmp_path / "cat/1.png", tmp_path / "cat/again.png")
    (tmp_path / "cat/link.png").symlink_to("2.png")
    (tmp_path / "cat/link.txt").symlink_to("notes.txt")
    (tmp_path / "dog").symlink_to("cat")
    os.mkfifo(tmp_path / "cat/pipe.png")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("cat", "dog"):
            archive.add(tmp_path / name, name)
    names, errors = kept(tmp_path / "a.tar")
    assert len(names) == 2
    remedy = "expected a file; pack the archive again, with tar --dereference --hard-dereference"
    path = tmp_path / "a.tar"
    hard = [error for error in errors if "'cat/1.png'" in error]  # whichever of the two came second
    assert sorted(set(errors) - set(hard)) == [
        f"{path}: 'cat/link.png': found a link to '2.png', {remedy}",
        f"{path}: 'cat/pipe.png': not a regular file; remove it",
        f"{path}: 'dog': found a link to 'cat', {remedy}",
    ]
    assert len(hard) == 1
    assert hard[0].endswith(remedy)


def test_of_a_name_that_comes_twice_the_second_is_refused(tmp_path):
    """`tar -r` appends a newer file behind the older, which it keeps."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for content in (b"old", b"newer"):
            member = tarfile.TarInfo("./a.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    names, errors = kept(tmp_path / "a.tar")
    assert names == ["a.png"]
    assert errors == [
        f"{tmp_path / 'a.tar'}: './a.png': occurs twice in the archive; pack it again with one copy"
    ]


def test_what_macos_lays_beside_a_file_does_not_count(tmp_path):
    (tmp_path / "cat").mkdir()
    for name in ("1.png", "._1.png", ".hidden.png"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "cat", "cat")
    for place in (tmp_path, tmp_path / "a.tar"):
        assert sorted(name for name, _ in read_members(place, (".png",))) == [
            "cat/.hidden.png",
            "cat/1.png",
        ]


def test_nothing_there_is_said(tmp_path):
    with refusal(r"none\.tar: no such file; check the path"):
        contents(tmp_path / "none.tar", (".png",))


DAMAGED = r"a\.tar.*: (not a whole tar archive|cannot be read) \(.+\); fetch"


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_an_archive_that_ends_anywhere_before_its_end_is_refused(tmp_path, ending):
    path = written(tmp_path / f"a{ending}")
    whole = path.read_bytes()
    needed = 10 * 512 if ending == ".tar" else len(whole)  # the rest of a tar is padding
    for kept in [*range(0, needed, 97), needed - 1]:
        path.write_bytes(whole[:kept])
        with refusal(DAMAGED):
            contents(path, (".png",))


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst"])
def test_what_is_no_archive_is_refused(tmp_path, ending):
    (tmp_path / f"a{ending}").write_bytes(b"hello" * 400)
    with refusal(DAMAGED):
        contents(tmp_path / f"a{ending}", (".png",))


@pytest.mark.parametrize(
    "short, ending", [(".tgz", ".tar.gz"), (".TXZ", ".tar.xz"), (".tzst", ".tar.zst")]
)
def test_short_endings_are_what_they_stand_for(tmp_path, short, ending):
    whole = written(tmp_path / f"a{ending}")
    expected = contents(whole)
    assert len(expected) > 1
    assert contents(whole.rename(tmp_path / f"a{short}")) == expected


@pytest.mark.parametrize(
    "first, kind",
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\x28\xb5\x2f\xfd", "zstandard"),
        (b"PK\x03\x04", "a zip archive"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a\x07", "a rar archive"),
    ],
)
def test_an_archive_of_another_kind_is_named(tmp_path, first, kind):
    (tmp_path / "a.tar").write_bytes(first + b"." * 600)
    message = (
        rf"a\.tar: found {kind}, expected a tar, plain or compressed as its name says "
        r"\(.+\); name it so or pack"
    )
    with refusal(message):
        contents(tmp_path / "a.tar")


def tar_of(count, size=700):
    """A plain archive of this many files, each of a header and two blocks."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for number in range(count):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    return data.getvalue()


HEADER = 3 * 512  # where the second file begins


@pytest.mark.parametrize(
    "damaged, reason",
    [
        (tar_of(3)[:HEADER] + b"X" + tar_of(3)[HEADER + 1 :], r"bad checksum in a header"),
        (
            tar_of(3)[:HEADER] + bytes(512) + tar_of(3)[HEADER + 512 :],
            "data follows the end-of-archive marker",
        ),
        (tar_of(1) + tar_of(2), "data follows the end-of-archive marker"),
    ],
)
def test_damage_within_an_archive_is_not_its_end(tmp_path, damaged, reason):
    (tmp_path / "a.tar").write_bytes(tar_of(3))
    assert len(contents(tmp_path / "a.tar")) == 3
    (tmp_path / "a.tar").write_bytes(damaged)
    with refusal(rf"a\.tar: not a whole tar archive \({reason}\); fetch it again"):
        contents(tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "a.tsv.gz", "a"])
def test_what_is_no_archive_is_told_what_to_give(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress(b"[" * 999) if "gz" in name else b"[" * 999)
    with refusal(r": no tar archive; give one \(.tar, .tar.gz, ..\), or the folder of the files"):
        contents(tmp_path / name)


@pytest.mark.timeout(30)
def test_a_file_that_claims_to_be_huge_takes_no_time(tmp_path):
    member = tarfile.TarInfo("0.png")
    member.size = 1 << 60
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with refusal(r"not a whole tar archive \(it ends within a file\); fetch it again"):
        list(read_members(tmp_path / "a.tar", (".png",)))


def extended(content, kind=tarfile.XHDTYPE, size=None):
    """An extension header of the file after it."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, len(content) if size is None else size
    return member.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


@pytest.mark.parametrize("kind", [b"x", b"g", b"X", b"L", b"K"])
def test_headers_without_end_are_not_read_into_memory(tmp_path, kind):
    (tmp_path / "a.tar").write_bytes(extended(b"", kind, 1 << 40) + tar_of(1))
    with refusal(r"\(a header of 1,099,511,627,776 bytes, at most 1,048,576 are read"):
        contents(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(extended(b"9 path=a\n", kind) * 3000 + tar_of(1))
    with refusal(r"not a whole tar archive \(maximum recursion depth exceeded"):
        contents(tmp_path / "a.tar")


@pytest.mark.parametrize(
    "said", [b"GNU.sparse.map=1,a", b"GNU.sparse.size=1,2", b"hdrcharset=\xff"]
)
def test_a_header_that_says_no_number_is_damage(tmp_path, said):
    (tmp_path / "a.tar").write_bytes(extended(b"%d %s\n" % (len(said) + 4, said)) + tar_of(1))
    with refusal(r"not a whole tar archive \((invalid literal|'utf-8').*; fetch it"):
        contents(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(extended(b"14 path=b.png\n") + tar_of(1))
    assert [name for name, _ in contents(tmp_path / "a.tar")] == ["b.png"], (
        "the headers of this test are not read"
    )


def test_of_an_archive_nothing_but_names_is_remembered_as_it_is_read(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of(2000, size=0))
    tracemalloc.start()
    held = [tracemalloc.get_traced_memory()[0] for _ in read_members(tmp_path / "a.tar", (".png",))]
    tracemalloc.stop()
    assert len(held) == 2000
    assert held[-1] - held[100] < 2000 * 200, "tarfile's own headers would be ten times as much"


def test_a_file_that_may_not_be_read_is_said(tmp_path):
    (tmp_path / "a.png").symlink_to("/proc/self/mem")  # reading it fails, even for root
    with refusal(r"a\.png: cannot be read \(.*\); check it and its folder"):
        contents(tmp_path, (".png",))


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    with tarfile.open(
        tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1"
    ) as archive:
        archive.addfile(tarfile.TarInfo("caf\xe9/1.png"))
        archive.addfile(tarfile.TarInfo("caf\xe9/1.txt"))
    message = (
        "a.tar: 'caf\ufffd/1.png': its name is not UTF-8; rename it, and pack the archive again"
    )
    with refusal(message):
        contents(tmp_path / "a.tar", (".png",))
    [name] = [name for name, _ in read_members(tmp_path / "a.tar", (".png",))]
    assert name == "caf\ufffd/1.png", "it can be written, into a list of what is left out too"
    assert contents(tmp_path / "a.tar", (".wav",)) == []


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_FILE", 1000)
    with refusal(r"a\.tar: '\./cat/2\.png': holds 1,500 bytes, at most 1,000 are read; take"):
        contents(written(tmp_path / "a.tar"), (".png",))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").write_bytes(bytes(1001))
    with refusal(r"b: '1\.png': holds 1,001 bytes"):
        contents(tmp_path / "b", (".png",))


def test_the_control_tar_reads_what_we_write(tmp_path):
    path = written(tmp_path / "a.tar.gz")
    listed = subprocess.run(["tar", "tzf", path], check=True, capture_output=True, text=True).stdout
    assert "./cat/2.png" in listed


def test_names_are_composed_wherever_they_come_from(tmp_path):
    decomposed = normalize("NFD", "고양이/é.png")
    (tmp_path / "folder" / decomposed).parent.mkdir(parents=True)
    (tmp_path / "folder" / decomposed).write_bytes(b"x")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "folder", arcname=".")
    for path in (tmp_path / "folder", tmp_path / "all.tar"):
        [(name, content)] = read_members(path, [".png"])
        assert name == normalize("NFC", decomposed) != decomposed
        assert content() == b"x"
