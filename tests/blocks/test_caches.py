"""Caches grow seldom, keep the sources that stay, and say whose tokens a row sees."""

import pytest
import torch

from transduct.blocks.caches import Ancestry, KVCache

D, HEADS, CAPACITY = 16, 4, 40  # more than the growing ones begin with


def test_growing_buffers_are_copied_seldom(monkeypatch):
    sizes, grow = [], KVCache.grow
    monkeypatch.setattr(
        KVCache,
        "grow",
        lambda cache, *given: (grow(cache, *given), sizes.append(len(cache.keys[0, 0]))),
    )
    cache = KVCache()
    for _ in range(200):
        cache.append(torch.zeros(1, 1, 3), torch.zeros(1, 1, 5))
    assert sizes == [32, 64, 128, 256]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "kept, still", [([2, 0], 0), ([0, 2, 3], 1), ([0, 1], 2), ([], 0)], ids=str
)
def test_sources_are_kept_in_the_order_asked_for_and_old_buffers_where_autograd_may_need_them(
    kept, still, mode
):
    with mode():
        cache = KVCache(2)
        for _ in range(3):
            cache.append(torch.randn(8, 1, 3), torch.randn(8, 1, 5))
        before = cache.tokens()
        copies = [x.clone() for x in before]
        cache.select(torch.tensor(kept, dtype=torch.int64), still)
        for found, old in zip(cache.tokens(), copies, strict=True):
            assert torch.equal(found, old[kept])
        assert mode is torch.inference_mode or all(map(torch.equal, before, copies))


def test_the_mask_has_the_dtype_that_is_asked_for():
    writers = torch.tensor([[0, 1, -1], [1, 1, -1]], dtype=torch.int32)
    ancestry = Ancestry(2, writers, torch.bfloat16)
    assert ancestry.mask.dtype == torch.bfloat16
    assert (ancestry.mask.view(2, 3, 2) == 0).tolist() == [
        [[True, False], [False, True], [False, False]],
        [[False, True], [False, True], [False, False]],
    ]
