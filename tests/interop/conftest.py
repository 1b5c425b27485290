"""A published Marian model, written and read once; a reader of pickles without a new process."""

import io
import resource
import subprocess
import warnings
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from tests.interop import published
from transduct.interop import pickled
from transduct.interop.published import read


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A published folder, its model and the names of its tokens; and ours, made of it."""
    path = tmp_path_factory.mktemp("original") / "opus"
    model, named = published.folder(path)
    read(path, path.parent / "ours")
    return path, model, named, path.parent / "ours"


@pytest.fixture
def pickles_here(monkeypatch):
    """Pickles are read in this process, without a bound: a new one takes two seconds to begin."""

    def run(command, env, **_):
        monkeypatch.setenv(pickled.LIMIT, env[pickled.LIMIT])
        with redirect_stderr(io.StringIO()) as errors, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = pickled._main(*map(Path, command[3:]))
        return subprocess.CompletedProcess(command, code, "", errors.getvalue())

    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(subprocess, "run", run)
