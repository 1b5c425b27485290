"""Files of a recipe are found by patterns and at addresses; copies of the latter are bounded."""

import errno
import gzip
import os
import sys
import time
from types import SimpleNamespace

import fsspec
import pytest

from tests.data.conftest import PAIRS, Quiet, write
from tests.refusals import refusal
from transduct.data import places
from transduct.data.places import identity, matching, path_of
from transduct.data.preparing import prepare
from transduct.data.sources import DataConfig, TextSource
from transduct.data.suspicions import suspicions
from transduct.data.text import read_examples, read_pairs
from transduct.errors import MissingExtra

pytestmark = pytest.mark.usefixtures("copies")


def lines(pairs):
    return "".join(f"{a}\t{b}\n" for a, b in pairs)


def read(source, root):
    return [pair for chunk in read_pairs(source, root) for pair in chunk]


def test_a_pattern_and_a_folder_stand_for_files_in_order(tmp_path):
    (tmp_path / "all" / "below").mkdir(parents=True)
    names = ["all/b.tsv", "all/a.tsv", "all/below/c.tsv"]
    for place, name in enumerate(names):
        (tmp_path / name).write_text(lines(PAIRS[place : place + 1]))
    (tmp_path / "all" / "notes.md").write_text("no pairs")
    assert matching(tmp_path, "all/*.tsv") == ["all/a.tsv", "all/b.tsv"]
    expected = [PAIRS[1], PAIRS[0], PAIRS[2]]
    assert read(TextSource(pairs="all/"), tmp_path) == expected
    assert read(TextSource(pairs="all/**/*.tsv"), tmp_path) == expected
    assert read_examples(TextSource(pairs="all/"), tmp_path)[0] == [one for one, _ in expected]
    (tmp_path / names[2]).write_text("source\ttarget\n")
    (warning,) = suspicions(TextSource(pairs="all/"), tmp_path)
    assert warning.startswith(f"{tmp_path}/all/below/c.tsv:1: the first row (source, target) looks")
    (tmp_path / "odd[1].tsv").write_text(lines(PAIRS[:1]))
    assert matching(tmp_path, "odd[1].tsv") == ["odd[1].tsv"]
    with refusal(r"none\*: no file matches; correct the pattern \(it starts at data.root\)"):
        matching(tmp_path, "none*")


def test_patterns_of_aligned_text_match_as_many_files_of_each_side(tmp_path):
    for name in "xy":
        write(tmp_path, PAIRS[:3], name)
    source = TextSource(source="*.s", target="*.t")
    assert source.expanded(tmp_path).files() == ["x.s", "y.s", "x.t", "y.t"]
    assert read(source, tmp_path) == PAIRS[:3] * 2
    (tmp_path / "y.t").unlink()
    with refusal(r"\*.s, \*.t: the patterns match 2 source and 1 target files; give as many of"):
        read(source, tmp_path)


def test_a_corpus_at_addresses_is_that_of_the_files(server, tmp_path, tokenizers):
    folder, address = server
    write(folder, PAIRS)
    (folder / "b.tsv.gz").write_bytes(gzip.compress(lines(PAIRS[:9]).encode()))
    memory = fsspec.filesystem("memory")
    memory.pipe({"/x/a.jsonl": b'{"source": "a b", "target": "c"}\n'})
    corpora = []
    for places_of in (
        [f"{address}/a.s", f"{address}/a.t", f"{address}/b.tsv.gz", "memory://x/*.jsonl"],
        ["served/a.s", "served/a.t", "served/b.tsv.gz", "a.jsonl"],
    ):
        (tmp_path / "a.jsonl").write_bytes(memory.cat("/x/a.jsonl"))
        train = [
            TextSource(source=places_of[0], target=places_of[1]),
            TextSource(pairs=places_of[2]),
            TextSource(pairs=places_of[3]),
        ]
        data = DataConfig(train=train, root=str(tmp_path))
        made = prepare(data, *tokenizers, tmp_path / f"corpus{len(corpora)}", str)
        corpora.append((made.directory / "shard_00000.arrow").read_bytes())
    assert corpora[0] == corpora[1]
    memory.rm("/x", recursive=True)


def test_a_copy_is_made_once_and_anew_when_the_content_changes(server, tmp_path):
    folder, address = server
    (folder / "a.tsv").write_text("one\n")
    first = path_of(tmp_path, f"{address}/a.tsv")
    assert (first.name, first.read_text()) == ("a.tsv", "one\n")
    first.write_text("kept")
    assert path_of(tmp_path, f"{address}/a.tsv").read_text() == "kept"
    (folder / "a.tsv").write_text("other\n")
    identity.cache_clear()
    assert path_of(tmp_path, f"{address}/a.tsv").read_text() == "other\n"


def test_copies_used_longest_ago_make_room(server, copies, tmp_path, monkeypatch):
    folder, address = server
    monkeypatch.setenv("TRANSDUCT_CACHE_GB", "2e-8")
    for number, name in enumerate("abcd"):
        (folder / name).write_bytes(b"x" * 10)
        made = path_of(tmp_path, f"{address}/{name}")
        if name != "c":  # which is in use
            os.utime(made, (time.time() - 2 * places.USED + number,) * 2)
    assert sorted(path.name for path in copies.glob("*/*")) == ["c", "d"]
    monkeypatch.setenv("TRANSDUCT_CACHE_GB", "ten")
    (folder / "e").write_bytes(b"x")
    with refusal("TRANSDUCT_CACHE_GB is no number; give gigabytes, such as 100"):
        path_of(tmp_path, f"{address}/e")


class OnlyGet(Quiet):
    """Refuses to describe a file, and ends the one named "cut" early."""

    def do_HEAD(self):
        self.send_error(405)

    def send_header(self, name, value):
        cut = self.path == "/cut" and name == "Content-Length"
        super().send_header(name, int(value) + 5 if cut else value)


@pytest.mark.parametrize("server", [OnlyGet], indirect=True)
def test_a_server_that_only_gives_files_is_read(server, tmp_path):
    folder, address = server
    for content in ("one\n", "other\n"):
        (folder / "a.tsv").write_text(content)
        identity.cache_clear()
        assert path_of(tmp_path, f"{address}/a.tsv").read_text() == content


def test_a_full_disk_is_no_matter_of_the_address(server, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "no room")

    (server[0] / "a.tsv").write_text("one\n")
    monkeypatch.setattr(places, "copyfileobj", full)
    with refusal(r"/a\.tsv: the disk is full; nothing was changed there: free some space"):
        path_of(tmp_path, f"{server[1]}/a.tsv")


@pytest.mark.parametrize("server", [OnlyGet], indirect=True)
def test_a_copy_that_ends_early_is_none(server, copies, tmp_path):
    folder, address = server
    (folder / "cut").write_text("one\n")
    with refusal("/cut: ends after 4 of 9 bytes; run the command again"):
        path_of(tmp_path, f"{address}/cut")
    assert not list(copies.glob("*/*"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{server}/none.tsv", "none.tsv: cannot be reached .*File not found.*; check the address"),
        ("http://127.0.0.1:1/a.tsv", "a.tsv: cannot be reached .*; check the address"),
        ("memory://x/none.tsv", "none.tsv: cannot be reached"),
        ("memory://none/*.tsv", "no file matches; correct the pattern"),
        ("ftq://a/b.tsv", "unknown kind of address .*; known are https, s3, gs and hf"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(address, message, server, tmp_path):
    source = TextSource(pairs=address.format(server=server[1]))
    with refusal(message):
        read(source, tmp_path)


def test_errors_that_only_a_library_knows_are_those_of_the_address(tmp_path, monkeypatch):
    """Such as botocore's for missing credentials."""

    class BotoCoreError(Exception):
        pass

    def unable(*_):
        raise BotoCoreError("Unable to\nlocate credentials")

    library = SimpleNamespace(BotoCoreError=BotoCoreError)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", library)
    monkeypatch.setattr(places, "_system", unable)
    message = (
        r"a.tsv: cannot be reached \(Unable to locate credentials\); check the address and your "
    )
    with refusal(message):
        path_of(tmp_path, "s3://bucket/a.tsv")
    monkeypatch.delitem(sys.modules, "botocore.exceptions")
    with pytest.raises(BotoCoreError):
        path_of(tmp_path, "s3://bucket/a.tsv")


def test_a_missing_library_is_named_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r"s3fs .*; run: pip install 'transduct\[remote\]'"):
        path_of(tmp_path, "s3://bucket/a.tsv")
