"""A published Marian model, written and read once."""

import pytest

from tests.interop import published
from transduct.interop.published import read


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A published folder, its model and the names of its tokens; and ours, made of it."""
    path = tmp_path_factory.mktemp("original") / "opus"
    model, named = published.folder(path)
    read(path, path.parent / "ours")
    return path, model, named, path.parent / "ours"
