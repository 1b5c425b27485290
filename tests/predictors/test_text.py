"""What all who answer over text share."""

import numpy as np
import pytest
import torch

from tests.refusals import refusal
from tests.tasks.test_text import trained
from transduct.predictors import text as predictors_text
from transduct.predictors.base import Attention, Report


def test_targets_are_texts_or_ids_of_the_vocabulary():
    tokenizer = trained()
    [ids] = tokenizer.encode(["a b"])
    given = ["a b", ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]]
    found = predictors_text.target_ids(tokenizer, given, "pair")
    assert found == [ids] * 6
    assert {type(i) for each in found for i in each} == {int}
    for odd in ([tokenizer.size], [5, 10**30], [-1], [0.5], None, 5, b"ab"):
        with refusal(r"pair 2: found .*, expected a text, or ids from 0 to \d+ in a list"):
            predictors_text.target_ids(tokenizer, ["a", odd], "pair")
    for odd in (iter("a"), {"a"}, {"a": 1}, None, 5):
        with refusal(r"found .*, expected a list with one for each text"):
            predictors_text.target_ids(tokenizer, odd, "pair")


def test_attention_and_reports_are_shown_without_their_numbers():
    seen = Attention({"decoder.0.cross": torch.ones(1, 1, 1)}, ["a"], ["b"])
    assert repr(seen) == "Attention(source=['a'], target=['b'])"
    report = Report({"bleu": 1.5}, outputs=["a"] * 1000)
    assert repr(report) == "Report(scores={'bleu': 1.5}, details={}, lower_is_better=frozenset())"


def test_texts_are_read_between_begin_and_end():
    rows = [[5, 6], [], np.array([7])]
    tokens, types, segments, cut = predictors_text.encoder_input(rows, None, 9)
    assert tokens.tolist() == [1, 5, 6, 2, 1, 2, 1, 7, 2]
    assert types.tolist() == [0] * 9
    assert (segments.lengths.tolist(), cut) == ([4, 2, 3], 0)


def test_pairs_are_read_one_after_the_other_with_an_end_each():
    pairs = [[5, 6], []], [[7], np.array([8, 9])]
    tokens, types, segments, cut = predictors_text.encoder_input(*pairs, 6)
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
