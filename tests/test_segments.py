"""A flat batch and its padded form hold the same tokens."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

import numpy as np
import pytest
import torch
from torch import Tensor

from transduct.segments import (
    FILLER,
    Axis,
    FlatBatch,
    Segments,
    Shape,
    concatenated,
    fill,
    flatten,
    pad,
    power_of_two,
    sources_of,
)

LAYOUTS = [[3, 1, 4], [2, 2, 2], [0, 5, 0, 1], [1], [7], [0, 0], [], [4, 0]]


@pytest.fixture(params=LAYOUTS, ids=str)
def lengths(request):
    return request.param


def test_segments_say_where_each_sequence_lies(lengths):
    segments = Segments.of(lengths)
    assert len(segments) == len(lengths)
    assert segments.lengths.tolist() == lengths
    assert segments.offsets.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert (segments.total, segments.longest) == (sum(lengths), max(lengths, default=0))
    assert segments.equal == (len(set(lengths)) <= 1)


def test_each_token_knows_its_sequence_its_position_and_its_slot(lengths):
    segments = Segments.of(lengths)
    places = [(number, place) for number, size in enumerate(lengths) for place in range(size)]
    assert segments.sequence.tolist() == [sequence for sequence, _ in places]
    assert segments.positions.tolist() == [position for _, position in places]
    assert segments.slots.tolist() == [i * segments.longest + position for i, position in places]
    assert segments.mask.nonzero().tolist() == [list(place) for place in places]


@pytest.mark.parametrize("rest", [(), (3,), (2, 3)], ids=str)
def test_flatten_undoes_pad_and_what_is_padded_is_zero(lengths, rest):
    segments = Segments.of(lengths)
    flat = torch.rand(segments.total, *rest) + 1.0
    padded = pad(flat, segments)
    assert padded.shape == (len(lengths), segments.longest, *rest)
    assert torch.equal(flatten(padded, segments), flat)
    assert not padded[~segments.mask].any()


def test_sequences_of_one_length_are_padded_without_a_copy():
    flat = torch.rand(6, 4)
    assert pad(flat, Segments.of([3, 3])).data_ptr() == flat.data_ptr()
    assert pad(flat, Segments.of([4, 2])).data_ptr() != flat.data_ptr()


def test_gradients_of_pad_and_flatten_reach_each_token_once():
    segments = Segments.of([3, 0, 1])
    flat = torch.rand(4, 2, requires_grad=True)
    flatten(pad(flat, segments), segments).sum().backward()
    assert torch.equal(flat.grad, torch.ones(4, 2))


def test_segments_move_between_devices():
    moved = Segments.of([3, 1]).to(torch.device("meta"))
    assert (moved.lengths.device.type, moved.offsets.device.type) == ("meta", "meta")
    assert (moved.longest, moved.total, moved.equal) == (3, 4, False)


def test_twice_is_the_same_sequences_once_more(lengths):
    found, expected = Segments.of(lengths).twice(), Segments.of([*lengths, *lengths])
    for name in ("lengths", "offsets", "sequence", "positions"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    for name in ("longest", "total", "equal"):
        assert getattr(found, name) == getattr(expected, name)


def test_runs_say_what_each_token_sees(lengths):
    segments = Segments.of(lengths)
    ends = [*accumulate(lengths, initial=0)]
    places = [place for place in pairwise(ends) for _ in range(place[1] - place[0])]
    assert segments.runs.T.tolist() == [list(place) for place in places]
    assert segments.past.T.tolist() == [[first, n + 1] for n, (first, _) in enumerate(places)]
    assert segments.future.T.tolist() == [[n, last] for n, (_, last) in enumerate(places)]
    assert {x.dtype for x in (segments.runs, segments.past, segments.future)} == {torch.int32}


def test_runs_of_the_sequence_of_the_same_number():
    keys, queries = Segments.of([2, 0, 3]), Segments.of([1, 2, 0])
    assert keys.runs_of(queries).T.tolist() == [[0, 2], [2, 2], [2, 2]]
    assert queries.runs_of(keys).T.tolist() == [[0, 1], [0, 1], [3, 3], [3, 3], [3, 3]]


@pytest.mark.parametrize("lengths", [[3, 1, 4], [128], [], [1] * 60, [90]], ids=str)
def test_filler_brings_every_batch_to_one_shape(lengths):
    shape = Shape(128, 70, 128)
    segments = Segments.filled(lengths, shape)
    assert (segments.total, len(segments), segments.longest) == (128, 70, 128)
    assert not segments.equal
    assert segments.lengths[: len(lengths)].tolist() == lengths
    assert segments.lengths[len(lengths) :].max() <= FILLER
    assert segments.offsets.tolist() == [0, *segments.lengths.cumsum(0).tolist()]
    assert not Segments.filled([64, 64], Shape(128, 2, 64)).equal


@pytest.mark.parametrize("lengths", [[129], [101], [65, 64], [1] * 69, [1] * 71], ids=sum)
def test_what_does_not_fit_is_refused(lengths):
    message = rf"{len(lengths)} sequences of {sum(lengths)} tokens, .* do not fit into"
    with pytest.raises(ValueError, match=message):
        Segments.filled(lengths, Shape(128, 70, 100))


def test_a_shape_holds_the_filler_sequences():
    shape = Shape.around(100, 5, 40)
    assert (shape.tokens, shape.longest) == (128, 40)
    for lengths in ([], [1] * 5, [20] * 5, [40, 40, 20]):
        assert len(Segments.filled(lengths, shape)) == shape.sequences
    short = Shape.around(100, 5, 3)  # filler is no longer than what it fills up
    for lengths in ([], [1] * 5, [3] * 5):
        assert len(Segments.filled(lengths, short)) == short.sequences
    assert Shape.around(10, 1, 200) == Shape(256, 9, 200)
    assert Shape.around(0, 0, 0) == Shape(0, 0, 0)


def test_what_was_remembered_in_inference_mode_is_kept_and_can_be_trained_on():
    segments, names = Segments.of([2, 3]), ("positions", "slots", "mask", "runs", "past", "future")
    with torch.inference_mode():
        held = [getattr(segments, name) for name in names]
    assert not any(x.is_inference() for x in held)
    assert segments.positions is held[0]
    flat = torch.rand(5, 4, requires_grad=True)
    pad(flat, segments).sum().backward()
    assert torch.equal(flat.grad, torch.ones(5, 4))


@pytest.mark.parametrize(
    "kept, sources", [([], []), ([5, 3, 4], [1]), ([2, 2, 0, 8, 6, 7], [0, 2])], ids=str
)
def test_the_rows_of_a_search_tell_their_sources(kept, sources):
    assert sources_of(torch.tensor(kept, dtype=torch.int64), 3).tolist() == sources


# few shapes


@pytest.mark.parametrize(
    "lengths, expected",
    [
        *[([3, 9, 16], (256, 48, 16)), ([17, 10], (256, 24, 32))],
        *[([90, 33], (256, 8, 100)), ([100], (256, 8, 100))],
    ],
)
def test_batches_of_similar_lengths_share_a_shape_that_holds_them(lengths, expected):
    shape = Shape.near(lengths, 200, 100)
    assert (shape.tokens, shape.sequences, shape.longest) == expected
    segments = Segments.filled(lengths, shape)
    assert (segments.total, len(segments), segments.longest) == expected
    assert segments.lengths[: len(lengths)].tolist() == lengths
    assert segments.fixed
    assert not Segments.of(lengths).fixed


@pytest.mark.parametrize("lengths", [[101], [1] * 25 + [30] * 4, [90, 90, 77]], ids=len)
def test_sequences_too_long_too_many_or_too_many_tokens_have_none(lengths):
    assert Shape.near(lengths, 200, 100) is None


def test_filler_may_be_shorter_and_rounded_counts_are_few():
    shape = Shape.near([30, 2], 200, 100, 8)
    assert Segments.filled([30, 2], shape).lengths.tolist()[2:] == [8] * 28 + [0] * 18
    assert [shape.rounded_up(count) for count in (0, 1, 16, 17, 256)] == [0, 16, 16, 32, 256]
    assert shape.rounded_up(65, 4) == 128


def test_rows_are_filled_up_with_equal_ones():
    assert fill(torch.tensor([5, 6]), 4, 7).tolist() == [5, 6, 7, 7]
    assert fill(torch.ones(1, 2), 3).tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_powers_of_two():
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 63, 64, 65)] == [1, 2, 4, 4, 8, 64, 64, 128]
    assert power_of_two(3, 16) == 16


def test_a_stretched_shape_holds_sequences_so_many_times_as_long():
    short = Segments.filled([5, 2], Shape(20, 9, 6, 4))
    long = Segments.filled([15, 6], Shape(20, 9, 6, 4).stretched(3))
    assert torch.equal(long.lengths, 3 * short.lengths)
    assert (long.total, len(long), long.longest) == (60, 9, 18)


@dataclass(frozen=True)
class Tagged(FlatBatch):
    terms = {"tags": "tags", "pairs": "pairs"}
    ids: Annotated[Tensor, Axis("tokens", 9)]
    segments: Annotated[Segments, Axis("tokens")]
    places: Annotated[Tensor, Axis("tags", within="tokens")]
    pairs: Annotated[Tensor | None, Axis("pairs", -1)] = None
    counted: Annotated[Tensor | None, Axis("tags", marks=True)] = None
    name: str = "tagged"


def tagged(**more):
    return Tagged.of(ids=[[1, 2, 3], [4]], places=[[0, 2], [0]], **more)


def test_examples_are_put_end_to_end_with_the_segments_and_positions_that_follow():
    batch = tagged()
    assert (batch.ids.tolist(), batch.ids.dtype) == ([1, 2, 3, 4], torch.int64)
    assert batch.segments.lengths.tolist() == [3, 1]
    assert batch.places.tolist() == [0, 2, 3]
    assert (batch.pairs, batch.counted, batch.real) == (None, None, None)


def test_rows_of_32_bit_numbers_stay_so_and_no_ids_are_ids():
    assert concatenated([np.ones((1, 2), np.float32)] * 2).dtype == torch.float32
    assert concatenated([[], []]).dtype == torch.int64


def test_a_batch_counts_its_axes_and_leaves_out_terms_without_one():
    assert tagged().sizes == {"tokens": 4, "sequences": 2, "tags": 3}
    assert (tagged().tokens, tagged().counts) == (4, {"tags": 3.0})
    assert tagged(pairs=[[1], [0]]).counts == {"tags": 3.0, "pairs": 2.0}


def test_filler_has_the_declared_value_and_does_not_count():
    batch = tagged(pairs=[[1], [0]])
    filled = batch.filled(tokens=Shape(6, 4, 4, 2), tags=5, pairs=4)
    assert filled.ids.tolist() == [1, 2, 3, 4, 9, 9]
    assert filled.segments.lengths.tolist() == [3, 1, 2, 0]
    assert filled.places.tolist() == [0, 2, 3, 0, 1]  # spread, so that gradients are
    assert filled.pairs.tolist() == [1, 0, -1, -1]
    assert filled.counted.tolist() == [1.0] * 3 + [0.0] * 2
    assert (filled.sizes, filled.tokens, filled.counts) == (batch.sizes, 4, batch.counts)
    assert filled.name == "tagged"
    assert tagged().filled(tokens=Shape(6, 4, 4, 2), tags=5, pairs=4).pairs is None
    with pytest.raises(ValueError, match="2 sequences of 4 tokens, 3 the longest, do not fit into"):
        tagged().filled(tokens=Shape(3, 9, 8), tags=5)


def test_a_batch_is_moved_whole_once():
    batch, meta = tagged().filled(tokens=Shape(6, 4, 4, 2), tags=5), torch.device("meta")
    moved = batch.to(meta)
    tensors = moved.ids, moved.places, moved.counted, moved.segments.lengths
    assert {each.device for each in tensors} == {meta}
    assert moved.counts == batch.counts
    assert moved.to(meta) is moved
