"""Several processes as one: counts and gradients are summed, never averaged, so 8 ranks equal one to rounding."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

PATIENCE = timedelta(days=1)  # the first rank prepares the corpus while the others wait; torchrun ends all if one fails


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together, and the device on which they exchange tensors."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None

    @classmethod
    def join(cls, device: torch.device) -> "Ranks":
        """Take the place that torchrun's environment gives, or be the only one."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if not distributed.is_initialized():
            cuda = device.type == "cuda"
            distributed.init_process_group(
                "nccl" if cuda else "gloo", timeout=PATIENCE, device_id=device if cuda else None
            )
        return cls(distributed.get_rank(), world, device)

    def total(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Counts summed over the ranks, each of which may know other names."""
        if self.world == 1:
            return dict(counts)
        told = torch.tensor(list(json.dumps(dict(counts)).encode()), dtype=torch.uint8, device=self.device)
        sizes = self._gathered(torch.tensor([len(told)], device=self.device))
        room = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=self.device)
        room[: len(told)] = told
        texts = (bytes(row[:size]) for row, size in zip(self._gathered(room).tolist(), sizes.flatten().tolist()))
        gathered = [json.loads(text) for text in texts]
        names = sorted({name for part in gathered for name in part})
        return {name: sum(part.get(name, 0.0) for part in gathered) for name in names}

    def sum_of(self, number: float) -> float:
        """One number summed over the ranks."""
        if self.world == 1:
            return number
        return float(self.sum(torch.tensor(number, dtype=torch.float64, device=self.device)))

    def agree(self, number: int) -> bool:
        """Whether every rank has the same number."""
        if self.world == 1:
            return True
        told = self._gathered(torch.tensor([number], device=self.device))  # (ranks, 1)
        return bool((told == number).all())

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum every gradient over the ranks, all in one message; a rank without a batch gives zeros."""
        if self.world == 1:
            return
        gradients = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        message = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(message)
        parts = torch.split(message, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum(self, number: Tensor) -> Tensor:
        """A tensor summed over the ranks, in place."""
        if self.world > 1:
            distributed.all_reduce(number)
        return number

    def wait(self) -> None:
        """Wait for all ranks.

        Raises:
            RuntimeError: one of them has ended.
        """
        if self.world > 1:
            try:
                distributed.barrier()
            except RuntimeError as error:
                raise RuntimeError("another rank has ended; what it said, or torchrun, tells why") from error

    def _gathered(self, numbers: Tensor) -> Tensor:
        """(n,) of each rank, as many everywhere -> (ranks, n)."""
        rows = [torch.empty_like(numbers) for _ in range(self.world)]
        distributed.all_gather(rows, numbers)
        return torch.stack(rows)
