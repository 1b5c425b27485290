"""Networks of photographs: a residual one adds its input, and both learn."""

import io
import tarfile

import numpy as np
import pytest
import torch
from transduct_course.residual import (
    Batch,
    Network,
    mirrored,
    read_photographs,
    trained_network,
    wrong,
)


def test_with_convolutions_of_zero_a_residual_network_passes_its_input_on():
    torch.manual_seed(1)
    plain, residual = Network(4, False).eval(), Network(4, True).eval()
    x = torch.randn(2, 3, 16, 16)
    for network in (plain, residual):
        with torch.no_grad():
            for block in network.blocks:
                block[4].weight.zero_()
    torch.testing.assert_close(residual(x), residual.last(residual.first(x).relu().mean((2, 3))))
    torch.testing.assert_close(plain(x), plain.last.bias.expand(2, -1))


@pytest.mark.parametrize("residual", [True, False])
def test_a_network_learns_two_colours(residual):
    pixels = torch.cat((torch.ones(20, 3, 16, 16), -torch.ones(20, 3, 16, 16)))
    data = Batch(pixels, torch.tensor([0] * 20 + [1] * 20))
    model, losses = trained_network(data, 2, residual, 30, 1)
    assert losses[-1] < losses[0]
    assert wrong(model, data) == 0


def test_photographs_are_read_halved_and_mirrored(tmp_path):
    image = pytest.importorskip("PIL.Image")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind in range(10):
            for number in range(3):
                made = io.BytesIO()
                pixels = np.full((32, 32, 3), 25 * kind, np.uint8)
                image.fromarray(pixels).save(made, "JPEG")
                member = tarfile.TarInfo(f"{kind}/{number}.jpg")
                member.size = len(made.getvalue())
                archive.addfile(member, io.BytesIO(made.getvalue()))
    data = read_photographs(tmp_path / "a.tar", 20)
    assert data.pixels.shape == (20, 3, 16, 16)
    assert data.labels.tolist() == [kind for kind in range(10) for _ in range(2)]
    assert data.pixels[0].mean() < data.pixels[-1].mean()
    batch = next(mirrored(data, 7, 1))
    assert batch.counts == {"labels": 7.0}
    assert torch.equal(batch.pixels, next(mirrored(data, 7, 1)).pixels)
