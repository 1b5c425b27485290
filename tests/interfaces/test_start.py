"""The program starts soon, and leaves others their cores."""

import gc
import os

import pytest

from transduct.errors import TransductError
from transduct.interfaces import start
from transduct.interfaces.start import load, share_cores


@pytest.mark.parametrize(
    ("asked", "found"), [({}, start.AWAKE), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_do_not_wait_awake_for_long_unless_someone_says_so(monkeypatch, asked, found):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == found


def test_what_comes_with_pytorch_is_not_looked_through_for_garbage(trained_run):
    gc.unfreeze()
    assert load(str(trained_run)).predict(["a b"])
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
    gc.unfreeze()


def test_a_model_that_is_not_there_leaves_the_collector_as_it_was(tmp_path):
    with pytest.raises(TransductError, match="none"):
        load(str(tmp_path / "none"))
    assert gc.isenabled()
    gc.unfreeze()
