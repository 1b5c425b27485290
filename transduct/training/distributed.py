"""Several processes as one: counts and gradients are summed, never averaged, so 8 ranks equal one to rounding."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls, device: torch.device) -> "Ranks":
        """Take the place that torchrun's environment gives, or be the only one."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), world)

    def total(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Counts summed over the ranks; every rank must know the same names or none."""
        if self.world == 1:
            return dict(counts)
        gathered: list[dict[str, float]] = [{}] * self.world
        distributed.all_gather_object(gathered, dict(counts))
        names = sorted({name for part in gathered for name in part})
        return {name: sum(part.get(name, 0.0) for part in gathered) for name in names}

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum every gradient over the ranks; a rank without a batch gives zeros."""
        if self.world == 1:
            return
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)

    def sum(self, number: Tensor) -> Tensor:
        """A number summed over the ranks, on its device."""
        if self.world > 1:
            distributed.all_reduce(number)
        return number

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            distributed.barrier()
