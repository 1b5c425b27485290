"""What all who answer over text share."""

import numpy as np
import pytest
import torch

from tests.helpers import randomise, tiny
from tests.refusals import refusal
from tests.tasks.test_text import SOURCES, TARGETS, trained
from transduct.functional.losses import projected_cross_entropy
from transduct.predictors import text as predictors_text
from transduct.predictors.base import Attention, Report
from transduct.segments import Shape


def test_targets_are_texts_or_ids_of_the_vocabulary():
    tokenizer = trained()
    [ids] = tokenizer.encode(["a b"])
    given = ["a b", ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]]
    found = predictors_text.target_ids(tokenizer, given, "pair")
    assert found == [ids] * 6
    assert {type(i) for each in found for i in each} == {int}
    for odd in ([tokenizer.size], [-1], [0.5], None):
        with refusal(r"pair 2: found .*, expected a text, or ids from 0 to \d+ in a list"):
            predictors_text.target_ids(tokenizer, ["a", odd], "pair")
    for odd in (iter("a"), {"a"}, {"a": 1}, None):
        with refusal(r"found .*, expected a list with one for each text"):
            predictors_text.target_ids(tokenizer, odd, "pair")


def test_attention_and_reports_are_shown_without_their_numbers():
    seen = Attention({"decoder.0.cross": torch.ones(1, 1, 1)}, ["a"], ["b"])
    assert repr(seen) == "Attention(source=['a'], target=['b'])"
    report = Report({"bleu": 1.5}, outputs=["a"] * 1000)
    assert repr(report) == "Report(scores={'bleu': 1.5}, details={}, lower_is_better=frozenset())"


def test_texts_are_read_between_begin_and_end():
    tokens, types, segments, cut = predictors_text.encoder_input(
        [[5, 6], [], np.array([7])], None, 9
    )
    assert tokens.tolist() == [1, 5, 6, 2, 1, 2, 1, 7, 2]
    assert types.tolist() == [0] * 9
    assert (segments.lengths.tolist(), cut) == ([4, 2, 3], 0)


def test_pairs_are_read_one_after_the_other_with_an_end_each():
    tokens, types, segments, cut = predictors_text.encoder_input(
        [[5, 6], []], [[7], np.array([8, 9])], 6
    )
    assert tokens.tolist() == [1, 5, 6, 2, 7, 2, 1, 2, 8, 9, 2]
    assert types.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1]
    assert (segments.lengths.tolist(), cut) == ([6, 5], 0)


def test_a_long_text_loses_its_end():
    tokens, _, segments, cut = predictors_text.encoder_input([[5, 6, 7], [5, 6, 7, 8]], None, 5)
    assert tokens.tolist() == [1, 5, 6, 7, 2] * 2
    assert (segments.longest, cut) == (5, 1)


@pytest.mark.parametrize("max_length", [3, 4, 7, 8, 11])
def test_of_a_long_pair_the_longer_text_loses_tokens_one_by_one(max_length):
    pairs = [(one, two) for one in range(7) for two in range(7)]
    first, second = ([list(range(10, 10 + n)) for n in lengths] for lengths in zip(*pairs))
    tokens, types, segments, cut = predictors_text.encoder_input(first, second, max_length)
    rows = zip(tokens.split(segments.lengths.tolist()), types.split(segments.lengths.tolist()))
    shortened = 0
    for (one, two), (row, kinds) in zip(pairs, rows, strict=True):
        left, right = one, two
        while left + right + 3 > max_length:  # as Devlin et al. do it
            left, right = (left - 1, right) if left > right else (left, right - 1)
        shortened += (left, right) != (one, two)
        assert row.tolist() == [1, *range(10, 10 + left), 2, *range(10, 10 + right), 2]
        assert int(kinds.sum()) == right + 1
    assert cut == shortened


def test_a_filled_batch_has_one_shape_on_both_sides():
    batch = predictors_text.make_batch(SOURCES, TARGETS, Shape(128, 12, 16))
    plain = predictors_text.make_batch(SOURCES, TARGETS)
    assert (batch.tokens, batch.counts) == (plain.tokens, plain.counts) == (10, {"tokens": 10.0})
    for name in ("source", "inputs", "outputs"):
        real = getattr(plain, name)
        assert getattr(batch, name).shape == (128,)
        assert torch.equal(getattr(batch, name)[: len(real)], real)
    assert batch.counted.tolist() == [1.0] * 10 + [0.0] * 118
    assert (len(batch.source_segments), len(batch.target_segments)) == (12, 12)


@pytest.mark.parametrize(
    "positions", ["sinusoidal", "rotary", "alibi", "normalised_index", "learned"]
)
def test_filler_changes_neither_loss_nor_gradient(positions):
    model = randomise(tiny(positions=positions, num_kv_heads=2)).double()
    found = []
    for shape in (None, Shape(128, 12, 16)):
        batch = predictors_text.make_batch(SOURCES, TARGETS, shape)
        memory = model.encode(batch.source, batch.source_segments)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
        losses = projected_cross_entropy(
            hidden, model.output_table, batch.outputs, 0.1, batch.counted
        )
        found.append(
            [
                *losses,
                *torch.autograd.grad(losses[0], [p for p in model.parameters() if p.requires_grad]),
            ]
        )
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
