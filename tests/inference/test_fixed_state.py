"""Fixed buffers with a counter on the device hold the same as growing buffers."""

import sys
from types import SimpleNamespace

import pytest
import torch

from tests.helpers import randomise
from transduct.blocks.attention import (
    Ancestry,
    AttentionPositions,
    KVCache,
    Memory,
    MultiHeadAttention,
)
from transduct.inference import fixed_state
from transduct.inference.fixed_state import FixedAncestry, FixedCache, FixedMemory

D, HEADS, CAPACITY = 16, 4, 40  # more than the growing ones begin with


def counter():
    return torch.zeros(1, dtype=torch.int64)


def fixed(sources, beam, groups, d_k, d_v, time):
    """A cache and a ancestry of fixed buffers, which hold nonsense where nothing has been
    written."""
    buffers = [torch.full((sources, groups, CAPACITY, beam, width), 1e3) for width in (d_k, d_v)]
    writers = torch.full((sources * beam, CAPACITY), -1, dtype=torch.int32)
    own = torch.arange(beam, dtype=torch.int32).repeat(sources)[:, None]
    cache = FixedCache(beam, *buffers, CAPACITY, now=time)
    return cache, FixedAncestry(beam, writers, row_numbers=own, now=time)


@pytest.mark.parametrize("scheme", ["alibi", "relative"])
@pytest.mark.parametrize("prompt", [0, 3])
def test_a_bias_is_shifted_to_the_position_of_the_query(scheme, prompt):
    bias = randomise(AttentionPositions(scheme, 64, HEADS, 6, 6)).bias
    query, time = torch.randn(2, HEADS, 1, 6), counter()
    cache = FixedCache(1, length=8, now=time)
    for length in range(1, 9):  # the query's own token is the last
        time.fill_(length - 1)
        found = cache._position_bias(bias, query, prompt + 8)[..., : prompt + length]
        torch.testing.assert_close(found, bias(query, prompt + length))


@pytest.mark.parametrize("beam", [1, 2])
def test_fixed_buffers_store_what_growing_buffers_store(beam):
    time = counter()
    growing, (cache, _) = KVCache(beam), fixed(4 // beam, beam, 1, 3, 5, time)
    for number in range(CAPACITY):
        key, value = torch.randn(4, 1, 3), torch.randn(4, 1, 5)
        assert torch.equal(cache.positions(4, key.device), growing.positions(4, key.device))
        growing.append(key, value)
        cache.append(key, value)
        time.add_(1)
        for found, expected in zip(cache.tokens(), growing.tokens(), strict=True):
            assert torch.equal(found[:, :, : (number + 1) * beam], expected)
    assert (growing.length, cache.length) == (CAPACITY, CAPACITY)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("prompted", [False, True])
@pytest.mark.parametrize("scheme", [None, "alibi", "relative", "rotary"])
@torch.no_grad()
def test_attention_over_fixed_buffers_is_attention_over_growing_ones(scheme, beam, prompted):
    sources, time = 2, counter()
    rows = sources * beam
    inside = AttentionPositions(scheme, 64, HEADS, 6, 6) if scheme else None
    attention = randomise(MultiHeadAttention(D, HEADS, 6, 6, 2, positions=inside))
    prompt = (
        Memory(torch.randn(sources, 2, 3, 6), torch.randn(sources, 2, 3, 6), None)
        if prompted
        else None
    )
    states = [(KVCache(beam), Ancestry(beam)), fixed(sources, beam, 2, 6, 6, time)]
    for _ in range(CAPACITY):
        x, found = torch.randn(rows, D), []
        chosen = (
            torch.randint(beam, (sources, beam)) + torch.arange(sources)[:, None] * beam
        ).flatten()
        for cache, ancestry in states:
            places = cache.positions(rows, x.device) + (3 if prompted else 0)
            ancestry.grow(rows, x.device)
            found.append(attention.step(x, cache, prompt, places, ancestry))
            ancestry.select(chosen)
        time.add_(1)
        torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_a_kernel_is_given_what_attention_reads(monkeypatch, beam):
    """Here the kernels' formula stands for them."""
    sources, heads, now = 2, 4, counter()

    def over_past(query, keys, values, now, writers, newest):
        found = formula(query, keys, values, now, writers, newest)
        for x, new in zip((keys, values), newest, strict=True):
            x[:, :, int(now)] = new.view(sources, beam, *new.shape[1:]).transpose(1, 2)
        return found.to(query.dtype)

    def over_memory(query, keys, values, lengths):
        return formula(query, keys, values, lengths, None, None).to(query.dtype)

    kernels = SimpleNamespace(over_past=over_past, over_memory=over_memory)
    caches = [fixed(sources, beam, 2, 6, 6, now) for _ in range(2)]
    order = torch.tensor([0, 0, 2, 5, 3, 4] if beam > 1 else [0, 1])
    for _ in range(5):
        key, value, query = (torch.randn(sources * beam, n, 6) for n in (2, 2, heads))
        found = []
        for (cache, ancestry), fast in zip(caches, (False, True), strict=True):
            monkeypatch.setattr(fixed_state, "fast_query", lambda *_, fast=fast: fast)
            monkeypatch.setitem(sys.modules, "transduct.kernels.triton_query", kernels)
            ancestry.grow(sources * beam, key.device)
            cache.append(key, value)
            found.append(cache.attend(query, ancestry))
            ancestry.select(order)
        torch.testing.assert_close(*found)
        now.add_(1)
    memory = torch.randn(sources, 2, 7, 6), torch.randn(sources, 2, 7, 6)
    lengths = torch.tensor([7, 3])
    bias = torch.zeros(sources, 1, 1, 7).masked_fill(
        torch.arange(7) >= lengths[:, None, None, None], float("-inf")
    )
    found = []
    for fast in (False, True):
        monkeypatch.setattr(fixed_state, "fast_query", lambda *_, fast=fast: fast)
        found.append(FixedMemory(*memory, bias, lengths).attend(query))
    torch.testing.assert_close(*found)


def formula(query, keys, values, lengths, writers, newest):
    """Attention of one row after the other to the keys it sees."""
    rows, heads, width = query.shape
    beam, out = rows // len(keys), []
    for row in range(rows):
        source = row // beam
        if writers is None:
            seen = [x[source, :, : int(lengths[source])] for x in (keys, values)]
        else:
            seen = [
                torch.stack(
                    [x[source, :, t, int(writers[row, t])] for t in range(int(lengths))]
                    + [new[row]],
                    1,
                )
                for x, new in zip((keys, values), newest, strict=True)
            ]
        key, value = (x.repeat_interleave(heads // x.shape[0], 0) for x in seen)
        weights = ((key @ query[row][:, :, None]).squeeze(2) * width**-0.5).softmax(1)
        out.append((weights[:, None] @ value).squeeze(1))
    return torch.stack(out)
