"""A task for the trainer without text: a small network learns a fixed function of three numbers."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from transduct.data.batching import load
from transduct.training.config import TrainingConfig
from transduct.training.log import ignore
from transduct.training.optim import make_optimiser
from transduct.training.trainer import fit

# of the batches of an epoch; five, so that two ranks never share them evenly
SIZES = (3, 7, 1, 5, 6)
CONFIG = TrainingConfig(
    steps=12,
    batch_tokens=8,
    learning_rate=0.05,
    warmup=2,
    log_every=1,
    validate_every=4,
    checkpoint_every=3,
    keep_checkpoints=3,
    device="cpu",
)


@dataclass(frozen=True)
class Batch:
    """Examples and what the network should say; each example counts as one token."""

    inputs: Tensor
    targets: Tensor
    number: int

    @property
    def tokens(self):
        return len(self.inputs)

    @property
    def counts(self):
        return {"tokens": float(len(self.inputs))}

    def to(self, device):
        return self


def examples(number):
    """Batch `number` of every epoch."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(SIZES[number], 3, generator=generator)
    return Batch(inputs, inputs.sum(1, keepdim=True).tanh(), number)


def batches(split, epoch, start, rank, world, a_step=None, window=0):
    """The batches of an epoch; odd epochs go backwards."""
    order = range(len(SIZES)) if epoch % 2 == 0 else range(len(SIZES))[::-1]
    plan = [np.array([number]) for number in order]
    return load(plan, lambda numbers: examples(int(numbers[0])), start, rank, world, 0, a_step)


def loss(model, batch):
    return {
        "tokens": (
            (model(batch.inputs) - batch.targets).square().sum(),
            batch.counts["tokens"],
            1.0,
        )
    }


def network(dropout=0.0):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def trained(steps=2):
    """A model and its optimiser after a few steps."""
    model = network()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.0)
    for number in range(steps):
        optimiser.zero_grad()
        loss(model, examples(number % 5))["tokens"][0].backward()
        optimiser.step()
    return model, optimiser


@dataclass(frozen=True)
class Report:
    scores: dict
    details: dict
    lower_is_better: frozenset = frozenset({"loss"})

    def hopeless(self, name):
        return name not in self.lower_is_better and self.scores[name] == 0.0


def validate(model):
    """The loss over all examples."""
    with torch.no_grad():
        terms = [loss(model, examples(number))["tokens"] for number in range(len(SIZES))]
    return Report({"loss": float(sum(s for s, _, _ in terms)) / sum(SIZES)}, {"seen": "all"})


def train(
    directory,
    model=None,
    batches=batches,
    loss=loss,
    validate=validate,
    report=ignore,
    validated_on="",
    windows=1,
    **changes,
):
    """Train in a directory with changes to `CONFIG`; the model and the state it ended in."""
    directory.mkdir(exist_ok=True)
    model = model or network()
    config, about = replace(CONFIG, **changes), (validate, report, validated_on, windows)
    return model, fit(model, config, directory, batches, loss, *about)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]
