"""Weights in one file or several, read one by one."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from tests.refusals import refusal
from transduct import storage
from transduct.interop.weights import opened


def parts(folder):
    """Two files of one model, and their index."""
    held = {"a": torch.arange(6.0).view(3, 2), "b": torch.ones(2)}
    for number, name in enumerate(held):
        save_file({name: held[name]}, folder / f"part{number}.safetensors")
    files = {name: f"part{number}.safetensors" for number, name in enumerate(held)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return held


def test_several_files_are_one(tmp_path):
    held = parts(tmp_path)
    with opened(tmp_path) as weights:
        assert sorted(weights.names) == ["a", "b"]
        assert all(torch.equal(weights.tensor(name), held[name]) for name in held)
        assert (weights.shape("a"), weights.type_of("a")) == ((3, 2), "F32")
        assert weights.same("a", "a")
        assert not weights.same("a", "b")


def test_pickles_are_read_where_there_is_nothing_else(tmp_path, pickles_here):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    with opened(tmp_path) as weights:
        assert torch.equal(weights.tensor("a"), torch.ones(2))


def index(folder, **files):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: index(f, a="../a.safetensors"), "names the file '../a.safetensors'; expected n"),
        (lambda f: index(f, a="gone.safetensors"), "names gone.safetensors, which is not here"),
        (lambda f: index(f, **{str(n): f"{n}.bin" for n in range(1001)}), "names 1,001 files, at"),
        (lambda f: both(f), "names files of two kinds; copy the model again"),
        (lambda f: twice(f), "holds weight 'a', as does"),
    ],
)
def test_an_index_that_leads_astray_is_refused(tmp_path, change, message):
    parts(tmp_path)
    change(tmp_path)
    with refusal(re.escape(message)), opened(tmp_path):
        pass


def both(folder):
    (folder / "a.bin").write_bytes(b"")
    index(folder, a="a.bin", b="part1.safetensors")


def twice(folder):
    save_file({"a": torch.ones(1)}, folder / "part1.safetensors")


def test_what_is_written_in_turns_is_what_is_written_at_once(tmp_path):
    held = {"a": torch.randn(3, 2), "b": torch.ones(5).bfloat16(), "c": torch.arange(3)}
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in held.items()}
    storage.write_tensors(tmp_path / "x.safetensors", shapes, held.__getitem__)
    found = storage.read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == held.keys()
    assert all(torch.equal(found[name], held[name]) for name in held)
