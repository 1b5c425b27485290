"""Properties of every generating model: its cache, search and scores, alone and in any batch."""

import pytest
import torch

from tests.families import GENERATORS
from tests.helpers import END, SIZE
from transduct.inference import engine
from transduct.inference.batches import encode
from transduct.inference.settings import DecodingConfig

SEQUENCES = [[3, 4, 5, 6], [7], [8, 3], [4, 4, 9, 10, 5, 6]]


@pytest.fixture(params=GENERATORS)
def family(request):
    return GENERATORS[request.param]()


def found_by(family, sequences, **options):
    sources, begin = family.inputs(sequences)
    limits = [2 + len(sequence) for sequence in sequences]
    return engine.generate(family.model, sources, limits, DecodingConfig(**options), begin, END)


@torch.inference_mode()
def test_a_cache_changes_nothing(family):
    """Steps equal whole sequences, also when rows are permuted and sources leave."""
    generator, beam, steps = torch.Generator().manual_seed(1), 3, 5
    sources, begin = family.inputs(SEQUENCES)
    memory, segments = encode(family.model, sources, torch.device("cpu"))
    state = family.model.start(memory, segments, beam)
    owners = [source for source in range(len(sources)) for _ in range(beam)]
    rows = [[] for _ in owners]
    newest = torch.tensor(begin).repeat_interleave(beam)
    for step in range(steps):
        logits, state = family.model.step(newest, state)
        for owner, row, found in zip(owners, rows, logits, strict=True):
            torch.testing.assert_close(
                found, family.logits(SEQUENCES[owner], row)[-1], atol=1e-5, rtol=1e-5
            )
        newest = torch.randint(3, SIZE, (len(rows),), generator=generator)
        rows = [[*row, token] for row, token in zip(rows, newest.tolist(), strict=True)]
        # a source is finished and leaves
        groups = [0, 2, 3] if step == 2 else range(len(rows) // beam)
        order = [
            group * beam + int(i)
            for group in groups
            for i in torch.randint(beam, (beam,), generator=generator)
        ]
        state.select(torch.tensor(order))
        owners, rows, newest = [owners[i] for i in order], [rows[i] for i in order], newest[order]


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
def test_an_input_is_gone_on_from_alike_alone_and_in_any_batch(family, options):
    together = found_by(family, SEQUENCES, **options)
    backwards = found_by(family, SEQUENCES[::-1], **options)[::-1]
    alone = [found_by(family, [sequence], **options)[0] for sequence in SEQUENCES]
    for one, other, third in zip(together, backwards, alone, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other] == [h.tokens for h in third]
        assert [h.score for h in one] == pytest.approx([h.score for h in third], abs=1e-5)
