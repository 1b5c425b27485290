"""The four kinds of layer of table 1 of "Attention Is All You Need", and what they cost on this machine.

Let n be the tokens of one sequence, d the model width, r the neighbourhood of restricted attention, k the width of a
convolution.
"""

import ctypes
import gc
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.attention import MultiHeadAttention
from transduct.blocks.recurrent import Recurrent
from transduct.functional.attention import padded_attention
from transduct.functional.losses import projected_cross_entropy
from transduct.functional.segments import Segments
from transduct.models import rnn, transformer
from transduct.tasks.translation import Batch, make_batch

NEIGHBOURHOOD, KERNEL, HEAD_WIDTH = 128, 3, 64  # r, k, and the width of a head
ATTENTIONS: tuple[Literal["none", "general", "additive"], ...] = ("none", "general", "additive")  # of the RNNs
STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Run = Callable[[], object]


class SelfAttention(nn.Module):
    """Every token over every other, as our models have it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = MultiHeadAttention(d_model, max(1, d_model // HEAD_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.inner(x, Segments.of([len(x)]))


class Recurrence(nn.Module):
    """A GRU of width d."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Recurrent("gru", d_model, d_model, layers=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.inner(x, Segments.of([len(x)]))


class Convolution(nn.Module):
    """k neighbouring tokens, each through a matrix of its own."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(d_model, d_model, KERNEL, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.inner(x.T[None])[0].T


class RestrictedSelfAttention(nn.Module):
    """Every token over the r tokens around it."""

    def __init__(self, d_model: int, neighbourhood: int = NEIGHBOURHOOD) -> None:
        super().__init__()
        self.heads, self.reach = max(1, d_model // HEAD_WIDTH), neighbourhood // 2
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        query, key, value = (part(x).view(len(x), self.heads, -1) for part in (self.query, self.key, self.value))
        return self.output(restricted_attention(query, key, value, self.reach).flatten(1))  # (n, d)


def restricted_attention(query: Tensor, key: Tensor, value: Tensor, reach: int) -> Tensor:
    """Attention of each token over those at most `reach` places from it: (n, H, K), (n, H, K), (n, H, V) -> (n, H, V).

    A block of `reach` queries looks at its own block of keys and at those before and after it, less what is too far.
    No array is larger than n times 3 `reach`, a head.
    """
    blocks = math.ceil(len(query) / reach)
    spare = blocks * reach - len(query)

    def windows(x: Tensor, around: int) -> Tensor:
        """Each block and `around` places on its sides: (n, H, K) -> (blocks, H, reach + 2 around, K)."""
        return F.pad(x, (0, 0, 0, 0, around, around + spare)).unfold(0, reach + 2 * around, reach).mT

    places = torch.arange(-reach, 2 * reach, device=query.device)  # of a window's keys, seen from its block
    far = (places - torch.arange(reach, device=query.device)[:, None]).abs() > reach  # (reach, 3 reach)
    keys = torch.arange(0, blocks * reach, reach, device=query.device)[:, None] + places  # (blocks, 3 reach)
    hidden = far | ((keys < 0) | (keys >= len(query)))[:, None]  # (blocks, reach, 3 reach)
    bias = torch.zeros(hidden.shape, device=query.device).masked_fill(hidden, float("-inf"))[:, None]
    heads = padded_attention(windows(query, 0), windows(key, reach), windows(value, reach), bias)
    return heads.transpose(1, 2).flatten(0, 1)[: len(query)]  # (n, H, V)


@dataclass(frozen=True)
class Kind:
    """A row of table 1: what it is called, the paper's three columns, and the multiply-adds of a forward pass."""

    name: str
    complexity: str
    sequential: str
    path: str
    build: Callable[[int], nn.Module]
    multiply_adds: Callable[[int, int], int]


# Projections are counted, which the paper's first column leaves out; a GRU has two matrices for each of three gates.
KINDS = (
    Kind("self-attention", "O(n² d)", "O(1)", "O(1)", SelfAttention, lambda n, d: 2 * n * n * d + 4 * n * d * d),
    Kind("recurrent", "O(n d²)", "O(n)", "O(n)", Recurrence, lambda n, d: 6 * n * d * d),
    Kind("convolutional", "O(k n d²)", "O(1)", "O(log_k n)", Convolution, lambda n, d: KERNEL * n * d * d),
    Kind(
        "restricted attention", "O(r n d)", "O(1)", "O(n / r)", RestrictedSelfAttention,
        lambda n, d: 2 * n * min(n, NEIGHBOURHOOD) * d + 4 * n * d * d,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What one layer costs at one length: median milliseconds, and MiB held at once beyond weights and input."""

    kind: str
    length: int
    forward_ms: float
    training_ms: float
    memory_mib: float | None


def costs(lengths: Sequence[int], d_model: int, seconds: float) -> Iterator[Cost]:
    """The cost of each kind of layer at each length; a measurement lasts `seconds`, longer if three runs need it."""
    for kind in KINDS:
        torch.manual_seed(1)
        layer = kind.build(d_model)
        for length in lengths:
            yield cost(kind.name, layer, length, d_model, seconds)


def cost(name: str, layer: nn.Module, length: int, d_model: int, seconds: float) -> Cost:
    """The cost of one layer at one length."""
    x, gradient = torch.randn(length, d_model, requires_grad=True), torch.randn(length, d_model)

    def train() -> None:
        layer(x).backward(gradient)

    with torch.inference_mode():
        forward = milliseconds(lambda: layer(x), seconds)
    return Cost(name, length, forward, milliseconds(train, seconds), peak_memory(train))


def milliseconds(run: Run, seconds: float) -> float:
    """The median of at least three runs, after one that warms up."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def peak_memory(run: Run) -> float | None:
    """How many MiB the process grows by, at most, while it runs once more, by Linux's own count; None elsewhere.

    What an earlier run has left with the C library is given back first. The count is good to about 1 MiB.
    """
    if not REFERENCES.exists():
        return None
    run()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    REFERENCES.write_text("5")  # forget the highest count so far
    before = _resident("VmRSS")
    run()
    return (_resident("VmHWM") - before) / 1024


def _resident(name: str) -> int:
    """A line of the process's status, in KiB."""
    return int(STATUS.read_text().split(f"{name}:")[1].split()[0])


@dataclass(frozen=True)
class TrainingRate:
    """Target tokens a second of a model's training step on sentences of one length."""

    model: str
    parameters: int
    length: int
    tokens_per_second: float


def training_rates(
    lengths: Sequence[int], tokens: int, vocabulary: int, size: str, seconds: float
) -> Iterator[TrainingRate]:
    """The Transformer of a named size and RNNs of as many parameters, on the same batches of generated tokens."""
    for name, model in equal_models(vocabulary, size, max(lengths)).items():
        for length in lengths:
            batch = generated_batch(length, tokens // length, vocabulary)
            rate = training_rate(model, batch, seconds)
            yield TrainingRate(name, sum(p.numel() for p in model.parameters()), length, rate)


def training_rate(model: Any, batch: Batch, seconds: float) -> float:
    """Target tokens a second of the trainer's step: loss, gradients, clipping, AdamW."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        memory = model.encode(batch.source, batch.source_segments)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
        loss, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, 0.1)
        (loss / batch.target_segments.total).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return 1000 * batch.target_segments.total / milliseconds(step, seconds)


def equal_models(vocabulary: int, size: str, longest: int) -> dict[str, Any]:
    """A Transformer and three RNNs whose hidden width is chosen so that all have about as many parameters."""
    torch.manual_seed(1)
    config = transformer.Config(vocabulary, vocabulary, max_length=longest, **transformer.SIZES[size])
    models: dict[str, Any] = {"Transformer": transformer.Transformer(config)}
    wanted = sum(p.numel() for p in models["Transformer"].parameters())
    for attention in ATTENTIONS:
        shape = rnn.Config(vocabulary, vocabulary, config.d_model, attention=attention, max_length=longest)
        width = nearest_width(lambda width, shape=shape: rnn.RNN(replace(shape, d_hidden=width)), wanted)  # type: ignore[misc]
        models[f"GRU, attention: {attention}"] = rnn.RNN(replace(shape, d_hidden=width))
    return models


def nearest_width(build: Callable[[int], nn.Module], wanted: int) -> int:
    """The multiple of 8 at which a model has about `wanted` parameters."""

    def count(width: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in build(width).parameters())

    widths = range(8, 8192, 8)
    above = bisect_left(widths, wanted, key=count)
    return min(widths[max(0, above - 1) : above + 1], key=lambda width: abs(count(width) - wanted))


def generated_batch(length: int, pairs: int, vocabulary: int) -> Batch:
    """Pairs of random sentences of `length` tokens a side, their ends included."""
    rows = torch.randint(4, vocabulary, (2, max(1, pairs), length - 1), generator=torch.Generator().manual_seed(1))
    return make_batch(*rows.tolist())
