"""A masked language model in use: its scores, and what it fills in, whatever is read together."""

import math
from random import Random

import numpy as np
import pytest
import torch

from tests.refusals import refusal
from transduct.data.masking import Masking
from transduct.data.tokenizer import Tokenizer
from transduct.evaluation.bootstrap import Ratio
from transduct.evaluation.classification import mcnemar, wilson_interval
from transduct.models.bert import Bert, Config
from transduct.predictors import masked_language_modeling
from transduct.predictors.base import Report
from transduct.predictors.masked_language_modeling import (
    IGNORED,
    MaskedLanguageModel,
    fill_up,
    make_batch,
)
from transduct.segments import Segments

BEGIN, END = Tokenizer.BEGIN, Tokenizer.END
TEXT = "ab cd, ef gh. ab cd. ef, ab gh."
MAX_LENGTH = 16


def stanzas(count, seed):
    """Lines of four words in their order, begun anywhere; eight lines of the same words, then eight
    of others."""
    random, lines, letter = Random(seed), [], ""
    for _ in range(count):
        letter = random.choice([other for other in "abcdefgh" if other != letter])
        words = [f"{letter}{digit}" for digit in "1234"] * 2
        starts = [random.randrange(4) for _ in range(8)]
        lines += [" ".join(words[start : start + 4]) for start in starts]
    return lines


def make(seed=1, share=0.15):
    """A model that knows nothing."""
    tokenizer = Tokenizer.train(stanzas(20, 1), "word", 60)
    shape = {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1, "max_length": MAX_LENGTH}
    torch.manual_seed(seed)
    config = Config(tokenizer.size, head="pretraining", **shape)
    return MaskedLanguageModel(Bert(config), tokenizer, share)


def whole(batch):
    """Each sequence of a batch as it was before anything was hidden."""
    ids = batch.ids.clone()
    ids[batch.places] = batch.targets
    return [row.tolist() for row in ids.split(batch.segments.lengths.tolist())]


def test_scores_are_those_of_every_example_whatever_the_batches(monkeypatch):
    model = make()
    report = model.evaluate(stanzas(4, 2))
    monkeypatch.setattr(masked_language_modeling, "BATCH_TOKENS", 30)
    again = model.evaluate(stanzas(4, 2))
    assert again.scores == pytest.approx(report.scores)
    assert report.scores.keys() == {"nats_per_token", "masked_accuracy", "accuracy"}
    assert again.details["masked"] == 31  # one of eight tokens, for 31 pairs of 32 lines
    assert (again.details["empty"], again.details["cut"]) == (0, 0)
    long = model.evaluate([*stanzas(4, 2), " ", "a " * 2 * MAX_LENGTH, ""])
    # where it follows, and twice where it does not
    assert (long.details["empty"], long.details["cut"]) == (2, 3)
    half = "a " * (MAX_LENGTH // 2)  # fits alone, and no two do
    assert model.evaluate([half] * 5).details["cut"] == 4
    low, high = report.details["accuracy"]["interval"]
    assert low < report.scores["accuracy"] < high
    blank = model.evaluate([line for text in stanzas(4, 2) for line in (text, "", " ")])
    assert blank.scores == pytest.approx(report.scores)
    assert model.evaluate(["a1 a2", "b1", "c1", "d1"]).scores != report.scores


def test_untrained_scores_are_those_of_chance():
    model = make()
    scores = model.evaluate(stanzas(4, 2)).scores
    assert 25 < scores["accuracy"] < 75
    assert scores["nats_per_token"] == pytest.approx(math.log(model.tokenizer.size + 1), rel=0.3)


def test_masked_tokens_of_one_line_are_no_examples_of_their_own(monkeypatch):
    """A model that guesses all masked tokens of a few pairs of lines, and of the others none."""
    model = make(share=0.9)
    guessed, make_whole = {3, 11, 12, 20}, masked_language_modeling.make_batch
    held = []

    def make_batch(numbers, *given):
        held[:] = [numbers, make_whole(numbers, *given)]
        return held[1]

    def answers(_, batch):
        numbers, _ = held
        rows = batch.segments.sequence[batch.places]
        known = torch.tensor([numbers[row] in guessed for row in rows])
        logits = torch.eye(70)[torch.where(known, batch.targets, batch.targets - 1)]
        pairs = torch.eye(2)[batch.apart], batch.apart
        return {"tokens": (logits, batch.targets), "pairs": pairs}

    monkeypatch.setattr(masked_language_modeling, "make_batch", make_batch)
    monkeypatch.setattr(masked_language_modeling, "answers", answers)
    monkeypatch.setattr(masked_language_modeling, "BATCH_TOKENS", 60)
    report = model.evaluate(stanzas(4, 2))
    score, masked = report.scores["masked_accuracy"], report.details["masked"]
    assert score == pytest.approx(100 * 4 / 31, abs=2.0)
    low, high = report.details["masked_accuracy"]["interval"]
    narrow = wilson_interval(round(score * masked / 100), masked)
    assert high - low > 2 * (narrow[1] - narrow[0])
    assert report.scores["accuracy"] == 100.0
    # pairs are independent
    assert report.details["accuracy"]["interval"] == wilson_interval(31, 31)


def test_samples_are_lines_with_a_word_hidden_that_the_model_can_hold():
    model = make()
    samples = model.evaluate(stanzas(4, 2)).details["samples"]
    assert len(samples) == 3
    for hidden, filled, text in samples:
        words = text.split()
        assert hidden == " ".join([*words[:2], "[MASK]", words[3]])
        assert filled.split()[:2] == words[:2]
    for strange in ("a1 " * 50, "a1 [MASK][MASK] a2"):
        assert model.evaluate([strange] * 4).details["samples"] == []


def test_a_model_is_compared_with_another_on_the_same_masks():
    ours, other = make(), make(2)
    report = ours.evaluate(stanzas(4, 2), other)
    assert report.details["against"] == other.evaluate(stanzas(4, 2)).scores
    assert report.details["p_values"].keys() == {"masked_accuracy", "accuracy"}
    same = ours.evaluate(stanzas(4, 2), ours).details["p_values"]
    assert same == {"masked_accuracy": 1.0, "accuracy": 1.0}
    right, one = [True] * 10 + [False] * 10, np.ones(20)
    for model, answers in ((ours, right), (other, right[::-1])):
        share = Ratio(np.array(answers, float), one)
        model.measured = lambda *_, share=share: Report({}, right={"masked_accuracy": share})
    # ten against ten
    assert ours.evaluate(stanzas(4, 2), other).details["p_values"] == {"masked_accuracy": 1.0}
    wrong = {"masked_accuracy": Ratio(np.zeros(20), one)}
    other.measured = lambda *_: Report({}, right=wrong)
    [p_value] = ours.evaluate(stanzas(4, 2), other).details["p_values"].values()
    assert p_value == mcnemar(right, [False] * 20) < 0.05
    with refusal("the other model would be asked for other tokens; compare models of"):
        ours.evaluate(stanzas(4, 2), make(share=0.2))
    with refusal(r"options: unknown key 'decoding.beam'; there are none"):
        make().evaluate(stanzas(4, 2), beam=3)
    with refusal(r"options: unknown key 'decoding.length'; there are none"):
        ours.predict(["a"], length=3)
    with refusal("found 2 pairs of lines that are not blank, expected at least 3"):
        make().evaluate(["a", "", "b", "c"])


# filling in


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "byte"])
def test_a_mask_takes_the_place_of_one_token(kind):
    texts = [TEXT, "ab ef", "cd gh", ", . ,, .."] * 9
    tokenizer = Tokenizer.train(texts, kind, 300 if kind == "byte" else 30)
    parts = ["b"] if kind in ("character", "byte") else ["ab", "cd", "ef", "gh"]
    coded = zip(parts, tokenizer.encode(parts))
    token, hidden = next((ids[-1], part) for part, ids in coded if len(ids) < 3)
    [expected] = tokenizer.encode([TEXT])
    model = MaskedLanguageModel(make().model, tokenizer, 0.15)
    ids, places = model._masked(TEXT.replace(hidden, "[MASK]"))
    assert len(places) == TEXT.count(hidden) >= 2
    assert ids == [tokenizer.size if i in places else t for i, t in enumerate(expected)]
    assert {expected[place] for place in places} == {token}


@pytest.mark.parametrize("kind", ["unigram", "word"])
def test_masks_that_would_be_one_are_refused(kind):
    tokenizer = Tokenizer.train([TEXT, "ab ef", "cd gh"] * 9, kind, 30)
    model = MaskedLanguageModel(make().model, tokenizer, 0.15)
    assert len(model._masked("ab [MASK] [MASK]")[1]) == 2
    with refusal(r"sees masks side by side as one; put blanks between them: ab \[MASK\]\["):
        model._masked("ab [MASK][MASK]")


class Parrot(torch.nn.Module):
    """Stands for a model: at each mask it wants a special token most, then the mask, then the
    number of the mask."""

    def __init__(self, config):
        super().__init__()
        self.config, self.bias = config, torch.nn.Parameter(torch.zeros(1))

    def encode(self, ids, types, segments):
        assert segments.longest <= self.config.max_length
        assert types.sum() == 0
        return torch.stack((ids == self.config.mask, segments.positions), 1).float()

    def masked_logits(self, x):
        assert (x[:, 0] == 1).all(), "asked for what is not hidden"
        logits = torch.zeros(len(x), self.config.mask + 1)
        logits[:, [0, 1, 2, -1]] = 3.0
        # the first token of the text gets the first that is a word
        return logits.scatter(1, x[:, 1:].long() + 2, 2.0)


def test_what_is_filled_in_is_a_token_of_the_text_in_its_place(monkeypatch):
    model = make()
    parrot = MaskedLanguageModel(Parrot(model.model.config), model.tokenizer, 0.15)
    words = [word.removeprefix("▁") for word in model.tokenizer.pieces(range(3, 20))]
    texts = ["[MASK] b1", "a1", "", "a1 [MASK] b1 [MASK]", "[MASK]", "  a1  b1 "]
    filled = [f"{words[0]} b1", "a1", "", f"a1 {words[1]} b1 {words[3]}", words[0], "  a1  b1 "]
    texts, filled = [*texts, "h1 h2 [MASK] h4"], [*filled, f"h1 h2 {words[2]} h4"]
    assert parrot.predict(texts) == filled
    monkeypatch.setattr(masked_language_modeling, "BATCH_TOKENS", 6)
    assert parrot.predict(texts) == filled
    assert parrot.predict([]) == []


def test_a_text_longer_than_the_model_is_not_filled_in():
    model = make()
    assert model.predict(["a1 " * 50]) == ["a1 " * 50]
    assert len(model.predict(["a1 " * 13 + "[MASK]"])) == 1
    with refusal("input 2: 15 tokens, the model takes 14; shorten it"):
        model.predict(["", "a1 " * 14 + "[MASK]"])
    with refusal("input 1: 15 masks, the model takes 14 tokens; shorten it"):
        model.predict(["[MASK] " * 15])


def test_lists_of_ids_become_a_batch():
    batch = make_batch([0, 1], [[5, 6, 7], [8]], None, None, Masking(0.3, 9, 1, 0), 5)
    assert whole(batch) == [[BEGIN, 5, 6, 7, END], [BEGIN, 8, END]]
    assert isinstance(batch.segments, Segments)
    assert np.isin(batch.places.tolist(), [1, 2, 3, 6]).all()
    assert len(batch.places) == 2


def test_a_batch_is_filled_up_to_a_shape_with_targets_that_are_ignored():
    masking = Masking(0.5, 30, 1, 0)
    batch = make_batch([0, 1], [[5, 6, 7], [8]], [[9], [4, 3]], [False, True], masking, 20)
    filled = fill_up(batch, 100, 20)
    places = len(batch.places)
    assert (len(filled.ids), len(filled.places), len(filled.apart)) == (128, 8, 24)
    assert (filled.tokens, filled.counts) == (batch.tokens, batch.counts)
    assert filled.targets.tolist() == [*batch.targets.tolist(), *[IGNORED] * (8 - places)]
    assert filled.apart.tolist() == [0, 1, *[IGNORED] * 22]
    unusual = make_batch([0] * 30, [[5]] * 30, None, None, masking, 20)
    assert fill_up(unusual, 60, 20) is unusual
