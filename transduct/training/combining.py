"""How the gradients of the ranks are summed: after the backward pass in one message, or during it
in buckets (PyTorch's DistributedDataParallel), or each piece of them on the rank that holds the
same piece of the weights (PyTorch's FSDP2).

Sums travel, never averages: what they are divided by is known before the step. Gradients travel
once a step, with its last micro-batch.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transduct.errors import TrainingFailed
from transduct.storage import fill
from transduct.training.distributed import Ranks
from transduct.training.fused import layers_of

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

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The total norm of the summed gradients."""
        return torch.nn.utils.get_total_norm(gradients)


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


class InPieces(Combined):
    """Weights, gradients and optimiser state in pieces, one a rank. A layer of a Transformer is
    whole while it is computed.

    `model` is another one than is given, of which only names and shapes stay; see `hollow`.
    """

    module: Any

    def __init__(
        self, model: nn.Module, loss: LossOf, ranks: Ranks, within_nodes: bool = False
    ) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        copies: Any = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
        super().__init__(copy.deepcopy(model, copies), loss, ranks)
        mesh = ranks.mesh(within_nodes)
        for part in (*layers_of(self.model), self.module):
            fully_shard(part.to(ranks.device), mesh=mesh)
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo has no other
                part.set_reduce_scatter_unused_params(True)
        hollow(model)

    def before(self, last: bool) -> AbstractContextManager[Any]:
        self.module.set_requires_gradient_sync(last)
        return nullcontext()

    def after(self, loss: Tensor) -> Tensor:
        return self.ranks.sum(loss)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        total: Any = super().norm(gradients)
        norm: Tensor = total.full_tensor()
        return norm


def hollow(model: nn.Module) -> None:
    """Take the numbers out of a model's weights; their names, shapes and ties stay."""
    fill(model, {name: p.to("meta") for name, p in model.named_parameters()}, Path())


def combined(
    model: nn.Module, loss: LossOf, ranks: Ranks, captured: bool, shard: str = "none"
) -> Combined:
    """How the gradients of these ranks are summed."""
    if captured or ranks.world == 1:
        return Combined(model, loss, ranks)
    if shard in ("all", "node"):
        return InPieces(model, loss, ranks, shard == "node")
    return InBuckets(model, loss, ranks)


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
