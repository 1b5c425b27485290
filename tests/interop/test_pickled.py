"""A pickle of weights gives tensors, or one line; nothing that it names is run."""

import os
import pickle
import re

import pytest
import torch

from tests.refusals import refusal
from transduct import storage
from transduct.interop import pickled


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_tensors_come_back_whatever_their_strides(tmp_path, pickles_here):
    held = {"a": torch.randn(3, 4).t(), "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save(held, tmp_path / "new.bin")
    torch.save(held, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    for name in ("new", "old"):
        pickled.as_safetensors(tmp_path / f"{name}.bin", tmp_path / name)
        found = storage.read_tensors(tmp_path / name)
        assert found.keys() == held.keys()
        assert all(torch.equal(found[key], held[key]) for key in held)


def test_a_malicious_pickle_runs_nothing(tmp_path, pickles_here):
    marker = tmp_path / "ran"
    torch.save({"a": torch.ones(1), "b": Malicious(marker)}, tmp_path / "zip.bin")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(Malicious(marker)))
    for name in ("zip.bin", "plain.bin"):
        with refusal(r"asks for more than tensors .*; take the weights"):
            pickled.as_safetensors(tmp_path / name, tmp_path / "out")
        assert not marker.exists()
        assert not (tmp_path / "out").exists()


NO_TENSORS = [
    ([torch.ones(1)], "holds a list, expected tensors by name"),
    ({"a": "text"}, "holds 'a', which is no plain tensor with a name"),
    ({}, "holds a dict, expected tensors by name"),
]


@pytest.mark.parametrize("held, message", NO_TENSORS)
def test_what_is_no_tensor_is_refused(tmp_path, pickles_here, held, message):
    torch.save(held, tmp_path / "weights.bin")
    with refusal(re.escape(message)):
        pickled.as_safetensors(tmp_path / "weights.bin", tmp_path / "out")


def test_a_file_that_is_cut_is_refused(tmp_path, pickles_here):
    torch.save({"a": torch.ones(1000)}, tmp_path / "cut.bin")
    data = (tmp_path / "cut.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(data[: len(data) // 2])
    with refusal(r"damaged pickle of weights|asks for more"):
        pickled.as_safetensors(tmp_path / "cut.bin", tmp_path / "out")
    with refusal(r"cannot be read .*; expected a pickle of weights"):
        pickled.as_safetensors(tmp_path / "none.bin", tmp_path / "out")


def test_a_file_that_lies_of_its_size_ends_its_own_process(tmp_path):
    torch.save({"a": torch.zeros(1).expand(1 << 34)}, tmp_path / "bomb.bin")  # 64 GB once whole
    with refusal("memory"):
        pickled.as_safetensors(tmp_path / "bomb.bin", tmp_path / "out")
