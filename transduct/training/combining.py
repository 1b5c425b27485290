"""How the gradients of the ranks are summed: after the backward pass in one message, or during it
in buckets, by PyTorch's DistributedDataParallel.

Sums travel, never averages: what they are divided by is known before the step. Gradients travel
once a step, with its last micro-batch.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transduct.errors import TrainingFailed
from transduct.training.distributed import Ranks

Terms = Mapping[str, tuple[Tensor, float, float]]
LossOf = Callable[[nn.Module, Any], Terms]


class WholeLoss(nn.Module):
    """The loss of a micro-batch as the `forward` of a module: PyTorch's tools hook into that, and a
    loss calls other methods of a model too."""

    def __init__(self, model: nn.Module, loss: LossOf) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any, totals: Mapping[str, Any]) -> Tensor:
        """The weighted sum of the terms, each divided by its total."""
        terms = self.loss(self.model, batch)
        _check_counts(terms, batch.counts)
        return sum(
            (weight * s / totals[name] for name, (s, _, weight) in terms.items()), torch.zeros(())
        )


class Combined:
    """Gradients that are summed after the backward pass, all in one message. So it is with one
    process, and with captured steps, whose replays run no hooks.

    Attributes:
        model: whose weights are trained.
        module: computes the loss of (a batch, totals).
    """

    module: nn.Module

    def __init__(self, model: nn.Module, loss: LossOf, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self.module = WholeLoss(model, loss)

    def before(self, last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Within this, a micro-batch is computed, perhaps the last of its step."""
        return nullcontext()

    def after(self, loss: Tensor) -> Tensor:
        """End a step's passes. Returns the sum of the losses of all ranks."""
        return self.ranks.sum_gradients(self.model, loss)


class InBuckets(Combined):
    """Gradients that are summed in buckets while the backward pass goes on.

    PyTorch looks for weights that a loss does not use, which differ from rank to rank. So it does
    not arrange its buckets anew after the first step either, after which a resumed run would round
    otherwise.
    """

    module: DistributedDataParallel

    def __init__(self, model: nn.Module, loss: LossOf, ranks: Ranks) -> None:
        super().__init__(model, loss, ranks)
        # Where none is unused, PyTorch writes a long warning.
        self.module.unused = nn.Parameter(torch.zeros(1, device=ranks.device))
        self.module = DistributedDataParallel(
            self.module,
            process_group=ranks.group,
            find_unused_parameters=True,
            gradient_as_bucket_view=True,
        )
        hook: Any = Ranks.sum_bucket
        self.module.register_comm_hook(ranks, hook)

    def before(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()

    def after(self, loss: Tensor) -> Tensor:
        return self.ranks.sum(loss)


def combined(model: nn.Module, loss: LossOf, ranks: Ranks, captured: bool) -> Combined:
    """How the gradients of these ranks are summed."""
    return (Combined if captured or ranks.world == 1 else InBuckets)(model, loss, ranks)


def _check_counts(terms: Terms, counts: Mapping[str, float]) -> None:
    """Refuse a term whose average would be taken over something else than its own count."""
    for name, (_, count, _) in terms.items():
        if name not in counts:
            found = (
                f"the loss has a term '{name}', its batch counts {', '.join(counts) or 'nothing'}"
            )
            raise TrainingFailed(f"{found}; add it to the batch's counts")
        # reading a tensor would wait for the device
        if isinstance(count, int | float) and count != counts[name]:
            found = f"the loss counts {count:g} of '{name}', its batch {counts[name]:g}"
            raise TrainingFailed(f"{found}; let the loss take its counts from the batch")
