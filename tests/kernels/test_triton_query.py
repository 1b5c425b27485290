"""The Triton kernels of one query a row equal their formula, on a GPU or in Triton's
interpreter."""

import pytest
import torch

from tests.kernels.on_triton import DEVICE, passes
from transduct.kernels import triton_query as ours

pytestmark = pytest.mark.gpu
TYPES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# sources, beam, heads, groups, width, depth
SHAPES = [(3, 1, 2, 2, 8, 8), (2, 3, 4, 2, 6, 5), (1, 5, 4, 1, 16, 16), (2, 16, 2, 2, 64, 64)]


def drawn(*shape, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def close(found, expected, dtype):
    error = float((found.double() - expected).norm())
    assert error <= TYPES[dtype] * float(expected.norm())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_a_source_read_its_memory_to_its_own_length(shape, dtype):
    sources, beam, heads, groups, width, depth = shape
    query = drawn(sources * beam, heads, width, dtype=dtype)
    keys = drawn(sources, groups, 80, width, dtype=dtype, seed=2)
    values = drawn(sources, groups, 80, depth, dtype=dtype, seed=3)
    lengths = torch.tensor([70, 1, 13][:sources], device=DEVICE)
    expected = ours.formula(query, keys[..., None, :], values[..., None, :], lengths, None)
    for source, length in enumerate(lengths.tolist()):
        values[source, :, length:] = float("nan")  # what lies beyond is not read
    close(ours.over_memory(query, keys, values, lengths), expected, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("now", [0, 1, 9, 70])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_reads_its_own_past_and_writes_its_newest_token(shape, now, dtype):
    sources, beam, heads, groups, width, depth = shape
    rows = sources * beam
    query = drawn(rows, heads, width, dtype=dtype)
    keys = drawn(sources, groups, 80, beam, width, dtype=dtype, seed=2)
    values = drawn(sources, groups, 80, beam, depth, dtype=dtype, seed=3)
    generator = torch.Generator().manual_seed(4)
    writers = torch.randint(beam, (rows, 80), generator=generator, dtype=torch.int32).to(DEVICE)
    newest = tuple(drawn(rows, groups, n, dtype=dtype, seed=n) for n in (width, depth))
    count = torch.tensor([now], device=DEVICE)
    before = keys.clone(), values.clone()
    for x, new in zip((keys, values), newest, strict=True):
        x[:, :, now] = new.unflatten(0, (sources, beam)).transpose(1, 2)
    writers[:, now] = torch.arange(beam, device=DEVICE).repeat(sources)
    expected = ours.formula(query, keys, values, count.expand(sources) + 1, writers)
    writers[:, now:] = -1
    for x in (keys, values):
        x[:, :, now:] = float("nan")
    found = ours.over_past(query, keys, values, count, writers[:, :75], newest)
    close(found, expected, dtype)
    for x, old, new in zip((keys, values), before, newest, strict=True):
        assert torch.equal(x[:, :, :now], old[:, :, :now])
        assert torch.equal(x[:, :, now].transpose(1, 2).flatten(0, 1), new)
        assert bool(x[:, :, now + 1 :].isnan().all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_its_trial_passes_and_fails_if_the_kernel_is_wrong(dtype, monkeypatch):
    assert passes(ours.trial(DEVICE, dtype))
    launched = ours._launched
    monkeypatch.setattr(ours, "_launched", lambda *given: launched(*given) * 1.1)
    assert not passes(ours.trial(DEVICE, dtype))
