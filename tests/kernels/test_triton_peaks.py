"""The Triton kernel equals torch's maxima and log-sum-exps, on a GPU or in Triton's interpreter."""

import pytest
import torch

from tests.kernels.on_triton import DEVICE, passes
from transduct.kernels import triton_peaks as ours
from transduct.kernels.triton_peaks import PIECE, row_peaks

pytestmark = pytest.mark.gpu
WIDTH = 64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, WIDTH, 2 * WIDTH + 5, PIECE, 2 * PIECE + WIDTH + 1])
def test_maxima_and_masses_are_torchs(size, dtype):
    logits = (3.0 * torch.randn(3, size)).to(DEVICE, dtype).T.contiguous().T  # whatever its strides
    logits[1, : size // 2] = float("-inf")
    peaks, masses = row_peaks(logits, WIDTH)
    assert torch.equal(
        peaks, torch.stack([block.amax(1) for block in logits.float().split(WIDTH, 1)], 1)
    )
    expected = torch.stack([piece.logsumexp(1) for piece in logits.float().split(PIECE, 1)], 1)
    torch.testing.assert_close(masses, expected)
    torch.testing.assert_close(masses.logsumexp(1), logits.float().logsumexp(1))


def test_a_piece_without_mass_has_none():
    logits = torch.full((2, PIECE + 3), float("-inf"), device=DEVICE)
    logits[:, -1] = 1e4
    peaks, masses = row_peaks(logits, WIDTH)
    assert masses.tolist() == [[float("-inf"), 1e4]] * 2
    assert (peaks == float("-inf")).sum(1).tolist() == [PIECE // WIDTH] * 2


def test_no_rows_have_no_peaks():
    peaks, masses = row_peaks(torch.zeros(0, 70, device=DEVICE), WIDTH)
    assert (peaks.shape, masses.shape) == ((0, 2), (0, 1))


def test_the_trial_is_passed_and_notices_a_wrong_number(monkeypatch):
    assert passes(ours.trial(DEVICE, torch.float32, WIDTH))
    assert passes(ours.trial(DEVICE, torch.bfloat16, WIDTH))
    right = ours.row_peaks
    for spoilt in (0, 1):
        wrong = [1.001 if part == spoilt else 1.0 for part in range(2)]
        monkeypatch.setattr(
            ours, "row_peaks", lambda *given, w=wrong: [x * f for x, f in zip(right(*given), w)]
        )
        assert not passes(ours.trial(DEVICE, torch.float32, WIDTH))
