"""A number added to all dimensions vanishes in the first norm; along one direction it does not."""

import pytest
import torch
from transduct_course import small
from transduct_course.positions import NUMBERS, SYMBOLS, Placed, built, marked

ROWS = [([3, 4, 5, 6, 7, 8], [5, 3])]


def logits(scheme, places=None):
    with torch.no_grad():
        model = small.seeded(1, lambda: built(scheme, 64, places)).eval()
        return small.forced_logits(model, small.batch_of(ROWS))


@pytest.mark.parametrize("scheme", ["index", "normalised_index"])
def test_a_number_on_all_dimensions_is_no_position_at_all(scheme):
    torch.testing.assert_close(logits(scheme), logits("none"), atol=1e-4, rtol=0)
    assert (logits("sinusoidal") - logits("none")).abs().max() > 0.1


@pytest.mark.parametrize("scheme", NUMBERS)
def test_placed_vectors_have_the_mean_length_of_sinusoids_and_are_seen(scheme):
    model = built(scheme, 64, 16)
    vectors = model.source_embedding.positions
    assert isinstance(vectors, Placed)
    lengths = vectors(torch.arange(16), torch.full((16,), 16)).norm(dim=1)
    assert float(lengths.mean()) == pytest.approx(32**0.5)
    torch.manual_seed(1)
    with torch.no_grad():
        x = model.source_embedding(torch.tensor([3, 3, 3]), torch.arange(3), torch.full((3,), 3))
        x = x - x.mean(1, keepdim=True)
    assert min(torch.pdist(x)) > 0.1


def test_the_answer_stands_two_to_the_left_of_the_mark():
    for source, target in small.pairs(marked, 50, 1, 4, 9):
        place = source.index(small.FIRST + SYMBOLS)
        assert target == [source[place - 2]]
        assert 4 <= len(source) <= 9
