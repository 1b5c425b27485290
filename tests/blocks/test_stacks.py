"""Stepping from a state equals decoding whole sequences, also when rows and sources are
selected."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.helpers import PLACES, SIZE, randomise, tiny, tokens_of
from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.transformer import (
    Decoder,
    DecoderLayer,
    EncoderLayer,
    LayerShape,
    PromptDecoder,
)
from transduct.inference.fixed_state import FixedState
from transduct.segments import Segments

D, BEAM, LENGTHS = 16, 2, [3, 1, 4]
SHAPE = LayerShape(D, 32, 0.0, "relu", "pre", "layer")


def attention():
    return MultiHeadAttention(D, 4)


def made(kind):
    torch.manual_seed(1)
    if kind is PromptDecoder:
        return randomise(PromptDecoder(EncoderLayer(SHAPE, attention()) for _ in range(2)).eval())
    return randomise(
        Decoder(DecoderLayer(SHAPE, attention(), attention()) for _ in range(2)).eval()
    )


def stepped(decoder, state, x):
    """A step on vectors (R, D) in place of tokens, which returns hidden states in place of
    logits."""
    if isinstance(decoder, PromptDecoder):
        return decoder.step(x, state.positions, state)
    around = {
        "target_embedding": lambda x, _: x,
        "decoder_norm": nn.Identity(),
        "logits": nn.Identity(),
    }
    return decoder.step(SimpleNamespace(**around), x, state)


@torch.no_grad()
def test_a_state_over_a_memory_is_the_decoder_a_token_at_a_time():
    decoder = made(Decoder)
    memory, segments = torch.randn(sum(LENGTHS), D), Segments.of(LENGTHS)
    state = decoder.start(memory, segments, BEAM)
    tokens = torch.randn(3, len(LENGTHS) * BEAM, D)  # (steps, R, D)
    for number, newest in enumerate(tokens):
        assert state.length == number
        found = stepped(decoder, state, newest)
    for row, source in enumerate([0, 0, 1, 1, 2, 2]):
        part = memory.split(LENGTHS)[source]
        whole = decoder(tokens[:, row], Segments.of([3]), part, Segments.of([len(part)]))
        torch.testing.assert_close(found[row], whole[-1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_state_goes_on_from_its_prompt():
    decoder = made(PromptDecoder)
    prompts, segments = torch.randn(sum(LENGTHS), D), Segments.of(LENGTHS)
    inputs = decoder.inputs(prompts, segments)
    assert torch.equal(inputs[0], prompts)
    assert torch.equal(inputs[1], decoder[0](prompts, segments, True))
    state = decoder.start(inputs, segments, BEAM)
    assert state.positions.tolist() == [3, 3, 1, 1, 4, 4]
    tokens = torch.randn(2, len(LENGTHS) * BEAM, D)
    for newest in tokens:
        found = stepped(decoder, state, newest)
    assert state.positions.tolist() == [5, 5, 3, 3, 6, 6]
    for row, source in enumerate([0, 0, 1, 1, 2, 2]):
        whole = torch.cat((prompts.split(LENGTHS)[source], tokens[:, row]))
        expected = decoder(whole, Segments.of([len(whole)]))[-1]
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Decoder, PromptDecoder])
@torch.no_grad()
def test_rows_are_exchanged_and_finished_sources_leave(kind):
    decoder = made(kind)
    given, segments = torch.randn(sum(LENGTHS), D), Segments.of(LENGTHS)
    first, second = torch.randn(2, len(LENGTHS) * BEAM, D)
    rows = torch.tensor([1, 1, 5, 4])  # the second source has left

    def started():
        before = given if kind is Decoder else decoder.inputs(given, segments)
        return decoder.start(before, segments, BEAM)

    state = started()
    stepped(decoder, state, first)
    state.select(rows)
    found = stepped(decoder, state, second[rows])
    other = started()
    stepped(decoder, other, first[torch.tensor([1, 1, 2, 3, 5, 4])])
    expected = stepped(decoder, other, second[torch.tensor([1, 1, 2, 3, 5, 4])])[
        torch.tensor([0, 1, 4, 5])
    ]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("scheme, mode", PLACES)
@torch.no_grad()
def test_buffers_that_stay_hold_what_growing_ones_hold(scheme, mode, beam):
    model = tiny(positions=scheme, position_mode=mode)
    lengths, rows = [3, 1, 4], 3 * beam
    fixed = FixedState(started(model, [2], beam), 5, 8, 16)
    for part in [*(x for pair in (*fixed.caches, *fixed.memories) for x in pair)]:
        part.fill_(10.0)  # left over from others
    for seed in (1, 2):  # and again, in the same buffers
        growing = started(model, lengths, beam, seed)
        fixed.admit(growing, torch.tensor(lengths))
        for number in range(12):
            part = fixed.part(5, 8 if number < 8 else 16)
            tokens = torch.randint(SIZE, (rows,))
            chosen = (torch.randint(beam, (3, beam)) + torch.arange(3)[:, None] * beam).flatten()
            expected, _ = model.step(tokens, growing)
            found, _ = model.step(torch.cat((tokens, tokens.new_zeros(2 * beam))), part)
            fixed.now.add_(1)
            torch.testing.assert_close(found[:rows], expected, atol=1e-4, rtol=1e-4)
            assert found.isfinite().all()
            growing.select(chosen)
            part.select(torch.cat((chosen, torch.arange(rows, rows + 2 * beam))))


@torch.no_grad()
def test_sources_move_to_the_front_of_their_buffers():
    model, beam, kept = tiny(), 2, torch.tensor([2, 0])
    growing = started(model, LENGTHS, beam)
    fixed = FixedState(growing, 4, 4, 16)
    fixed.admit(growing, torch.tensor(LENGTHS))
    for tokens in torch.randint(SIZE, (3, len(LENGTHS) * beam)):
        model.step(tokens, growing)
        model.step(torch.cat((tokens, tokens[:beam])), fixed.part(4, 16))
        fixed.now.add_(1)
    rows = torch.tensor([4, 5, 0, 1])
    growing.select(rows)
    fixed.gather(kept)
    tokens = torch.randint(SIZE, (4,))
    found, _ = model.step(tokens, fixed.part(2, 16))
    torch.testing.assert_close(found, model.step(tokens, growing)[0], atol=1e-4, rtol=1e-4)


def started(model, lengths, beam, seed=1):
    tokens, segments = tokens_of(lengths, seed)
    return model.start(model.encode(tokens, segments), segments, beam)
