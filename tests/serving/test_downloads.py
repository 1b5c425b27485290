"""Documents are found by whoever has their name, for an hour."""

import os
import time

from transduct.serving import downloads
from transduct.serving.downloads import Downloads


def test_servers_with_one_folder_share_documents(tmp_path):
    name = Downloads(tmp_path).keep(b"a", ".docx")
    assert Downloads(tmp_path).find(name) == b"a"
    assert len(name) == 48
    other = Downloads()
    assert other.find(name) is None
    mine = other.keep(b"b", ".md")
    assert (other.find(mine), Downloads(tmp_path).find(mine)) == (b"b", None)
    other.close()
    assert other.find(mine) is None


def test_only_names_of_documents_are_looked_up(tmp_path):
    (tmp_path / "secret.txt").write_bytes(b"x")
    (tmp_path / "kept").mkdir()
    kept = Downloads(tmp_path / "kept")
    name = kept.keep(b"a", ".txt")
    guesses = ("../secret.txt", f"../kept/{name}", name.upper(), "a" * 43 + ".txt", "", "é" * 43)
    assert [kept.find(guess) for guess in guesses] == [None] * 6


def test_old_documents_go_and_others_files_stay(tmp_path, monkeypatch):
    kept = Downloads(tmp_path)
    (tmp_path / "notes").write_bytes(b"mine")
    old, new = kept.keep(b"old", ".txt"), kept.keep(b"new", ".txt")
    past = time.time() - downloads.SECONDS - 1
    os.utime(tmp_path / old, (past, past))
    assert (kept.find(old), kept.find(new)) == (None, b"new")
    kept.keep(b"third", ".txt")
    assert not (tmp_path / old).exists()
    monkeypatch.setattr(downloads, "MOST", 10)
    os.utime(tmp_path / new, (time.time() - 60,) * 2)
    last = kept.keep(b"fourth", ".txt")
    assert {each.name for each in tmp_path.iterdir()} == {"notes", last}
