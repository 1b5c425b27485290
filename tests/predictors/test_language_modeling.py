"""A language model in use: nats are exact, prompts are continued, and nothing depends on what is
read together."""

import logging
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tests.helpers import randomise
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.errors import WrongData
from transduct.models.gpt import GPT, Config
from transduct.predictors import base as predictors_base
from transduct.predictors import language_modeling
from transduct.predictors.language_modeling import LanguageModel, WritingConfig, make_batch, windows
from transduct.tasks.model import write_model

LINES = ["To be, or not to be,", "that is  the question:", ""]
LINES = [*LINES, "\tWhether 'tis nobler in the mind"] * 8
CONTEXT = 16
PROMPTS = ["", "To be", "\n", "whether 'tis nobler\nin the mind", "ßß?"]
TEXT = "nobler to be\n\nin the  mind\n"


def make(kind="verbatim", size=64):
    """A model that knows nothing, but goes on differently from every prompt."""
    tokenizer = Tokenizer.train(LINES, kind, size)
    shape = {"d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 2, "max_length": CONTEXT}
    torch.manual_seed(1)
    model = randomise(GPT(Config(tokenizer.size, **shape)))
    return LanguageModel(model, tokenizer, WritingConfig(beam=1, temperature=0.8, length=30))


def whole_run(tokenizer, lines=LINES):
    """The tokens of a text as it is read: an end, then every line and its end."""
    return [2, *(token for ids in tokenizer.encode(lines) for token in (*ids, 2))]


def test_a_batch_is_flat_and_predicts_what_comes_next():
    batch = make_batch([[5, 6, 7], np.array([8, 9])])
    assert batch.inputs.tolist() == [5, 6, 8]
    assert batch.outputs.tolist() == [6, 7, 9]
    assert batch.segments.lengths.tolist() == [2, 1]
    assert batch.counts == {"tokens": 3.0}
    assert batch.tokens == 3
    assert batch.to(torch.device("cpu")) is batch


@pytest.mark.parametrize("total", [2, 3, 9, 10, 11, 12, 23])
@pytest.mark.parametrize("first", [1, 4, 10])
def test_windows_predict_every_token_but_the_first_once(total, first):
    cuts = windows(total, 10, first)
    assert (cuts[0], cuts[-1]) == (0, total - 1)
    lengths = np.diff(cuts)
    assert lengths.min() >= 1
    assert lengths.max() <= 10
    assert lengths[0] == min(first, total - 1)
    assert (lengths[1:-1] == 10).all()


@torch.no_grad()
def nats(model, run):
    """The nats of a run of tokens, window after window."""
    total = 0.0
    for start in range(0, len(run) - 1, CONTEXT):
        batch = make_batch([run[start : start + CONTEXT + 1]])
        logits = model.logits(model.hidden(batch.inputs, batch.segments)).double()
        total += torch.nn.functional.cross_entropy(logits, batch.outputs, reduction="sum").item()
    return total


def test_verbatim_nats_are_nats_of_each_character_line_feeds_included():
    model = make()
    expected = nats(model.model, whole_run(model.tokenizer, TEXT.splitlines())) / len(TEXT)
    report = model.evaluate(TEXT.splitlines())
    assert report.scores.keys() == {"nats_per_token", "nats_per_character", "perplexity"}
    assert report.scores["nats_per_token"] == pytest.approx(expected, rel=1e-5)
    assert report.scores["nats_per_character"] == pytest.approx(expected, rel=1e-5)
    assert report.scores["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert (report.details["tokens"], report.details["context"]) == (len(TEXT), CONTEXT)
    assert (report.details["unknown"], model.evaluate(["to 한국 be"]).details["unknown"]) == (0, 2)


def test_with_other_tokens_nats_are_still_told_by_the_character():
    model = make("bpe", 80)
    scores = model.evaluate(["to be  or", ""]).scores
    run = whole_run(model.tokenizer, ["to be  or", ""])
    assert len(run) < 10
    assert scores["nats_per_character"] == pytest.approx(nats(model.model, run) / 11, rel=1e-5)
    expected = nats(model.model, run) / (len(run) - 1)
    assert scores["nats_per_token"] == pytest.approx(expected, rel=1e-5)


def test_a_report_shows_the_model_s_continuation_beside_the_text_s():
    report = make().evaluate(TEXT.splitlines())
    [(prompt, written, reference)] = report.details["samples"]
    assert TEXT.startswith(prompt + reference)
    assert len(prompt) == CONTEXT // 2 - 1
    assert report.outputs == [written]
    assert len(written) == 30


def greedy(model, tokenizer, prompt, length):
    """Continuation by whole windows, nothing cached: the likeliest token again and again."""
    run = whole_run(tokenizer, prompt.split("\n"))[:-1]
    start, seen = len(run), list(run) if len(run) < CONTEXT else run[-(CONTEXT // 2) :]
    while len(run) < start + length:
        batch = make_batch([[*seen, 0]])
        with torch.no_grad():
            logits = model.logits(model.hidden(batch.inputs, batch.segments))[-1]
        logits[[Tokenizer.UNKNOWN, Tokenizer.BEGIN]] = float("-inf")
        run.append(int(logits.argmax()))
        seen = [*seen, run[-1]] if len(seen) < CONTEXT - 1 else run[-(CONTEXT // 2) :]
    return "".join("\n" if token == 2 else tokenizer.pieces([token])[0] for token in run[start:])


def test_the_likeliest_text_is_that_of_whole_windows_however_long():
    model = make()
    for length in (1, 7, 40):
        found = model.predict(PROMPTS, temperature=0.0, length=length)
        assert found == [greedy(model.model, model.tokenizer, prompt, length) for prompt in PROMPTS]


def test_samples_are_as_long_as_asked_for_and_belong_to_their_prompt():
    model = make()
    found = model.predict(PROMPTS, length=50)
    assert [len(text) for text in found] == [50] * len(PROMPTS)
    assert len(set(found)) == len(PROMPTS)
    assert model.predict(PROMPTS, length=50, batch_tokens=1) == found
    assert [model.predict([prompt], length=50)[0] for prompt in PROMPTS] == found
    assert model.predict(PROMPTS, length=50, seed=2) != found
    assert model.predict([]) == []
    known = set("".join(LINES)) | {"\n"}
    assert set("".join(found)) <= known


def test_a_call_draws_one_sample_unless_it_says_more():
    """The likeliest of several is no fair draw, and the beam is that of a search."""
    model = make()
    model.decoding = replace(model.decoding, temperature=0.0, beam=5)
    for seed in range(5):
        fair = model.predict(PROMPTS, length=9, temperature=1.0, seed=seed)
        assert fair == model.predict(PROMPTS, length=9, temperature=1.0, seed=seed, beam=1)
        assert fair != model.predict(PROMPTS, length=9, temperature=1.0, seed=seed, beam=5)


def test_a_beam_as_wide_as_the_vocabulary_finds_the_likeliest_text():
    model = make()
    size = model.tokenizer.size
    pairs = list(product(range(2, size), repeat=2))
    for prompt in PROMPTS[:3]:
        run = whole_run(model.tokenizer, prompt.split("\n"))[:-1]
        batch = make_batch([[*run, *pair] for pair in pairs])
        with torch.no_grad():
            hidden = model.model.hidden(batch.inputs, batch.segments)
            steps = model.model.logits(hidden).log_softmax(-1)
        likelihoods = steps.gather(1, batch.outputs[:, None]).view(len(pairs), -1)[:, -2:].sum(1)
        best = pairs[int(likelihoods.argmax())]
        found = model.predict([prompt], temperature=0.0, beam=size, length=2)
        assert found == [model._text(run, best)]


def test_of_several_samples_the_likeliest_is_kept():
    model = make()
    for prompt in PROMPTS[:3]:  # whose continuations fit into one window
        [one], [best] = (
            model.predict([prompt], length=9, temperature=1.0, beam=beam) for beam in (1, 20)
        )
        lines = [f"{prompt}{text}".split("\n") for text in (one, best)]
        runs = [whole_run(model.tokenizer, each)[:-1] for each in lines]
        assert len(one) == len(best) == 9
        assert nats(model.model, runs[1]) < nats(model.model, runs[0])


def test_prompts_that_do_not_fit_are_counted(caplog):
    model = make()
    caplog.clear()  # what was said of a small vocabulary
    with caplog.at_level(logging.WARNING, "transduct"):
        model.predict(["to", "to be or not " * CONTEXT], length=3)
    rest = f"{CONTEXT} tokens: continued from their last {CONTEXT // 2}"
    assert caplog.messages == [f"1 of 2 prompts do not fit into {rest}"]


def test_what_is_written_continues_the_last_line_of_its_prompt():
    words = make("bpe", 80)
    encode = words.tokenizer.encode
    [be, question] = encode(["be", "question"])
    prompt = [2, *encode(["To"])[0]]
    assert words._text(prompt, be) == " be"
    assert words._text([*prompt, 2], be) == "be"
    assert words._text(prompt, [2, *be, 2, 2, *question]) == "\nbe\n\nquestion"
    assert words._text([2], [2]) == "\n"
    assert words._text(prompt, []) == ""
    assert all(text.count("▁") == 0 for text in words.predict(PROMPTS))


def test_options_that_cannot_be_are_refused():
    model = make()
    with refusal(r"options: unknown key 'decoding.lenght'; did you mean 'length'\?"):
        model.predict(["a"], lenght=3)
    with refusal(r"options: decoding.temperature is -1.0, must be 0, or at least 0.001"):
        model.evaluate(["a"], temperature=-1.0)
    with pytest.raises(WrongData, match="there is no line to measure; give some text"):
        model.evaluate([])


def test_no_more_is_read_together_than_the_call_says(monkeypatch):
    budgets, in_batches = [], language_modeling.in_batches
    spy = lambda sizes, most: (budgets.append(most), in_batches(sizes, most))[1]  # noqa: E731
    monkeypatch.setattr(language_modeling, "in_batches", spy)
    make().evaluate(["a b", "c"], batch_tokens=40)
    assert len(budgets) > 1
    assert max(budgets) == 40


def test_a_model_with_another_tokenizer_is_refused(tmp_path):
    other = tmp_path / "tokenizer.json"
    Tokenizer.train(["abc"], "verbatim", 9).save(other)
    write_model(tmp_path / "model", "language_modeling", make().model, {}, [other], "")
    with refusal(r"the tokenizers hold 6 tokens, the model \d+; they do not belong"):
        predictors_base.load(tmp_path / "model")
