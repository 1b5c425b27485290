"""The recogniser keeps utterances separate, masks the future, and can divide its bands among
heads."""

import pytest
import torch

from tests.helpers import BEGIN, SIZE, TINY, gradients, randomise, tokens_of
from tests.models.stepping import assert_steps_equal_whole_sequences
from transduct.models.speech import Config, Speech
from transduct.segments import Segments

BANDS, FRAMES, TARGETS = 8, [20, 4, 32], [4, 6, 1]
SHAPE = {**TINY, "vocabulary_size": SIZE, "bands": BANDS, "dropout": 0.0}
SHAPE |= {"encoder_layers": 2, "decoder_layers": 2}


def tiny(**changes):
    torch.manual_seed(1)
    return randomise(Speech(Config(**{**SHAPE, **changes})).eval())


def sounds(lengths=FRAMES):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(sum(lengths), BANDS, generator=generator), Segments.of(lengths)


def run(model, features, segments, target, target_segments):
    """The logits of CTC and of the decoder."""
    memory, memory_segments = model.encode(features, segments)
    return model.ctc(memory), model.logits(
        model.decode(target, target_segments, memory, memory_segments)
    )


every_kind = pytest.mark.parametrize(
    "changes", [{}, {"heads": "bands"}, {"heads": "bands", "norm": "post"}]
)


@every_kind
@torch.no_grad()
def test_an_utterance_is_given_the_same_alone_and_in_a_batch(changes):
    model = tiny(**changes)
    features, segments = sounds()
    target, target_segments = tokens_of(TARGETS, 2)
    heard, read = run(model, features, segments, target, target_segments)
    assert heard.shape == (sum(FRAMES) // 4, SIZE)
    parts = zip(
        features.split(FRAMES),
        heard.split([n // 4 for n in FRAMES]),
        target.split(TARGETS),
        read.split(TARGETS),
    )
    for x, ctc, tokens, logits in parts:
        alone = run(model, x, Segments.of([len(x)]), tokens, Segments.of([len(tokens)]))
        torch.testing.assert_close(ctc, alone[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits, alone[1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_probabilities_of_ctc_are_not_rounded_with_the_weights():
    model = tiny().bfloat16()
    memory = torch.randn(5, 16).bfloat16()
    found = model.ctc(memory)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.logsumexp(-1), torch.zeros(5))


@torch.no_grad()
def test_the_decoder_does_not_see_the_future_and_the_encoder_all_of_its_own():
    model = tiny()
    features, segments = sounds()
    target, target_segments = tokens_of(TARGETS, 2)
    heard, read = run(model, features, segments, target, target_segments)
    other = target.clone()
    other[3] = (other[3] + 1) % SIZE
    difference = (read - run(model, features, segments, other, target_segments)[1]).abs().amax(-1)
    assert difference[[0, 1, 2, *range(4, 11)]].max() < 1e-5
    assert difference[3] > 1e-3
    louder = features.clone()
    louder[21] += 1.0  # the one token of the second
    difference = (heard - run(model, louder, segments, target, target_segments)[0]).abs().amax(-1)
    assert difference[5] > 1e-3
    assert difference[[0, 4, 6, 13]].max() < 1e-5


@every_kind
def test_every_parameter_learns(changes):
    model = tiny(**changes)
    features, segments = sounds()
    heard, read = run(model, features, segments, *tokens_of(TARGETS, 2))
    parameters = dict(model.named_parameters())
    output = torch.cat((heard, read))
    for name, gradient in zip(
        parameters, gradients(output, list(parameters.values())), strict=True
    ):
        bias = name.endswith("attention.key.bias")  # moves all scores of a query alike
        assert bias or gradient.abs().max() > 1e-6, name


@every_kind
@torch.no_grad()
def test_a_cache_changes_nothing(changes):
    model = tiny(**changes)
    memory, segments = model.encode(*sounds())
    state = model.start(memory, segments, beam=2)
    parts = memory.split(segments.lengths.tolist())

    def expected(owner, row):
        tokens, one = torch.tensor([BEGIN, *row]), parts[owner]
        whole = model.decode(tokens, Segments.of([len(tokens)]), one, Segments.of([len(one)]))
        return model.logits(whole)[-1]

    assert_steps_equal_whole_sequences(
        model, state, [BEGIN] * len(parts), 2, 4, (3, SIZE), expected
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_heads_of_bands_hear_nothing_of_other_bands(norm):
    model = tiny(heads="bands", norm=norm)
    features, segments = sounds([20])
    other = features.clone()
    other[:, 2:4] += torch.linspace(0, 3, 20)[:, None]  # what the second of four heads hears
    weights, changed = [], []
    model.encode(features, segments, weights)
    model.encode(other, segments, changed)
    difference = (weights[0] - changed[0]).abs().amax((0, 2, 3))  # (H,)
    assert difference[1] > 1e-3
    assert difference[[0, 2, 3]].max() < 1e-6
    assert (weights[1] - changed[1]).abs().amax(
        (0, 2, 3)
    ).min() > 1e-6  # from the second layer on all hear all


@torch.no_grad()
def test_attention_weights_are_named_and_sum_to_one():
    model = tiny()
    weights = []
    memory, segments = model.encode(*sounds([20]), weights)
    model.decode(*tokens_of([3]), memory, segments, weights)
    assert model.attention_names == [
        *("encoder.0.self", "encoder.1.self"),
        *("decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"),
    ]
    named = dict(zip(model.attention_names, weights, strict=True))
    assert named["decoder.1.cross"].shape == (1, 4, 3, 5)
    for each in weights:
        torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))
