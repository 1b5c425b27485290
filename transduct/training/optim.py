"""Optimisers and learning-rate schedules."""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from transduct.errors import require

Schedule = Literal["inverse_sqrt", "linear", "cosine", "constant"]
MOMENTUM = 0.95  # Muon's


def paper_rate(d_model: int, warmup: int, step: int) -> float:
    """d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): equation 3 of Vaswani et al. 2017.

    Equal to `inverse_sqrt` with a peak of (d_model * warmup)^-0.5.
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def rate(schedule: Schedule, peak: float, warmup: int, steps: int, step: int) -> float:
    """The learning rate of step 1, 2, ..., `steps`: a linear rise to `peak` at step `warmup`, then
    inverse square root decay, linear decay to zero, cosine decay to zero, or constant."""
    if step < warmup:
        return peak * step / warmup
    if schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)
    progress = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return peak * max(0.0, 1.0 - progress)
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return peak


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parts of a model that the patterns name as they are: they get no gradients.

    Args:
        patterns: names of modules or weights, `*` for any characters. A weight that is used under
            several names is frozen if one of them is.

    Raises:
        TransductError: a pattern names nothing, or nothing is left to train.
    """
    # with the names under which a weight is shared
    weights = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        named = [
            weight
            for name, weight in weights.items()
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
        ]
        parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in weights))
        require(
            named,
            f"{{key}} names '{pattern}', which is no part of this model; its parts: {parts}",
            key="training.freeze",
        )
        for weight in named:
            weight.requires_grad_(False)
    require(
        any(weight.requires_grad for weight in weights.values()),
        "{key} leaves no weight to train; name fewer parts",
        key="training.freeze",
    )


def make_optimiser(
    model: nn.Module,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    captured: bool = False,
    muon: torch.dtype | None = None,
) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015) with decoupled weight decay (Loshchilov and Hutter 2019) on
    matrices only.

    Frozen parameters (`requires_grad=False`) are left out.

    Args:
        captured: keep the learning rate in a tensor, so that steps can be captured as a CUDA graph.
        muon: if given, the dtype in which Muon computes the updates of the hidden layers' matrices.

    Raises:
        TransductError: if Muon is asked for and the model trains no such matrices.
    """
    hidden = [] if muon is None else hidden_matrices(model)
    require(
        muon is None or hidden,
        "training.optimiser is muon, which moves matrices of linear layers and convolutions within "
        "stacks; this model trains none: take adam",
    )
    moved_by_muon = {id(p) for p in hidden}
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in moved_by_muon]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    device = next(model.parameters()).device
    # overwritten before every step
    first_rate = torch.zeros((), device=device) if captured else 1e-3
    adam = torch.optim.AdamW(
        [g for g in groups if g["params"]], first_rate, betas, epsilon,
        fused=True, capturable=captured and device.type == "cuda",
    )  # fmt: skip
    adam._warned_capturable_if_run_uncaptured = True  # the first step runs uncaptured on purpose
    return adam if muon is None else Muon(hidden, adam, weight_decay, muon)


def orthogonal(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Approximately the nearest orthogonal matrix: the singular values become about 1, the singular
    vectors stay.

    Five Newton-Schulz iterations of the polynomial a x + b x^3 + c x^5, with the coefficients
    Jordan et al. 2024 chose to raise small singular values fast. Those above about 1/500 of the
    Frobenius norm end between 0.68 and 1.21; smaller ones grow up to 485-fold. (..., n, k) -> (...,
    n, k), computed in `dtype`.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    y = (wide / wide.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)).to(dtype)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y if wide is x else y.mT).to(x.dtype)


def all_orthogonal(matrices: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """`orthogonal` of each of several matrices of one shape: batched on a GPU, where launches cost
    more than small products, one by one on a CPU, where that is faster."""
    if matrices[0].device.type == "cuda":
        return orthogonal(torch.stack([*matrices]), dtype).unbind(0)
    return [orthogonal(matrix, dtype) for matrix in matrices]


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): orthogonalised updates for matrices, Adam for all other
    parameters.

    A matrix moves by the nearest orthogonal matrix to its gradient's momentum, scaled to the size
    of an Adam update, so that one learning rate and weight decay serve both (Liu et al. 2025). A
    convolution's weight is flattened to a matrix of output channels by inputs.

    Args:
        matrices: the weights of hidden layers, of 2 or more dimensions.
        adam: the optimiser of the other parameters.
        dtype: the type in which orthogonalisation is computed.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        adam: torch.optim.AdamW,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(matrices, {"lr": 1e-3, "weight_decay": weight_decay})
        self.dtype = dtype
        self._adam = adam
        self.found_inf = torch.zeros(())  # above 0: change nothing, as Adam does
        # so that setting a rate or clearing gradients reaches both
        self.param_groups += adam.param_groups
        adam.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update all parameters."""
        if self.found_inf:
            return
        self._adam.step()
        rate, weight_decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for matrix in self.param_groups[0]["params"]:
            if matrix.grad is not None:
                by_shape.setdefault(tuple(matrix.flatten(1).shape), []).append(matrix)
        for shape, matrices in by_shape.items():
            ahead = [self._ahead(matrix).flatten(1) for matrix in matrices]
            size = rate * 0.2 * math.sqrt(max(shape))
            for matrix, direction in zip(matrices, all_orthogonal(ahead, self.dtype), strict=True):
                matrix.mul_(1.0 - rate * weight_decay)
                matrix.add_(direction.view_as(matrix), alpha=-size)

    def _ahead(self, matrix: Tensor) -> Tensor:
        """Update the momentum of a matrix's gradient and return Nesterov's look-ahead from it."""
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        return gradient.lerp(state["momentum"].lerp_(gradient, 1.0 - MOMENTUM), MOMENTUM)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The weights of linear layers and convolutions in stacks, whose layers have numbers in their
    names; Muon's share.

    Embeddings and output layers are usually outside the stacks. Exceptions are a codec's last
    convolution and the heads of a detector, which has some after every layer.
    """
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d)
    numbered = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, layers) and any(part.isdigit() for part in name.split("."))
    }
    return [
        weight
        for name, weight in model.named_parameters()
        if name in numbered and weight.requires_grad
    ]


class MovingAverage:
    """An exponential moving average of the weights: decay * average + (1 - decay) * weight after
    each step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average with the weights after a step."""
        averages = list(self.weights.values())
        torch._foreach_lerp_(averages, [p.detach() for p in model.parameters()], 1.0 - self.decay)


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name: `NAME/exp_avg`, `NAME/exp_avg_sq`, `NAME/step`."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser(
    model: nn.Module, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Replace the optimiser's state by a copy of these tensors, which may be mapped from a file to
    be removed."""
    optimiser.state.clear()
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        optimiser.state[parameter][kind] = tensor.to(parameter.device, copy=True)
