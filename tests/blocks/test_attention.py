"""Multi-head attention equals torch's, and stepwise attention equals attention over whole
sequences."""

import pytest
import torch
from torch import nn

from tests.helpers import VECTORS, compiled, gradients, randomise
from transduct.blocks.attention import (
    CLIP,
    Ancestry,
    AttentionPositions,
    KVCache,
    MultiHeadAttention,
    self_attention,
    standing_still,
)
from transduct.segments import Segments, flatten, pad

D, HEADS = 16, 4
SCHEMES = ["rotary", "alibi", "relative", *VECTORS]


def copied(theirs):
    """Our layer with the weights of a `torch.nn.MultiheadAttention`."""
    ours = MultiHeadAttention(D, HEADS)
    with torch.no_grad():
        parts = zip(
            (ours.query, ours.key, ours.value),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
        )
        for part, weight, bias in parts:
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    return ours


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_outputs_and_gradients_are_torchs(kind):
    queries = Segments.of([3, 1, 5])
    keys = Segments.of([2, 4, 1]) if kind == "cross" else queries
    theirs = randomise(nn.MultiheadAttention(D, HEADS, batch_first=True))
    ours = copied(theirs)
    x, memory = (
        torch.randn(queries.total, D, requires_grad=True),
        torch.randn(keys.total, D, requires_grad=True),
    )

    if kind == "cross":
        found, source = ours.cross(x, queries, memory, keys), memory
    else:
        found, source = ours(x, queries, causal=kind == "causal"), x
    future = torch.ones(5, 5, dtype=torch.bool).triu(1) if kind == "causal" else None
    dense = pad(source, keys)
    expected = flatten(theirs(pad(x, queries), dense, dense, ~keys.mask, False, future)[0], queries)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    inputs = [x, memory] if kind == "cross" else [x]
    mine = gradients(found, [*inputs, *ours.parameters()])
    *reference, weight, bias, output_weight, output_bias = gradients(
        expected, [*inputs, *theirs.parameters()]
    )
    weights, biases = weight.chunk(3), bias.chunk(3)
    reference += [part for pair in zip(weights, biases) for part in pair] + [
        output_weight,
        output_bias,
    ]
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["none", "sinusoidal", "rotary", "alibi", "relative"])
def test_self_attention_has_the_positions_that_act_inside_it(scheme):
    attention = self_attention(D, HEADS, scheme, 12)
    assert (attention.d_k, attention.d_v) == (D // HEADS, D // HEADS)
    assert (attention.positions and attention.positions.scheme) == (
        scheme if scheme in SCHEMES[:3] else None
    )


def test_grouped_heads_are_full_heads_with_repeated_keys_and_values():
    segments, x = Segments.of([3, 4]), torch.randn(7, D)
    grouped = randomise(MultiHeadAttention(D, HEADS, num_kv_heads=2))
    full = MultiHeadAttention(D, HEADS)
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        state[name] = state[name].unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(x, segments), full(x, segments))


def test_widths_of_keys_and_values_are_free():
    attention = MultiHeadAttention(D, HEADS, d_k=3, d_v=5, num_kv_heads=2)
    shapes = {name: tuple(p.shape) for name, p in attention.named_parameters() if "weight" in name}
    assert shapes == {
        "query.weight": (12, D),
        "key.weight": (6, D),
        "value.weight": (10, D),
        "output.weight": (D, 20),
    }
    assert attention(torch.randn(7, D), Segments.of([3, 4])).shape == (7, D)


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@torch.no_grad()
def test_a_token_at_a_time_equals_all_at_once(scheme):
    # longer than what a cache holds at first, and than the reach of no scheme
    rows, length, d_k, d_v = (3, 20, 32, 40)
    positions = AttentionPositions(scheme, 32, HEADS, d_k, d_v) if scheme else None
    attention = randomise(MultiHeadAttention(D, HEADS, d_k, d_v, 2, positions=positions))
    x, cache = torch.randn(rows, length, D), KVCache()
    steps = torch.stack([attention.step(token, cache) for token in x.unbind(1)], 1)
    at_once = attention(x.flatten(0, 1), Segments.of([length] * rows), causal=True)
    torch.testing.assert_close(steps.flatten(0, 1), at_once, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("lengths", [[3, 0, 20], [4, 4], [0, 0]], ids=str)
@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@torch.no_grad()
def test_the_rows_of_a_source_go_on_from_its_prompt(scheme, lengths):
    beam, count, d_k, d_v = 3, 18, 40, 44  # longer than what a cache holds at first
    positions = AttentionPositions(scheme, 40, HEADS, d_k, d_v) if scheme else None
    attention = randomise(MultiHeadAttention(D, HEADS, d_k, d_v, 2, positions=positions))
    prompts, rows = (
        torch.randn(sum(lengths), D).split(lengths),
        torch.randn(len(lengths) * beam, count, D),
    )
    prompt = attention.remember_prompt(torch.cat(prompts), Segments.of(lengths))
    assert prompt.keys.shape == (len(lengths), 2, max(lengths), d_k)
    cache, ancestry, places = (
        KVCache(beam),
        Ancestry(beam),
        torch.tensor(lengths).repeat_interleave(beam),
    )
    steps = []
    for t, token in enumerate(rows.unbind(1)):
        ancestry.grow(len(rows), token.device)
        steps.append(attention.step(token, cache, prompt, places + t, ancestry))
    for number, row in enumerate(rows):
        whole = torch.cat((prompts[number // beam], row))
        at_once = attention(whole, Segments.of([len(whole)]), causal=True)[-count:]
        found = torch.stack([step[number] for step in steps])
        torch.testing.assert_close(found, at_once, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_prompt_may_be_kept_for_some_sources_alone():
    attention, lengths = randomise(MultiHeadAttention(D, HEADS)), [3, 0, 2]
    prompt = attention.remember_prompt(torch.randn(5, D), Segments.of(lengths))
    x, places = torch.randn(6, D), torch.tensor(lengths).repeat_interleave(2)
    ancestries = Ancestry(2), Ancestry(2)
    for ancestry, rows in zip(ancestries, (6, 4), strict=True):
        ancestry.grow(rows, x.device)
    expected = attention.step(x, KVCache(2), prompt, places, ancestries[0])
    kept = torch.tensor([4, 5, 0, 1])
    chosen = prompt.select(torch.tensor([2, 0]))
    found = attention.step(x[kept], KVCache(2), chosen, places[kept], ancestries[1])
    torch.testing.assert_close(found, expected[kept])


@torch.no_grad()
def test_the_rows_of_a_source_recall_its_memory():
    attention, beam = randomise(MultiHeadAttention(D, HEADS, d_v=5, num_kv_heads=2)), 2
    lengths = [3, 1, 4]
    memory, x = torch.randn(8, D), torch.randn(len(lengths) * beam, D)
    remembered = attention.remember(memory, Segments.of(lengths))
    of_rows = Segments.of([beam] * len(lengths))
    expected = attention.cross(x, of_rows, memory, Segments.of(lengths))
    torch.testing.assert_close(attention.recall(x, remembered), expected)
    kept = attention.recall(x[[4, 5, 0, 1]], remembered.select(torch.tensor([2, 0])))
    torch.testing.assert_close(kept, expected[[4, 5, 0, 1]])


@pytest.mark.parametrize("trained", [["query"], ["key", "value"]])
def test_gradients_reach_what_is_trained_alone_a_token_at_a_time_too(trained):
    attention = randomise(MultiHeadAttention(D, HEADS)).requires_grad_(False)
    for name in trained:
        getattr(attention, name).requires_grad_(True)
    memory, x, one_token = torch.randn(3, D), torch.randn(1, D), Segments.of([1])
    recalled = attention.recall(x, attention.remember(memory, Segments.of([3])))
    stepped = attention.step(x, KVCache())
    again, at_once = (
        attention.cross(x, one_token, memory, Segments.of([3])),
        attention(x, one_token, causal=True),
    )
    parameters = [p for name in trained for p in getattr(attention, name).parameters()]
    for found, expected in ((recalled, again), (stepped, at_once)):
        for one, other in zip(
            gradients(found, parameters), gradients(expected, parameters), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beam", [1, 2])
def test_a_cache_holds_what_it_was_given_through_growth_and_selection(beam):
    tokens = torch.randn(40, 2, 4, 1, 3)  # key and value of each of four rows
    sources = 4 // beam
    cache, given = KVCache(beam), tokens[:0].view(0, 2, sources, beam, 1, 3)
    for token in tokens:
        given = torch.cat((given, token.view(1, 2, sources, beam, 1, 3)))
        cache.append(*token)
        held = torch.stack(cache.tokens())  # (2, B, G, t * beam, K)
        assert torch.equal(held, given.permute(1, 2, 4, 0, 3, 5).flatten(3, 4))
        if cache.length in (5, 17):
            kept = torch.tensor([1, 0, 3, 2] if beam == 1 else [1, 0])
            cache.select(kept)
            given = given[:, :, kept]
    assert cache.length == 40


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("kept", [[0, 1], [0, 2, 3], [3, 1], [0, 1, 2, 3], [2, 2, 0]])
def test_removed_sources_do_not_change_the_others(kept, inference):
    with torch.inference_mode(inference):
        cache, kept = KVCache(2), torch.tensor(kept)
        for _ in range(3):
            cache.append(torch.randn(8, 1, 3), torch.randn(8, 1, 5))
        before, buffers = (
            [held.clone() for held in cache.tokens()],
            [buffer.data_ptr() for buffer in cache.buffers],
        )
        cache.select(kept, standing_still(kept))
        for found, given in zip(cache.tokens(), before, strict=True):
            assert torch.equal(found, given[kept])
        assert [buffer.data_ptr() == place for buffer, place in zip(cache.buffers, buffers)] == [
            inference
        ] * 2
        assert all(buffer.is_contiguous() for buffer in cache.buffers)


def test_leading_sources_that_are_kept_stand_still():
    assert [standing_still(torch.tensor(kept)) for kept in ([], [0, 1], [0, 2], [1], [1, 1])] == [
        0,
        2,
        1,
        0,
        0,
    ]


def test_gradients_go_through_a_cache_whose_sources_went():
    attention, tokens, kept = randomise(MultiHeadAttention(D, HEADS)), torch.randn(3, 4, D), [3, 1]
    cache, alone = KVCache(), KVCache()
    outputs = [attention.step(x, cache)[kept] for x in tokens[:2]]
    cache.select(torch.tensor(kept))
    outputs.append(attention.step(tokens[2][kept], cache))
    expected = [attention.step(x[kept], alone) for x in tokens]
    found, wanted = (
        torch.autograd.grad(torch.stack(each).square().sum(), list(attention.parameters()))
        for each in (outputs, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_rows_see_the_tokens_of_those_they_descend_from():
    attention, beam, sources = randomise(MultiHeadAttention(D, HEADS, num_kv_heads=2)), 3, 2
    rows = beam * sources
    histories, cache, ancestry = torch.zeros(rows, 0, D), KVCache(beam), Ancestry(beam)
    for number in range(19):
        x = torch.randn(rows, D)
        histories = torch.cat((histories, x[:, None]), 1)
        ancestry.grow(rows, x.device)
        found = attention.step(x, cache, ancestry=ancestry)
        whole = attention(histories.flatten(0, 1), Segments.of([number + 1] * rows), causal=True)
        torch.testing.assert_close(found, whole.view(rows, -1, D)[:, -1], atol=1e-4, rtol=1e-4)
        chosen = torch.randint(beam, (sources, beam)) + torch.arange(sources)[:, None] * beam
        histories = histories[chosen.flatten()]
        ancestry.select(chosen.flatten())


def test_a_row_alone_sees_everything():
    ancestry = Ancestry(1)
    ancestry.grow(4, torch.device("cpu"))
    ancestry.select(torch.tensor([2, 0]))
    assert (ancestry.writers, ancestry.mask) == (None, None)


def test_an_empty_cache_can_select():
    cache = KVCache()
    cache.select(torch.tensor([1, 0]))
    assert (cache.keys, cache.length) == (None, 0)


def test_distances_beyond_the_clip_share_a_vector():
    positions = randomise(AttentionPositions("relative", 64, HEADS, 6, 6))
    # of one query, which stands at the last key
    bias = positions.bias(torch.randn(1, HEADS, 1, 6), CLIP + 5)[0, :, 0]
    torch.testing.assert_close(bias[:, :5], bias[:, :1].expand(-1, 5))
    assert not torch.isclose(bias[:, 5], bias[:, 6]).any()


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "binary", "index"])
def test_vectors_inside_attention_are_added_to_query_key_and_value(scheme):
    plain = randomise(MultiHeadAttention(D, HEADS, 8, 8))
    positions = AttentionPositions(scheme, 16, HEADS, 8, 8)
    inside = MultiHeadAttention(D, HEADS, 8, 8, positions=positions)
    inside.load_state_dict(plain.state_dict(), strict=False)
    segments, x = Segments.of([5]), torch.randn(5, D)
    for part, vectors in zip(
        (plain.query, plain.key, plain.value),
        (positions.for_keys, positions.for_keys, positions.for_values),
    ):
        shift = vectors(segments.positions, segments.lengths.expand(5)).repeat(1, HEADS)
        part.register_forward_hook(lambda module, inputs, output, shift=shift: output + shift)
    torch.testing.assert_close(inside(x, segments), plain(x, segments))


def test_rotary_needs_pairs():
    with pytest.raises(
        ValueError, match="rotary positions turn pairs of numbers: d_k must be even, found 5"
    ):
        AttentionPositions("rotary", 16, HEADS, 5, 5)


def test_attention_dropout_acts_in_training_only():
    attention = MultiHeadAttention(D, HEADS, dropout=0.5)
    x, segments = torch.randn(7, D), Segments.of([3, 4])
    torch.manual_seed(1)
    first = attention(x, segments)
    assert not torch.equal(first, attention(x, segments))
    torch.manual_seed(1)
    assert torch.equal(first, attention(x, segments))
    attention.eval()
    assert torch.equal(attention(x, segments), attention(x, segments))


@compiled
def test_cached_numbers_too_large_for_float16_are_its_largest():
    torch.manual_seed(1)
    attention = MultiHeadAttention(16, 2)
    attention.cache_dtype = torch.float16
    memory = attention.remember(1e6 * torch.randn(3, 16), Segments.of([3]))
    for part in (memory.keys, memory.values):
        assert part.dtype == torch.float16
        assert part.abs().max() == torch.finfo(torch.float16).max


# caches


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
