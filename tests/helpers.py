"""What many tests need: a tiny Transformer whose every parameter matters, flat batches for it, and
tasks and runs."""

import json
import shutil
from statistics import median

import pytest
import torch

from transduct.kernels import cpu
from transduct.models.transformer import Config, Transformer
from transduct.predictors.base import Predictor
from transduct.predictors.options import NoOptions
from transduct.segments import Filler, Segments
from transduct.training.step import seed_generators

BEGIN, END = 1, 2
SIZE = 11  # the vocabulary
TINY = {"d_model": 16, "num_heads": 4, "d_ff": 32}  # of layers

compiled = pytest.mark.skipif(
    cpu.library() is None,
    reason="the kernels in C could not be compiled, or the processor has no AVX2",
)


def with_settings(model, folder, /, **settings):
    """A copy of a model directory whose `config.json` has other settings."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def on_each_path(test):
    """Run a test of products on every instruction set of this machine."""
    return compiled(pytest.mark.usefixtures("each_path")(test))


def on_each_width(test):
    """Run a test of other kernels once for each width of a vector."""
    return compiled(pytest.mark.usefixtures("each_width")(test))


# Every position scheme, in every place where it can act.
VECTORS = [
    "index",
    "normalised_index",
    "binary",
    "one_hot",
    "learned",
    "sinusoidal",
    "sinusoidal_concatenated",
]
PLACES = [("none", "add"), ("rotary", "add"), ("alibi", "add"), ("relative", "add")] + [
    (scheme, mode) for scheme in VECTORS for mode in ("add", "concatenate", "attention")
]


class Stub(Predictor):
    """A predictor that has what it is given, and no model."""

    decoding = NoOptions()
    load = test_set = predict = evaluate = measured = None

    def __init__(self, **own):
        vars(self).update(own)


def randomise(module, seed=1, spread=0.3):
    """Add noise to every parameter that learns, so that no bias is zero and no gain one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, module.parameters()):
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    return module


def tiny(seed=1, **changes):
    """A Transformer of two layers and width 16, ready to be used."""
    torch.manual_seed(seed)
    sizes = {"source_size": SIZE, "target_size": SIZE, "max_length": 16}
    shape = {**TINY, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    shape["d_k"] = 16  # wide enough for a one-hot position
    return randomise(Transformer(Config(**{**sizes, **shape, **changes})).eval(), seed)


def tokens_of(lengths, seed=1, size=SIZE):
    """Random tokens of sequences of these lengths, and their segments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(size, (sum(lengths),), generator=generator), Segments.of(lengths)


def ready(task):
    """A task that is ready to train, and its model."""
    task.prepare()
    seed_generators(1)
    return task, task.build_model()


def assert_planned_for_dropout(task, monkeypatch):
    """Batches keep to their budget although BPE dropout lengthens what is in them."""

    def usual():
        sizes = [batch.tokens for batch in task.batches("train", 0, 0, 0, 1)]
        return median(sizes) / task.training.batch_tokens

    assert usual() < 1.05
    monkeypatch.setitem(task.__dict__, "growth", 1.0)  # the control
    assert usual() > 1.2


def weights(run):
    """The weights that a run has left, as bytes."""
    return (run / "model" / "model.safetensors").read_bytes()


class Interrupted(Exception):
    """Ends a run where a test wants it to."""


def gradients(output, inputs):
    """The gradient of a random projection of `output` with respect to each input."""
    torch.manual_seed(0)
    return torch.autograd.grad(
        (output * torch.randn(output.shape, dtype=output.dtype)).sum(), inputs
    )


def everything_in(directory):
    """Each file below a folder, and what it holds."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def real(batches):
    """A rank's batches without the fillers, which count nowhere."""
    return [batch for batch in batches if not isinstance(batch, Filler)]
