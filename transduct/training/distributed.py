"""Data-parallel training: counts and gradients are summed, never averaged, so 8 ranks equal one up
to rounding."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

# the others wait while rank 0 prepares the corpus; torchrun ends all if one fails
PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Ranks:
    """This process's rank in the group, the group's size, and the device on which tensors are
    exchanged."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None

    @classmethod
    def join(cls, device: torch.device) -> "Ranks":
        """Join the process group that torchrun's environment describes, or be the only process."""
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
        """Counts summed over the ranks; each rank may have different names."""
        if self.world == 1:
            return dict(counts)
        message = torch.tensor(
            list(json.dumps(dict(counts)).encode()), dtype=torch.uint8, device=self.device
        )
        sizes = self._gathered(torch.tensor([len(message)], device=self.device))
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=self.device)
        padded[: len(message)] = message
        texts = (
            bytes(row[:size])
            for row, size in zip(self._gathered(padded).tolist(), sizes.flatten().tolist())
        )
        gathered = [json.loads(text) for text in texts]
        names = sorted({name for part in gathered for name in part})
        return {name: sum(part.get(name, 0.0) for part in gathered) for name in names}

    def any(self, found: bool) -> bool:
        """Whether something is found on any rank."""
        return bool(self.sum(torch.tensor(int(found), device=self.device)))

    def first(self, number: float) -> float:
        """The number that rank 0 has."""
        own = number if self.rank == 0 else 0.0
        return float(self.sum(torch.tensor(own, dtype=torch.float64, device=self.device)))

    def agree(self, number: int) -> bool:
        """Whether every rank has the same number."""
        if self.world == 1:
            return True
        numbers = self._gathered(torch.tensor([number], device=self.device))  # (ranks, 1)
        return bool((numbers == number).all())

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum all gradients over the ranks in one all-reduce; a rank without a batch contributes
        zeros."""
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
            RuntimeError: if one of them has ended.
        """
        if self.world > 1:
            try:
                distributed.barrier()
            except RuntimeError as error:
                raise RuntimeError(
                    "another rank has ended; its output, or torchrun's, says why"
                ) from error

    def _gathered(self, numbers: Tensor) -> Tensor:
        """All-gather (n,), of the same size on every rank -> (ranks, n)."""
        rows = [torch.empty_like(numbers) for _ in range(self.world)]
        distributed.all_gather(rows, numbers)
        return torch.stack(rows)
