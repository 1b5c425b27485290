"""Embeddings: tokens times sqrt(d_model), with their positions."""

import math
from typing import get_args

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import VECTORS
from transduct.blocks.embeddings import (
    Embedding,
    FilterbankStem,
    GroupedLinear,
    PatchEmbedding,
    PositionVectors,
    VectorScheme,
    embedding_table,
)
from transduct.functional import positions as schemes
from transduct.segments import Segments

POSITIONS, LENGTHS = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([3, 3, 3, 2, 2])
D, LONGEST = 16, 12


@pytest.mark.parametrize(
    ("scheme", "width"), [("index", 1), ("normalised_index", 1), ("binary", 4), ("one_hot", 12)]
)
def test_schemes_with_a_width_of_their_own_are_filled_up(scheme, width):
    own = PositionVectors(scheme, LONGEST, None)
    wide = PositionVectors(scheme, LONGEST, 14)
    assert own.width == width
    vectors, filled = own(POSITIONS, LENGTHS), wide(POSITIONS, LENGTHS)
    assert vectors.shape == (5, width)
    if width == 1:
        assert torch.equal(filled, vectors.expand(-1, 14))
    else:
        assert torch.equal(filled[:, :width], vectors)
        assert not filled[:, width:].any()


@pytest.mark.parametrize(
    ("scheme", "function"),
    [
        ("index", lambda width: schemes.index(POSITIONS).expand(-1, width)),
        (
            "normalised_index",
            lambda width: schemes.normalised_index(POSITIONS, LENGTHS).expand(-1, width),
        ),
        ("binary", lambda width: schemes.binary(POSITIONS, width)),
        ("one_hot", lambda width: schemes.one_hot(POSITIONS, width)),
        ("sinusoidal", lambda width: schemes.sinusoidal(POSITIONS, width)),
        (
            "sinusoidal_concatenated",
            lambda width: schemes.sinusoidal_concatenated(POSITIONS, width),
        ),
    ],
)
def test_each_scheme_is_its_function(scheme, function):
    assert torch.equal(PositionVectors(scheme, LONGEST, 14)(POSITIONS, LENGTHS), function(14))


def test_learned_vectors_are_rows_of_a_table_that_learns():
    vectors = PositionVectors("learned", LONGEST, 6)
    found = vectors(POSITIONS, LENGTHS)
    assert torch.equal(found, vectors.table[POSITIONS])
    found.sum().backward()
    # as often as each position came
    assert vectors.table.grad.sum(1).tolist() == [12.0, 12.0, 6.0] + [0.0] * 9


@pytest.mark.parametrize("longest", [1, 2, 255, 256, 257])
def test_the_bits_of_the_last_position_fit(longest):
    vectors = PositionVectors("binary", longest, None)
    last = vectors(torch.tensor([longest - 1]), torch.tensor([longest]))
    assert int((last * 2 ** torch.arange(vectors.width)).sum()) == longest - 1


@pytest.mark.parametrize(
    ("scheme", "width", "message"),
    [
        ("sinusoidal", None, "positions 'sinusoidal' have no width of their own; give one"),
        ("learned", None, "positions 'learned' have no width of their own; give one"),
        ("one_hot", 8, "positions 'one_hot' up to 12 need a width of 12, found 8"),
        ("binary", 3, "positions 'binary' up to 12 need a width of 4, found 3"),
    ],
)
def test_widths_that_do_not_fit_are_refused(scheme, width, message):
    with pytest.raises(ValueError, match=message):
        PositionVectors(scheme, LONGEST, width)


TOKENS = torch.tensor([4, 0, 4, 2, 1])


@pytest.mark.parametrize("scheme", [None, *VECTORS])
@pytest.mark.parametrize("mode", ["add", "concatenate"])
def test_tokens_are_scaled_and_positions_added_or_concatenated(scheme, mode):
    table = embedding_table(5, D)
    embedding = Embedding(table, scheme, mode, LONGEST, rate=0.0)
    x = table[TOKENS] * math.sqrt(D)
    if scheme is not None:
        vectors = embedding.positions(POSITIONS, LENGTHS)
        x = x + vectors if mode == "add" else embedding.projection(torch.cat((x, vectors), -1))
    torch.testing.assert_close(embedding(TOKENS, POSITIONS, LENGTHS), x)


def test_where_lengths_are_unknown_positions_are_parts_of_the_longest():
    embedding = Embedding(embedding_table(5, D), "normalised_index", "add", LONGEST, rate=0.0)
    expected = embedding(TOKENS, POSITIONS, torch.full_like(POSITIONS, LONGEST))
    assert torch.equal(embedding(TOKENS, POSITIONS), expected)


def test_dropout_acts_on_the_sum_in_training_only():
    embedding = Embedding(embedding_table(5, D), "sinusoidal", "add", LONGEST, rate=0.5)
    torch.manual_seed(1)
    dropped, kept = (
        embedding(TOKENS, POSITIONS, LENGTHS),
        embedding.eval()(TOKENS, POSITIONS, LENGTHS),
    )
    gone = dropped == 0
    assert 20 < gone.sum() < 60
    torch.testing.assert_close(dropped[~gone], 2 * kept[~gone])


@pytest.mark.parametrize("channels", [3, 2])
def test_patches_are_a_convolution_with_steps_as_long_as_its_window(channels):
    torch.manual_seed(1)
    patches, pictures = PatchEmbedding(4, D, channels), torch.randn(2, channels, 8, 12)
    weight = patches.projection.weight.view(D, channels, 4, 4)
    expected = F.conv2d(pictures, weight, patches.projection.bias, stride=4)  # (B, D, 2, 3)
    torch.testing.assert_close(patches(pictures), expected.flatten(2).transpose(1, 2))
    as_photographs_lie = pictures.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    torch.testing.assert_close(patches(as_photographs_lie), patches(pictures))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("layers", [0, 2])
@torch.no_grad()
def test_the_stem_is_convolutions_of_each_sequence_alone(groups, layers):
    torch.manual_seed(1)
    stem, lengths = FilterbankStem(8, D, layers, groups), [8, 4, 20]
    segments = Segments.of(lengths)
    x = torch.randn(sum(lengths), 8)
    for layer in (stem.first, stem.second, *stem.residual):
        layer.bias.normal_()
    found, quarters = stem(x, segments)
    assert quarters.lengths.tolist() == [2, 1, 5]
    assert (quarters.longest, quarters.total, quarters.offsets.tolist()) == (5, 8, [0, 2, 3, 8])

    def convolved(layer, y, stride):
        # (D, C / groups, 3)
        weight = layer.weight.unflatten(1, (3, -1)).permute(0, 3, 2, 1).flatten(0, 1)
        return F.gelu(F.conv1d(y, weight, layer.bias, stride=stride, padding=1, groups=groups))

    for one, part in zip(x.split(lengths), found.split([2, 1, 5]), strict=True):
        y = convolved(stem.second, convolved(stem.first, one.T[None], 2), 2)
        for norm, layer in zip(stem.norms, stem.residual, strict=True):
            y = y + convolved(layer, norm(y[0].T).T[None], 1)
        torch.testing.assert_close(part, y[0].T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_group_begins_like_a_layer_of_its_size(groups):
    torch.manual_seed(1)
    bound = (6 / (40 / groups + 24 / groups)) ** 0.5
    assert 0.95 * bound < float(GroupedLinear(40, 24, groups).weight.detach().abs().max()) <= bound


@torch.no_grad()
def test_groups_of_bands_do_not_mix():
    torch.manual_seed(1)
    stem, segments = FilterbankStem(8, D, layers=2, groups=4), Segments.of([8])
    x = torch.randn(8, 8)
    other = x.clone()
    other[:, 2:4] += 1.0  # the bands of the second group
    difference = (stem(x, segments)[0] - stem(other, segments)[0]).abs().amax(0).view(4, -1).amax(1)
    assert difference[1] > 1e-3
    assert difference[[0, 2, 3]].max() == 0.0


# in use


@pytest.mark.parametrize("scheme", VECTORS)
def test_tabulated_vectors_are_the_same(scheme):
    plain = PositionVectors(scheme, LONGEST, 14)
    expected = plain(POSITIONS, LENGTHS).detach()
    plain.remember(torch.float32)
    assert torch.equal(plain(POSITIONS, LENGTHS), expected)
    held = plain.table is not None
    assert held == (scheme not in schemes.LENGTH_DEPENDENT), (
        "one that depends on a length cannot be held"
    )
    assert not held or plain.table.shape == (LONGEST, 14)


@pytest.mark.parametrize("scheme", get_args(VectorScheme))
def test_the_schemes_that_depend_on_a_length_are_named(scheme):
    vectors = PositionVectors(scheme, LONGEST, 14)
    short, long = (vectors(torch.tensor([1]), torch.tensor([length])) for length in (2, LONGEST))
    assert torch.equal(short, long) == (scheme not in schemes.LENGTH_DEPENDENT)


def test_tabulated_vectors_do_not_learn_and_learned_ones_stay():
    drawn, learned = (
        PositionVectors("sinusoidal", LONGEST, 14),
        PositionVectors("learned", LONGEST, 14),
    )
    before = learned.table
    for vectors in (drawn, learned):
        vectors.remember(torch.bfloat16)
        vectors.remember(torch.float32)
    assert not drawn.table.requires_grad
    assert drawn.table.dtype == torch.bfloat16, "as it was asked for first"
    assert learned.table is before
