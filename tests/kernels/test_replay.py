"""Inputs of one shape share static tensors, in new records without cached state."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from transduct.errors import TrainingFailed
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


def test_copies_lie_where_the_first_lay_and_are_new_records():
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
def test_another_shape_is_refused(other):
    replay = Replay(lambda held: held.tokens.sum(), torch.device("cpu"), False)
    replay(inputs(1))
    message = (
        "a batch has another shape than the first: found .*; set training.compile=false "
        "and training.capture"
    )
    with pytest.raises(TrainingFailed, match=message):
        replay(other)
