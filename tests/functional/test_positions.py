"""Every position scheme equals its definition and has the property it was invented for."""

import math

import pytest
import torch

from transduct.functional import positions as schemes

POSITIONS = torch.arange(20)


def test_index_and_normalised_index():
    assert torch.equal(schemes.index(torch.tensor([0, 3])), torch.tensor([[0.0], [3.0]]))
    found = schemes.normalised_index(torch.tensor([0, 3, 0, 1]), torch.tensor([4, 4, 2, 2]))
    assert found.tolist() == [[0.0], [0.75], [0.0], [0.5]]


def test_binary_reads_back_as_the_index():
    bits = schemes.binary(POSITIONS, 5)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(bits @ 2.0 ** torch.arange(5), POSITIONS.float())


def test_one_hot_times_a_table_is_the_learned_embedding():
    table = torch.randn(20, 3)
    assert torch.equal(schemes.one_hot(POSITIONS, 20) @ table, table[POSITIONS])


@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_sinusoidal_is_the_papers_formula(width):
    def entry(t, i):
        angle = t / 10000 ** (2 * (i // 2) / (width + width % 2))
        return math.cos(angle) if i % 2 else math.sin(angle)

    expected = torch.tensor([[entry(t, i) for i in range(width)] for t in range(20)])
    found = schemes.sinusoidal(POSITIONS, width)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_concatenated_holds_the_same_numbers_sines_first():
    interleaved, concatenated = (
        f(POSITIONS, 8) for f in (schemes.sinusoidal, schemes.sinusoidal_concatenated)
    )
    assert torch.equal(concatenated, torch.cat((interleaved[:, ::2], interleaved[:, 1::2]), 1))
    assert schemes.sinusoidal_concatenated(POSITIONS, 7).shape == (20, 7)


@pytest.mark.parametrize("encode", [schemes.sinusoidal, schemes.sinusoidal_concatenated])
def test_the_dot_product_of_sinusoids_depends_on_their_distance_alone(encode):
    vectors = encode(POSITIONS, 16)
    expected = schemes.dot_product_by_distance(POSITIONS - POSITIONS[:, None], 16)
    torch.testing.assert_close(vectors @ vectors.T, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("width", [7, 8])
def test_in_a_plane_half_tells_the_row_and_half_the_column(width):
    rows, columns = torch.tensor([0.0, 0.5, 3.0, 3.0]), torch.tensor([0, 2, 2, 5])
    found = schemes.sinusoidal_2d(rows, columns, width)
    assert found.shape == (4, width)
    assert torch.equal(found[:, :4], schemes.sinusoidal(rows, 4))
    assert torch.equal(found[:, 4:], schemes.sinusoidal(columns, width - 4))


def test_rotary_keeps_lengths_and_makes_the_dot_product_relative():
    query, key = torch.randn(2, 1, 3, 8, dtype=torch.float64)  # one token, three heads

    def score(at, to):
        turned = schemes.rotary(query, torch.tensor([at])), schemes.rotary(key, torch.tensor([to]))
        return (turned[0] * turned[1]).sum(-1)

    torch.testing.assert_close(score(2, 5), score(9, 12), atol=1e-6, rtol=1e-6)
    assert not torch.isclose(score(2, 5), score(2, 6)).any()
    torch.testing.assert_close(score(0, 0), (query * key).sum(-1))
    turned = schemes.rotary(query, torch.tensor([7]))
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("position", [3, -3])
def test_rotary_turns_each_pair_by_its_angle(position):
    x = torch.randn(1, 1, 4)
    pairs = torch.complex(x[..., :2], x[..., 2:])
    turned = pairs * torch.exp(1j * position * schemes.frequencies(4))
    found = schemes.rotary(x, torch.tensor([position]))
    torch.testing.assert_close(found, torch.cat((turned.real, turned.imag), -1))


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_rotary_is_the_same_whatever_the_default_dtype(in_float64):
    schemes.turns.cache_clear()
    x, positions = torch.randn(5, 2, 8, dtype=torch.float32), torch.arange(5)
    expected = schemes.rotary(x.double(), positions).float()
    torch.testing.assert_close(schemes.rotary(x, positions), expected)


def test_rotary_has_one_base(monkeypatch):
    x, positions = torch.randn(5, 2, 8), torch.arange(5)
    before = schemes.rotary(x, positions)
    monkeypatch.setattr(schemes, "BASE", 100.0)
    schemes.turns.cache_clear()
    try:
        found, expected = (
            schemes.rotary(x, positions),
            schemes.rotary(x.double(), positions).float(),
        )
        # by the kernel, where there is one, and by the formula
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(found, before)
    finally:
        schemes.turns.cache_clear()


def test_rotary_keeps_the_dtype():
    x = torch.randn(5, 2, 8)
    # by the kernel, where there is one, and by the formula
    for positions in (torch.arange(5), torch.arange(-2, 3)):
        found = schemes.rotary(x.bfloat16(), positions)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), schemes.rotary(x, positions), atol=0.05, rtol=0.0)


def test_distances_of_the_last_queries():
    assert schemes.distances(2, 3).tolist() == [[-1, 0, 1], [-2, -1, 0]]


def test_alibi_is_minus_slope_times_distance():
    assert schemes.alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    bias = schemes.alibi(4, 3, 5)
    assert bias.shape == (4, 3, 5)
    for head, slope in enumerate(schemes.alibi_slopes(4).tolist()):
        expected = [[-slope * abs(j - (i + 2)) for j in range(5)] for i in range(3)]
        assert bias[head].tolist() == expected


def test_relative_looks_up_clipped_distances():
    query, table = torch.randn(2, 3, 4, 6), torch.randn(5, 6)  # clipped at a distance of two
    found = schemes.relative(query, table, 7)
    assert found.shape == (2, 3, 4, 7)
    for i in range(4):
        for j in range(7):
            vector = table[min(2, max(-2, j - (i + 3))) + 2]
            torch.testing.assert_close(found[:, :, i, j], query[:, :, i] @ vector / math.sqrt(6))
