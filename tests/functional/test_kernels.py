"""The kernels in C are the formulas that stand in for them, whatever the shape; without them there are the formulas."""

import copy
import ctypes

import pytest
import torch

from tests.helpers import tiny, tokens_of
from transduct.blocks.attention import KVCache, Lineage
from transduct.blocks.quantised import FusedDecoderLayer, QuantisedLinear, quantise
from transduct.functional import kernels
from transduct.functional.attention import attention
from transduct.functional.kernels import Packed
from transduct.functional.quantisation import STEPS, int8_linear, quantise_rows
from transduct.functional.segments import Segments

compiled = pytest.mark.skipif(
    kernels.library() is None, reason="kernels.c could not be compiled, or the processor has no AVX512-VNNI"
)


def layer_of(outputs, width, bias=True):
    """Weights, steps and a bias."""
    torch.manual_seed(outputs * 1000 + width)
    weight, steps = quantise_rows(torch.randn(outputs, width))
    return weight, steps, torch.randn(outputs) if bias else None


def product_of(x, weight, steps, bias):
    """The formula, its sums in 64 bits: torch's product of integers is wrong where the width is one."""
    rows, of_rows = quantise_rows(x)
    sums = (rows.long() @ weight.long().T).float() * steps * of_rows[:, None]
    return sums if bias is None else sums + bias


# products of 8-bit integers


@compiled
@pytest.mark.parametrize("width", [1, 3, 16, 37, 64, 512])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_that_of_the_formula(width, bias):
    for outputs in (1, 15, 63, 64, 65, 200):
        layer = layer_of(outputs, width, bias)
        packed = Packed(*layer)
        for rows in (0, 1, 2, 3, 5, 6, 7, 13, 64):
            x = torch.randn(rows, width)
            expected = product_of(x, *layer)
            near = {"rtol": 1e-6, "atol": 1e-6 * float(expected.abs().max()) if rows else 0.0}
            torch.testing.assert_close(packed(x), expected, **near)
            if width > 1:
                torch.testing.assert_close(int8_linear(x, *layer), expected, **near)


@compiled
def test_a_product_is_that_of_the_integers_exactly():
    (weight, steps, _), x = layer_of(70, 37, bias=False), torch.randn(9, 37)
    assert torch.equal(Packed(weight, steps, None)(x), product_of(x, weight, steps, None))


@compiled
def test_rows_of_zeros_huge_and_tiny_rows():
    layer = layer_of(70, 40)
    sizes = torch.tensor([0.0, 1e-30, 1e-13, 1e-6, 1.0, 1e6, 1e30])
    x = torch.randn(7, 40) * sizes[:, None]
    found = Packed(*layer)(x)
    assert torch.equal(found[0], layer[2])
    for one, expected in zip(found, int8_linear(x, *layer), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@compiled
def test_no_row_of_a_packed_product_depends_on_its_neighbours():
    packed, x = Packed(*layer_of(130, 50)), torch.randn(17, 50)
    together = packed(x)
    for number, row in enumerate(x):
        assert torch.equal(packed(row[None])[0], together[number])
    x[1:] *= 1000.0
    assert torch.equal(packed(x)[0], together[0])


@compiled
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
def test_the_largest_integers_do_not_overflow(signs):
    width = 2048
    weight = torch.full((65, width), signs[0] * STEPS, dtype=torch.int8)
    found = Packed(weight, torch.ones(65), None)(torch.full((7, width), float(signs[1] * STEPS)))
    assert (found == signs[0] * signs[1] * STEPS * STEPS * width).all()


@compiled
def test_a_product_takes_rows_that_lie_apart():
    packed, x = Packed(*layer_of(20, 12)), torch.randn(12, 9)
    assert torch.equal(packed(x.T), packed(x.T.contiguous()))
    weight, steps, bias = layer_of(12, 20)
    turned = Packed(weight.T.contiguous().T, steps, bias)
    x = torch.randn(3, 20)
    assert torch.equal(turned(x), Packed(weight, steps, bias)(x))


@compiled
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_number_of_threads_changes_no_bit(rows):
    outputs, width = 1030, 1024
    assert (rows + 3) * outputs * width >= 2**21, "else one thread does it all"
    packed, x = Packed(*layer_of(outputs, width)), torch.randn(rows, width)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found += [packed(x)]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@compiled
def test_the_control_a_product_with_other_steps_differs():
    (weight, steps, bias), x = layer_of(20, 12), torch.randn(3, 12)
    assert not torch.allclose(Packed(weight, steps.flip(0), bias)(x), int8_linear(x, weight, steps, bias))


# the normaliser


@compiled
@pytest.mark.parametrize("size", [1, 15, 16, 17, 32000])
def test_a_normaliser_is_that_of_torch(size):
    torch.manual_seed(size)
    logits = 5.0 * torch.randn(9, size)
    logits[1, ::2] = float("-inf")
    logits[2] = float("-inf")
    logits[3, -1] = 1e30
    logits[4] += 1e6
    logits[5] -= 1e6
    logits[6] = 0.0
    logits[7, -1] = float("inf")
    logits[8, :-1] = float("-inf")
    torch.testing.assert_close(kernels.log_normaliser(logits), logits.logsumexp(-1), rtol=1e-6, atol=2e-6)
    turned = logits.T.contiguous().T
    assert torch.equal(kernels.log_normaliser(turned), kernels.log_normaliser(logits))


@compiled
def test_a_normaliser_of_no_rows_is_empty():
    assert kernels.log_normaliser(torch.empty(0, 7)).shape == (0,)


# attention of a single query a row


def by_hand(query, keys, values, times, lengths=None, slots=None):
    """Each head of each row by the formula, over what it sees gathered one by one."""
    (rows, heads, _), (sources, groups, *_, d_v) = query.shape, values.shape
    out = torch.zeros(rows, heads, d_v)
    for row in range(rows):
        source = row // (rows // sources)
        seen = times if lengths is None else int(lengths[source])
        places = [0] * seen if slots is None else slots[row, :seen].tolist()
        for head in range(heads):
            held = [x[source, head // (heads // groups)] for x in (keys, values)]
            key, value = (torch.stack([x[t, slot] for t, slot in enumerate(places)]) if seen else None for x in held)
            if seen:
                out[row, head] = attention(query[row, head][None], key, value)[0]
    return out


@compiled
@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("d_k, d_v", [(16, 16), (5, 7), (17, 40), (64, 1)])
@pytest.mark.parametrize("seen", ["all", "lengths", "slots"])
def test_attention_of_rows_is_the_formula(heads, groups, d_k, d_v, seen):
    torch.manual_seed(1)
    sources, beam, width, room = 3, 2, 2, 40
    query = torch.randn(sources * beam, heads, d_k)
    keys, values = (torch.randn(sources, groups, room, width, d) for d in (d_k, d_v))
    for times in (1, 15, 16, 33):
        lengths = torch.tensor([times, 0, (times + 1) // 2]) if seen == "lengths" else None
        slots = torch.randint(width, (len(query), times), dtype=torch.int32) if seen == "slots" else None
        found = kernels.rows_attention(query, keys, values, times, lengths, slots)
        torch.testing.assert_close(
            found, by_hand(query, keys, values, times, lengths, slots), atol=2e-6, rtol=2e-5, msg=f"{times} times"
        )


@compiled
def test_attention_over_nothing_is_zero():
    query, keys = torch.randn(2, 4, 5), torch.randn(2, 4, 3, 1, 5)
    assert not kernels.rows_attention(query, keys, keys, 3, torch.tensor([0, 0])).any()
    assert not kernels.rows_attention(query, keys[:, :, :0].contiguous(), keys[:, :, :0].contiguous(), 0).any()


@compiled
def test_a_query_may_be_a_part_of_longer_rows():
    torch.manual_seed(1)
    whole = torch.randn(4, 100)
    query = whole[:, :24].unflatten(1, (3, 8))
    assert query.stride(0) == 100
    keys, values = torch.randn(2, 3, 6, 2, 8), torch.randn(2, 3, 6, 2, 5)
    expected = kernels.rows_attention(query.contiguous(), keys, values, 5)
    assert torch.equal(kernels.rows_attention(query, keys, values, 5), expected)


@compiled
def test_scores_far_apart_do_no_harm():
    query, keys, values = torch.ones(1, 1, 4), torch.zeros(1, 1, 3, 1, 4), torch.randn(1, 1, 3, 1, 4)
    keys[0, 0, 1] = 1e4
    torch.testing.assert_close(kernels.rows_attention(query, keys, values, 3), values[:, :, 1, 0])
    keys[0, 0, :2] = -1e4
    torch.testing.assert_close(kernels.rows_attention(query, keys, values, 3), values[:, :, 2, 0])


@compiled
def test_the_control_other_slots_are_seen():
    query, keys = torch.randn(2, 1, 4), torch.randn(1, 1, 6, 2, 4)
    slots = torch.tensor([[0] * 6, [1] * 6], dtype=torch.int32)
    one, other = (kernels.rows_attention(query, keys, keys, 6, slots=each) for each in (slots, 1 - slots))
    assert not torch.isclose(one, other).any()


# a decoder layer in one call


def decoder_layers(**changes):
    """A quantised decoder layer as it is read, and the same in one call."""
    model = tiny(decoder_layers=1, positions="none", **changes)
    quantise(model)
    plain = model.decoder[0]
    fused = copy.deepcopy(plain)
    for module in fused.modules():
        if isinstance(module, QuantisedLinear):
            module.pack()
    packed = FusedDecoderLayer.packed_of(fused)
    assert packed is not None
    return plain, FusedDecoderLayer(fused, packed)


def apart(layers, beam, spoil=lambda lineage: lineage):
    """How far two layers are apart in each row of 20 steps, with rows exchanged and sources dropped meanwhile."""
    torch.manual_seed(1)
    lengths = [3, 1, 20, 4]
    memory = layers[0].cross_attention.remember(torch.randn(sum(lengths), 16), Segments.of(lengths))
    memories, caches, lineage, sources = [memory, memory], [KVCache(beam), KVCache(beam)], Lineage(beam), 4
    found = []
    for number in range(20):
        x = torch.randn(sources * beam, 16)
        lineage.grow(len(x), x.device)
        lineages = lineage, spoil(copy.copy(lineage))
        one, other = (
            layer.step(x, cache, memory, each)
            for layer, cache, memory, each in zip(layers, caches, memories, lineages, strict=True)
        )
        found += ((one - other).norm(dim=1) / one.norm(dim=1)).tolist()
        if number in (7, 17):
            kept = torch.tensor([2, 0, 1] if number == 7 else [1, 2])
            for cache in caches:
                cache.select(kept)
            memories = [memory.select(kept) for memory in memories]
            sources = len(kept)
            lineage.select((kept[:, None] * beam + torch.arange(beam)).flatten())
        chosen = torch.randint(beam, (sources, beam)) + torch.arange(sources)[:, None] * beam
        lineage.select(chosen.flatten())
    assert caches[0].length == caches[1].length == 20
    return torch.tensor(found)


@compiled
@torch.inference_mode()
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"norm_kind": "rms"}, {"num_kv_heads": 2, "d_k": 5, "d_v": 7}, {"num_kv_heads": 1, "d_ff": 37}],
    ids=["layer", "rms", "grouped, odd widths", "one group, an odd width inside"],
)
def test_a_layer_in_one_call_is_the_layer(monkeypatch, shape, norm, beam):
    layers = decoder_layers(norm=norm, **shape)
    monkeypatch.setattr(kernels, "usable", lambda *_: False)  # the other layer takes the formulas
    found = apart(layers, beam)
    assert found.median() < 2e-6
    assert found.max() < 0.05, "a number on the border between two integers may fall on the other side"


@compiled
@torch.inference_mode()
def test_the_control_swapped_slots_are_another_layer(monkeypatch):
    def swapped(lineage):
        lineage.slots = (lineage.slots + 1) % 3
        return lineage

    layers = decoder_layers()
    monkeypatch.setattr(kernels, "usable", lambda *_: False)
    assert apart(layers, 3, swapped).median() > 0.05


@compiled
@torch.inference_mode()
def test_what_a_layer_is_given_stays():
    layer = decoder_layers()[1]
    x, memory = torch.randn(2, 16), layer.cross_attention.remember(torch.randn(3, 16), Segments.of([1, 2]))
    before = x.clone()
    layer.step(x, KVCache(), memory, Lineage())
    assert torch.equal(x, before)


@compiled
@torch.inference_mode()
def test_a_layer_in_one_call_is_the_layer_at_once_too():
    plain, fused = decoder_layers()
    (_, segments), (_, memory_segments) = tokens_of([3, 2]), tokens_of([4, 1])
    x, memory = torch.randn(5, 16), torch.randn(5, 16)
    expected = plain(x, segments, memory, memory_segments)
    assert (fused(x, segments, memory, memory_segments) - expected).norm() < 0.05 * expected.norm()


# without the library


class Stranger:
    """A library for a processor that this one is not."""

    def __init__(self, path):
        self.path = path

    def supported(self):
        return 0


def test_where_nothing_was_compiled_there_is_no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    assert kernels.library.__wrapped__() is None


def test_where_the_processor_lacks_instructions_there_is_no_library(monkeypatch, tmp_path):
    (tmp_path / "_kernels.so").touch()
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    monkeypatch.setattr(ctypes, "CDLL", Stranger)
    assert kernels.library.__wrapped__() is None


def test_without_a_library_nothing_is_usable(monkeypatch):
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert not kernels.usable()
    assert not kernels.usable(torch.ones(1))


@compiled
def test_the_kernels_are_for_float32_on_a_cpu():
    assert kernels.usable(torch.ones(1), torch.ones(2))
    assert not kernels.usable(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not kernels.usable(torch.ones(1, dtype=torch.float64))
    assert not kernels.usable(torch.ones(1, device="meta"))
