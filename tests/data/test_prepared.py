"""A prepared corpus at an address is copied once, whole and checked, and stays while it is used."""

import json
import os
import signal
import time
from hashlib import sha256
from pathlib import Path

import fsspec
import pytest

from tests.data.conftest import PAIRS, Quiet, write
from tests.refusals import refusal
from transduct.data import places
from transduct.data.prepared import folder_of_corpus
from transduct.data.preparing import prepare
from transduct.data.sources import DataConfig

FILES = {"job.json", "tokenizer.source.json", "tokenizer.target.json"}


def contents(folder):
    """The files of a folder by their names below it."""
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(params=["memory://bucket/corpus", "file://{folder}/remote/corpus", "{server}"])
def remote(request, tmp_path, tokenizers, copies, server, small_pieces):
    """The address of a corpus, and a function that changes a file of it."""
    folder = tmp_path / "made"
    data = DataConfig(train=[write(tmp_path, PAIRS)], root=str(tmp_path))
    folder.mkdir()
    prepare(data, *tokenizers, folder / "corpus", str)
    (folder / "corpus.json").unlink()
    for side, tokenizer in zip(("source", "target"), tokenizers):
        tokenizer.save(folder / f"tokenizer.{side}.json")
    (folder / "job.json").write_text(json.dumps({"tokenizer": {"shared": False}}))
    address = request.param.format(folder=tmp_path, server=f"{server[1]}/corpus")
    served = address.replace(server[1], f"file://{server[0]}")

    def change(name, content):
        with fsspec.open(f"{served}/{name}", "wb", auto_mkdir=True) as file:
            file.write(content)
        places.identity.cache_clear()

    for name, content in contents(folder).items():
        change(name, content)
    yield address, change, contents(folder)
    fsspec.filesystem("memory").store.clear()


def test_a_corpus_at_an_address_is_copied_once(remote, monkeypatch):
    address, _, made = remote
    said = []
    folder = folder_of_corpus(f"{address}/", said.append)
    assert said[0].startswith(f"copying the corpus at {address} to {folder}: ")
    assert contents(folder) == made
    assert made.keys() > FILES
    monkeypatch.setattr(places, "_opened", None)  # nothing is read again
    assert folder_of_corpus(address, said.append) == folder
    assert folder_of_corpus(str(folder), said.append) == folder
    assert len(said) == 1


def test_a_changed_corpus_is_copied_anew_and_a_damaged_one_is_refused(remote, copies):
    address, change, made = remote
    shard = "corpus/shard_00001.arrow"
    change(shard, made[shard][:-1] + b"?")
    with refusal(r"shard_00001.arrow: is damaged, or has changed; write it there again"):
        folder_of_corpus(address, str)
    assert not list(copies.rglob("*shard_00001*"))
    other = json.loads(made["corpus/manifest.json"])
    other["files"]["shard_00001.arrow"]["sha256"] = sha256(made[shard][:-1] + b"?").hexdigest()
    before = {path for path in copies.iterdir() if path.is_dir()}
    time.sleep(0.01)  # the time of a file is all that tells
    change("corpus/manifest.json", json.dumps(other).encode())
    folder = folder_of_corpus(address, str)
    assert folder not in before
    assert (folder / shard).read_bytes() == made[shard][:-1] + b"?"


def test_a_killed_copy_counts_as_none(remote, copies, monkeypatch):
    address, _, made = remote
    if not (child := os.fork()):

        def half(stream, file, size):
            content, is_shard = stream.read(), "shard" in file.name
            file.write(content[: len(content) // 2] if is_shard else content)
            if is_shard:
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(places, "copyfileobj", half)
        folder_of_corpus(address, str)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert list(copies.rglob(".shard*.part"))
    folder = folder_of_corpus(address, str)
    assert {name: contents(folder)[name] for name in made} == made


class Counting(Quiet):
    """Notes what is asked of it, and takes its time."""

    asked = []

    def log_message(self, *given):
        self.asked.append(self.requestline)
        time.sleep(0.001)


@pytest.mark.parametrize("server", [Counting], indirect=True)
@pytest.mark.parametrize("remote", ["{server}"], indirect=True)
def test_processes_of_one_machine_copy_once(remote):
    Counting.asked.clear()
    if not (child := os.fork()):
        folder_of_corpus(remote[0], str)
        os._exit(0)
    folder = folder_of_corpus(remote[0], str)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(folder) == remote[2]
    copied = [line for line in Counting.asked if line.startswith("GET")]
    assert len(copied) == len({*copied}) == len(remote[2])


@pytest.mark.parametrize("remote", ["memory://bucket/corpus"], indirect=True)
def test_what_is_no_corpus_is_refused(remote, tmp_path):
    address, change, made = remote
    with refusal("memory://none/corpus/manifest.json: cannot be reached"):
        folder_of_corpus("memory://none", str)
    manifest = json.loads(made["corpus/manifest.json"])
    for name, content in (
        ("corpus/manifest.json", {"files": {"../../a": {"size": 1, "sha256": ""}}}),
        ("corpus/manifest.json", {"files": 1}),
        ("job.json", {"tokenizer": {}}),
    ):
        change("corpus/manifest.json", json.dumps(manifest).encode())
        change(name, json.dumps(content).encode())
        with refusal("corpus: not a corpus that transduct prepare made; give another"):
            folder_of_corpus(address, str)


@pytest.mark.parametrize("remote", ["memory://bucket/corpus"], indirect=True)
def test_copies_take_no_more_room_than_they_may(remote, copies, monkeypatch):
    address, change, made = remote
    size = sum(map(len, made.values()))
    with monkeypatch.context() as patch:
        patch.setenv("TRANSDUCT_CACHE_GB", "1e-6")
        with refusal("corpus: takes .* GB, and copies may take 1e-06 GB; set TRANSDUCT_CACHE_GB"):
            folder_of_corpus(address, str)
    assert not list(copies.rglob("*.arrow"))
    monkeypatch.setenv("TRANSDUCT_CACHE_GB", str(1.5e-9 * size))
    folders = []
    for number in range(3):
        change("corpus/manifest.json", made["corpus/manifest.json"] + b"\n" * number)
        folders.append(folder_of_corpus(address, str))
        old = time.time() - 2 * places.USED
        for path in folders[-1].rglob("*"):
            os.utime(path, (old + number, old + number))
        if number:  # the first is still in use
            os.close(places.IN_USE.pop(folders[-1]))
    assert [folder.exists() for folder in folders] == [True, False, True]
    os.utime(folders[2] / "job.json", (old, old))
    folder_of_corpus(address, str)
    assert (folders[2] / "job.json").stat().st_mtime > time.time() - 60
