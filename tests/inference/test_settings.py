"""Settings of a search."""

import torch

from transduct.inference.settings import CAPTURED, ON_CPU, ON_GPU, DecodingConfig


def test_what_suits_the_device_is_decoded_together():
    assert DecodingConfig().budget(torch.device("cpu")) == ON_CPU
    assert DecodingConfig().budget(torch.device("cuda")) == ON_GPU
    assert DecodingConfig(captured=True).budget(torch.device("cuda")) == CAPTURED
    assert DecodingConfig(captured=True).budget(torch.device("cpu")) == ON_CPU
    assert DecodingConfig(beam=8).budget(torch.device("cpu")) == ON_CPU
    assert DecodingConfig(beam=80).budget(torch.device("cpu")) == ON_CPU // 10
    assert DecodingConfig(beam=80, batch_tokens=77).budget(torch.device("cpu")) == 77
    assert DecodingConfig(batch_tokens=7).budget(torch.device("cpu")) == 7
