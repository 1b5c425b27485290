"""Named sizes, and properties of every generating model: cache, search and scores."""

import sys

import pytest
import torch

from tests.families import GENERATORS
from tests.helpers import END, SIZE
from tests.models.stepping import assert_steps_equal_whole_sequences
from transduct.inference import engine
from transduct.inference.batches import encode
from transduct.inference.settings import DecodingConfig
from transduct.models import bert, detr, rnn, speech, transformer, vit

SEQUENCES = [[3, 4, 5, 6], [7], [8, 3], [4, 4, 9, 10, 5, 6]]


NAMED = {
    bert.Bert: lambda size: bert.Config(100, **bert.SIZES[size]),
    detr.Detr: lambda size: detr.Config(10, **detr.SIZES[size]),
    rnn.RNN: lambda size: rnn.Config(100, 100, **rnn.SIZES[size]),
    speech.Speech: lambda size: speech.Config(30, **speech.SIZES[size]),
    transformer.Transformer: lambda size: transformer.Config(100, 100, **transformer.SIZES[size]),
    vit.ViT: lambda size: vit.Config(10, **vit.SIZES[size]),
}


@pytest.mark.parametrize("model", NAMED, ids=lambda model: model.__name__)
def test_every_named_size_can_be_built(model):
    with torch.device("meta"):
        for size in sys.modules[model.__module__].SIZES:
            model(NAMED[model](size))


@pytest.fixture(params=GENERATORS)
def family(request):
    return GENERATORS[request.param]()


def found_by(family, sequences, **options):
    sources, begin = family.inputs(sequences)
    limits = [2 + len(sequence) for sequence in sequences]
    return engine.generate(family.model, sources, limits, DecodingConfig(**options), begin, END)


@torch.inference_mode()
def test_a_cache_changes_nothing(family):
    sources, begin = family.inputs(SEQUENCES)
    memory, segments = encode(family.model, sources, torch.device("cpu"))
    state = family.model.start(memory, segments, beam=3)
    assert_steps_equal_whole_sequences(
        family.model, state, begin, 3, 5, (3, SIZE),
        lambda owner, row: family.logits(SEQUENCES[owner], row)[-1],
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 4}, {"beam": 3, "temperature": 1.0, "seed": 5}]
)
def test_a_score_is_the_sum_of_the_log_probabilities(family, options):
    for sequence, hypotheses in zip(SEQUENCES, found_by(family, SEQUENCES, **options), strict=True):
        for hypothesis in hypotheses:
            tokens = [*hypothesis.tokens, END]
            likely = family.logits(sequence, hypothesis.tokens).double().log_softmax(-1)
            total = sum(float(row[token]) for row, token in zip(likely, tokens, strict=True))
            assert hypothesis.score == pytest.approx(total, abs=1e-4)


def test_an_n_best_list_is_sorted_and_holds_nothing_twice(family):
    for hypotheses in found_by(family, SEQUENCES, beam=4, length_penalty=0.0):
        assert len(hypotheses) == 4
        assert [h.rank for h in hypotheses] == sorted((h.rank for h in hypotheses), reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == 4


def test_a_beam_of_one_takes_the_likeliest_token_each_time(family):
    for sequence, [hypothesis] in zip(SEQUENCES, found_by(family, SEQUENCES, beam=1), strict=True):
        likeliest = family.logits(sequence, hypothesis.tokens).argmax(-1).tolist()
        expected = [*hypothesis.tokens, END]
        if len(expected) == 2 + len(sequence):  # the limit ended it
            likeliest[-1] = END
        assert likeliest == expected


@pytest.mark.parametrize("options", [{"beam": 3}, {"beam": 2, "temperature": 0.8}])
def test_an_input_gives_the_same_outputs_alone_and_in_any_batch(family, options):
    together = found_by(family, SEQUENCES, **options)
    backwards = found_by(family, SEQUENCES[::-1], **options)[::-1]
    alone = [found_by(family, [sequence], **options)[0] for sequence in SEQUENCES]
    for one, other, third in zip(together, backwards, alone, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other] == [h.tokens for h in third]
        assert [h.score for h in one] == pytest.approx([h.score for h in third], abs=1e-5)
