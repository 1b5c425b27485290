"""Inputs of one shape share static tensors, in new records without cached state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.graphs import replayed_eagerly
from transduct.kernels import cuda_graphs
from transduct.kernels.cuda_graphs import Replay
from transduct.segments import Segments


@dataclass(frozen=True)
class Inputs:
    tokens: Tensor
    segments: Segments
    more: Mapping
    filler: int = field(default=0, compare=False)


def inputs(number, lengths=(2, 1), filler=0, kind=torch.float32, name="x"):
    return Inputs(
        torch.full((3,), number, dtype=kind),
        Segments.of(lengths),
        {"none": None, name: torch.ones(2)},
        filler,
    )


def test_inputs_are_copied_into_the_first_tensors_as_new_records():
    seen = []

    def function(held, totals):
        seen.append((held, totals, held.segments.positions.tolist()))
        return held.tokens.sum() / totals["tokens"]

    replay = Replay(function, torch.device("cpu"), True)
    given = [
        (inputs(number, lengths), {"tokens": float(number)})
        for number, lengths in ((1, (2, 1)), (4, (1, 2)))
    ]
    assert [float(replay(*each)) for each in given] == [3.0, 3.0]
    one, other = seen
    assert one[0] is not other[0]
    assert one[0].segments is not other[0].segments
    assert (one[2], other[2]) == ([0, 1, 0], [0, 0, 1]), "nothing is remembered of the batch before"
    for first, second in zip(
        (one[0].tokens, one[1]["tokens"]), (other[0].tokens, other[1]["tokens"]), strict=True
    ):
        assert first.data_ptr() == second.data_ptr()
    assert given[0][0].tokens.tolist() == [1, 1, 1], "what was given stays as it was"


def test_what_is_not_compared_may_differ():
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    assert [float(replay(inputs(2, filler=filler))) for filler in (0, 3)] == [6.0, 6.0]


@pytest.mark.parametrize(
    "other",
    [
        inputs(1, (3,)),
        inputs(1, (1, 1, 1)),
        inputs(1, (3, 0)),  # whose longest is another number
        inputs(1, kind=torch.float64),
        inputs(1, name="y"),
    ],
    ids=range(5),
)
def test_another_shape_has_tensors_of_its_own_once_it_comes_again(other):
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    results = [float(replay(each)) for each in (inputs(1), other, inputs(2), other, other)]
    assert results == [3.0, float(other.tokens.sum()), 6.0, *[float(other.tokens.sum())] * 2]
    assert len(replay.kept) == 2


def test_only_a_few_repeated_shapes_are_kept():
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    for lengths in [(3 - n % 2, *[0] * n) for n in range(3, 30)]:
        replay(inputs(1, lengths))
    assert len(replay.kept) == 1
    for lengths in [(3 - n % 2, *[0] * n) for n in range(3, 30)]:
        replay(inputs(1, lengths))
    assert len(replay.kept) == cuda_graphs.MOST
    assert len(replay.seen) <= cuda_graphs.REMEMBERED


@pytest.fixture
def graphs(monkeypatch):
    """Graphs that run on a CPU; see `tests.graphs`."""
    return replayed_eagerly(monkeypatch)


def captured_replay(function, said):
    replay = Replay(function, torch.device("cpu"), True, said.append)
    replay.captured = True
    return replay


def test_each_kept_shape_is_captured_once_and_replayed_from_then_on(graphs):
    total, called, said = torch.zeros(()), [], []

    def function(held):
        called.append(held.tokens.shape)
        total.add_(held.tokens.sum())
        return held.tokens.sum() * held.more["x"].sum()

    replay, results = captured_replay(function, said), []
    for number, lengths in (
        (1, (2, 1)),
        (2, (2, 1)),
        (3, (3,)),
        (4, (2, 1)),
        (5, (3,)),
        (6, (3,)),
        (7, (3,)),
    ):
        results.append(float(replay(inputs(number, lengths))))
    assert results == [6.0 * number for number in range(1, 8)]
    assert float(total) == 3.0 * sum(range(1, 8))
    assert len(called) == 5, "a warm-up and a capture of each, and the second's first call"
    assert (len(graphs), said) == (2, [])


def test_a_failed_capture_is_reported_once_and_the_calls_run_without(graphs, monkeypatch):
    said, forgotten = [], []
    monkeypatch.setattr(cuda_graphs, "forget_failed_capture", lambda *_: forgotten.append(1))

    def function(held):
        if graphs:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        return held.tokens.sum()

    replay = captured_replay(function, said)
    assert [float(replay(inputs(1))) for _ in range(1)] == [3.0]
    with pytest.raises(RuntimeError, match="operation not permitted"):
        replay(inputs(2))  # this one fails outside too
    graphs.clear()
    assert [float(replay(inputs(number))) for number in (2, 3)] == [6.0, 9.0]
    assert forgotten == [1]
    assert said == [
        "steps cannot be captured and run without: RuntimeError: operation not permitted"
    ]


def test_a_failed_capture_leaves_a_generator_of_the_same_seed_and_the_stream_of_before(monkeypatch):
    done = []
    held = SimpleNamespace(initial_seed=lambda: 7, graphsafe_set_state=done.append)
    monkeypatch.setattr(torch.cuda, "default_generators", [None, held])
    monkeypatch.setattr(torch.cuda, "set_stream", done.append)
    monkeypatch.setattr(torch, "Generator", lambda device: torch._C.Generator())
    cuda_graphs.forget_failed_capture(torch.device("cuda", 1), "stream")
    assert done[0] == "stream"
    assert done[1].initial_seed() == 7
