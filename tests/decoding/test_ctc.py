"""CTC prefix scores equal sums over all alignments; the best path is the likeliest alignment."""

import itertools
import math

import pytest
import torch

from transduct.decoding.ctc import CTCPrefix, best_path
from transduct.decoding.filters import Forbid
from transduct.decoding.search import Beam, search
from transduct.functional.losses import ctc_loss
from transduct.segments import Segments

SIZE, BLANK, END = 5, 1, 2
TIMES = [4, 2]


@pytest.fixture
def frames():
    torch.manual_seed(1)
    return (2 * torch.randn(sum(TIMES), SIZE)).log_softmax(-1), Segments.of(TIMES)


def collapsed(path):
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def outputs_of(frames):
    """The probability of each output, summed over all alignments."""
    found = {}
    for path in itertools.product(range(SIZE), repeat=len(frames)):
        probability = math.exp(sum(float(frames[t, token]) for t, token in enumerate(path)))
        found[collapsed(path)] = found.get(collapsed(path), 0.0) + probability
    return found


def begins(outputs, prefix):
    return sum(p for output, p in outputs.items() if output[: len(prefix)] == prefix)


def log(probability):
    return math.log(probability) if probability > 1e-12 else -math.inf


def expected(outputs, row, logits, weight):
    """What the filter gives for a row, from the probabilities of all outputs."""
    normaliser = float(logits.logsumexp(0))
    values = []
    for token in range(SIZE):
        whole = outputs.get(row, 0.0) if token == END else begins(outputs, (*row, token))
        possible = token != BLANK and whole > 1e-12
        gained = log(whole) - log(begins(outputs, row)) if possible else -math.inf
        decoder = float(logits[token]) - normaliser
        values.append(normaliser + (1 - weight) * decoder + weight * gained)
    return torch.tensor(values)


@pytest.mark.parametrize("weight", [0.3, 0.9])
def test_the_scores_are_those_of_all_alignments(frames, weight):
    """With swapped and repeated rows, repeated tokens, rows longer than their source, and a
    finished source."""
    outputs = [outputs_of(part) for part in frames[0].split(TIMES)]
    scorer = CTCPrefix(*frames, beam=2, blank=BLANK, end=END, weight=weight)
    owners, rows = [0, 0, 1, 1], [()] * 4
    history = torch.full((4, 1), BLANK)
    for chosen, newest in [
        ([1, 0, 2, 3], [0, 3, 3, 4]),
        ([0, 0, 3, 2], [0, 3, 4, 3]),
        ([1, 0], [0, 4]),
        ([0, 0], [3, 4]),
    ]:
        logits = torch.randn(len(rows), SIZE)
        found = scorer(logits.clone(), history)
        for owner, row, one, given in zip(owners, rows, found, logits, strict=True):
            right = expected(outputs[owner], row, given, weight)
            torch.testing.assert_close(one, right, atol=1e-4, rtol=1e-4)
        order = torch.tensor(chosen)
        scorer.select(order)
        owners = [owners[i] for i in chosen]
        rows = [(*rows[i], n) for i, n in zip(chosen, newest, strict=True)]
        history = torch.cat((history[order], torch.tensor(newest)[:, None]), 1)


class NoOpinion:
    """A decoder with uniform probabilities, so that CTC alone decides."""

    def start(self, memory, segments, beam):
        return self

    def step(self, tokens, state):
        return torch.zeros(len(tokens), SIZE), self

    def select(self, rows):
        pass


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_a_long_output_is_worth_what_the_loss_says(sharpness):
    random = torch.Generator().manual_seed(1)
    segments = Segments.of([200, 150])
    frames = (sharpness * torch.randn(350, 8, generator=random)).log_softmax(-1)
    outputs = torch.randint(3, 8, (2, 20), generator=random)
    scorer = CTCPrefix(frames, segments, beam=1, blank=BLANK, end=END, weight=0.5)
    rows = torch.cat((torch.full((2, 1), 1), outputs), 1)
    for length in range(1, 22):
        scorer(torch.zeros(2, 8), rows[:, :length])
    loss = ctc_loss(frames, segments, outputs.flatten(), Segments.of([20, 20]), BLANK)
    torch.testing.assert_close(scorer.scores[:, END], -loss, rtol=1e-5, atol=1e-4)


def test_a_token_that_cannot_be_in_one_frame_may_be_in_the_next():
    frames = torch.zeros(6, SIZE)
    frames[2, 3] = -math.inf
    frames, segments, row = frames.log_softmax(-1), Segments.of([6]), torch.tensor([[1, 3]])
    scorer = CTCPrefix(frames, segments, 1, BLANK, END, 0.5)
    for length in (1, 2):
        scorer(torch.zeros(1, SIZE), row[:, :length])
    loss = ctc_loss(frames, segments, torch.tensor([3]), Segments.of([1]), BLANK)
    torch.testing.assert_close(scorer.scores[:, END], -loss)


def test_narrow_frames_are_scored_in_single_precision(frames):
    narrow, segments = frames[0].bfloat16(), frames[1]
    history, logits = torch.full((2, 1), BLANK), torch.zeros(2, SIZE)
    rest = segments, 1, BLANK, END, 0.5
    found, expected = (CTCPrefix(x, *rest)(logits, history) for x in (narrow, narrow.float()))
    assert torch.equal(found, expected)


def test_who_stays_goes_on_as_without_those_who_leave():
    random = torch.Generator().manual_seed(1)
    parts = [
        (3 * torch.randn(length, SIZE, generator=random)).log_softmax(-1) for length in (7, 3, 5)
    ]
    newest = torch.tensor([3, 4, 3, 0, 0, 4])  # of two rows each

    def scores(parts, tokens, stay):
        scorer = CTCPrefix(torch.cat(parts), Segments.of([*map(len, parts)]), 2, BLANK, END, 0.4)
        rows = torch.stack((torch.ones_like(tokens), tokens), 1)
        scorer(torch.zeros(len(rows), SIZE), rows[:, :1])
        scorer(torch.zeros(len(rows), SIZE), rows)
        scorer.select(stay)
        rows = torch.cat((rows[stay], tokens[stay].flip(0)[:, None]), 1)
        return scorer(torch.zeros(len(rows), SIZE), rows)

    stay = torch.tensor([0, 1, 4, 5])  # the source in the middle leaves
    alone = scores([parts[0], parts[2]], newest[stay], torch.arange(4))
    torch.testing.assert_close(scores(parts, newest, stay), alone)


def test_a_row_longer_than_its_source_is_impossible():
    """Also beside a longer one, whose frames it has as filler."""
    frames = torch.zeros(6, SIZE).log_softmax(-1)
    scorer = CTCPrefix(frames, Segments.of([1, 5]), 1, BLANK, END, 0.5)
    rows = torch.tensor([[1, 3, 4], [1, 3, 4]])
    for length in (1, 2, 3):
        scorer(torch.zeros(2, SIZE), rows[:, :length])
    assert scorer.scores[0].isinf().all()
    assert scorer.scores[1, END].isfinite()


def test_a_search_finds_the_likeliest_output(frames):
    scorer = CTCPrefix(*frames, beam=8, blank=BLANK, end=END, weight=0.999)
    strategy = Beam(8, [5, 3], BLANK, END, 0.0, "cpu")
    found = search(NoOpinion(), torch.empty(0), frames[1], strategy, [scorer, Forbid([BLANK])])
    for hypotheses, part in zip(found, frames[0].split(TIMES), strict=True):
        outputs = {row: p for row, p in outputs_of(part).items() if END not in row}
        best = max(outputs, key=lambda row: outputs[row])
        assert tuple(hypotheses[0].tokens) == best
        score = 0.999 * math.log(outputs[best]) - (len(best) + 1) * 0.001 * math.log(SIZE)
        assert hypotheses[0].score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("weight", [-0.1, 0.0, 1.0])
def test_an_impossible_weight_is_refused(frames, weight):
    with pytest.raises(ValueError, match=f"the weight of CTC is {weight}, must be between 0 and 1"):
        CTCPrefix(*frames, beam=1, blank=BLANK, end=END, weight=weight)


def test_the_best_path_collapses_the_likeliest_alignment(frames):
    log_probabilities, segments = frames
    paths = log_probabilities.argmax(-1).split(TIMES)
    expected = [[*collapsed(path.tolist())] for path in paths]
    assert best_path(log_probabilities, segments, BLANK) == expected
    written = torch.nn.functional.one_hot(torch.tensor([3, 3, 1, 3, 0, 1, 1, 4])).float()
    assert best_path(written, Segments.of([5, 0, 3]), BLANK) == [[3, 3, 0], [], [4]]
