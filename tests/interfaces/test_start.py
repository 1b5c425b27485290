"""The program starts fast."""

import gc

import pytest

from transduct.errors import TransductError
from transduct.interfaces.start import load


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
