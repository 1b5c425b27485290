"""Pages of pictures for the model directory."""

import sys

import numpy as np
import pytest

from transduct.drawing.sheets import pillow, sheet
from transduct.errors import TransductError


def pictures(count):
    return np.random.default_rng(1).integers(0, 256, (count, 6, 6, 3)).astype(np.uint8)


def test_a_page_holds_every_picture_and_its_caption():
    page = sheet([[picture] for picture in pictures(9)], ["a long caption of several words"] * 9)
    assert page.shape[1] > 8 * 128
    bare = sheet([[picture] for picture in pictures(9)])
    assert bare.shape[0] < page.shape[0]
    assert np.array_equal(page[8:134:21, 8:134:21], pictures(9)[0])
    stacked = sheet([pictures(2)])
    assert np.array_equal(stacked[8 + 128 : 8 + 128 + 126 : 21, 8:134:21], pictures(2)[1])


def test_without_pillow_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        TransductError, match=r"Pillow is not installed; run: pip install 'transduct\[vision\]'"
    ):
        pillow()
