"""The four layer types of table 1 of "Attention Is All You Need", and their cost on this machine.

Let n be the tokens of one sequence, d the model width, r the neighbourhood of restricted attention,
k the width of a convolution.
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
from transduct.models import rnn, transformer
from transduct.segments import Segments
from transduct.tasks.translation import Batch, make_batch

NEIGHBOURHOOD, KERNEL, HEAD_WIDTH = 128, 3, 64  # r, k, and the width of a head
# of the RNNs
ATTENTIONS: tuple[Literal["none", "general", "additive"], ...] = ("none", "general", "additive")
STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Run = Callable[[], object]


class OfOurs(nn.Module):
    """A layer of our models, over a single sequence."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.inner(x, Segments.of([len(x)]))


class Convolution(nn.Module):
    """A convolution over k neighbouring tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(d_model, d_model, KERNEL, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return self.inner(x.T[None])[0].T


class RestrictedSelfAttention(nn.Module):
    """Self-attention of every token over the r tokens around it."""

    def __init__(self, d_model: int, neighbourhood: int = NEIGHBOURHOOD) -> None:
        super().__init__()
        self.heads, self.reach = max(1, d_model // HEAD_WIDTH), neighbourhood // 2
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        query, key, value = (
            part(x).view(len(x), self.heads, -1) for part in (self.query, self.key, self.value)
        )
        return self.output(restricted_attention(query, key, value, self.reach).flatten(1))  # (n, d)


def restricted_attention(query: Tensor, key: Tensor, value: Tensor, reach: int) -> Tensor:
    """Attention of each token over those at most `reach` positions away: (n, H, K), (n, H, K), (n,
    H, V) -> (n, H, V).

    A block of `reach` queries attends to its own block of keys and the two next to it, with distant
    keys masked. No array has more than n * 3 `reach` numbers per head.
    """
    blocks = math.ceil(len(query) / reach)
    spare = blocks * reach - len(query)

    def windows(x: Tensor, around: int) -> Tensor:
        """Each block with `around` positions on either side: (n, H, K) -> (blocks, H, reach + 2
        around, K)."""
        return (
            F.pad(x, (0, 0, 0, 0, around, around + spare)).unfold(0, reach + 2 * around, reach).mT
        )

    # the keys of a window, relative to its block
    places = torch.arange(-reach, 2 * reach, device=query.device)
    far = (
        places - torch.arange(reach, device=query.device)[:, None]
    ).abs() > reach  # (reach, 3 reach)
    # (blocks, 3 reach)
    keys = torch.arange(0, blocks * reach, reach, device=query.device)[:, None] + places
    hidden = far | ((keys < 0) | (keys >= len(query)))[:, None]  # (blocks, reach, 3 reach)
    bias = torch.zeros(hidden.shape, device=query.device).masked_fill(hidden, float("-inf"))[
        :, None
    ]
    heads = padded_attention(windows(query, 0), windows(key, reach), windows(value, reach), bias)
    return heads.transpose(1, 2).flatten(0, 1)[: len(query)]  # (n, H, V)


@dataclass(frozen=True)
class Kind:
    """A row of table 1: its name, the paper's three columns, and the multiply-adds of a forward
    pass."""

    name: str
    complexity: str
    sequential: str
    path: str
    build: Callable[[int], nn.Module]
    multiply_adds: Callable[[int, int], int]


# The counts include projections, unlike the paper's first column; a GRU has two matrices for each
# of its three gates.
KINDS = (
    Kind(
        "self-attention",
        "O(n² d)",
        "O(1)",
        "O(1)",
        lambda d: OfOurs(MultiHeadAttention(d, max(1, d // HEAD_WIDTH))),
        lambda n, d: 2 * n * n * d + 4 * n * d * d,
    ),
    Kind(
        "recurrent",
        "O(n d²)",
        "O(n)",
        "O(n)",
        lambda d: OfOurs(Recurrent("gru", d, d, layers=1)),
        lambda n, d: 6 * n * d * d,
    ),
    Kind(
        "convolutional",
        "O(k n d²)",
        "O(1)",
        "O(log_k n)",
        Convolution,
        lambda n, d: KERNEL * n * d * d,
    ),
    Kind(
        "restricted attention",
        "O(r n d)",
        "O(1)",
        "O(n / r)",
        RestrictedSelfAttention,
        lambda n, d: 2 * n * min(n, NEIGHBOURHOOD) * d + 4 * n * d * d,
    ),
)


@dataclass(frozen=True)
class Cost:
    """The cost of one layer at one length: median milliseconds, and peak MiB beyond weights and
    input."""

    kind: str
    length: int
    forward_ms: float
    training_ms: float
    memory_mib: float | None


def costs(lengths: Sequence[int], d_model: int, seconds: float) -> Iterator[Cost]:
    """The cost of each layer type at each length; a measurement lasts `seconds`, or longer if three
    runs need it."""
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
    """The median of at least three runs after a warm-up."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def peak_memory(run: Run) -> float | None:
    """The growth of the process's peak memory in one more run, in MiB, accurate to about 1 MiB;
    None outside Linux."""
    if not REFERENCES.exists():
        return None
    run()
    before = forgotten_peak()
    run()
    return (high_water() - before) / 1024


def forgotten_peak() -> int:
    """Return freed memory to the system and forget the process's peak memory, which then is what it
    holds, in KiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    REFERENCES.write_text("5")  # reset VmHWM
    return high_water()


def high_water() -> int:
    """The peak resident memory of this process in KiB."""
    return int(STATUS.read_text().split("VmHWM:")[1].split()[0])


@dataclass(frozen=True)
class TrainingRate:
    """The training speed of a model on sentences of one length, in target tokens per second."""

    model: str
    parameters: int
    length: int
    tokens_per_second: float


def training_rates(
    lengths: Sequence[int], tokens: int, vocabulary: int, size: str, seconds: float
) -> Iterator[TrainingRate]:
    """The training speed of a Transformer and of RNNs with as many parameters, on the same
    batches."""
    for name, model in equal_models(vocabulary, size, max(lengths)).items():
        for length in lengths:
            batch = generated_batch(length, tokens // length, vocabulary)
            rate = training_rate(model, batch, seconds)
            yield TrainingRate(name, sum(p.numel() for p in model.parameters()), length, rate)


def training_rate(model: Any, batch: Batch, seconds: float) -> float:
    """The speed of a training step (loss, gradients, clipping, AdamW) in target tokens per
    second."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        memory = model.encode(batch.source, batch.source_segments)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
        loss, _ = projected_cross_entropy(hidden, model.output_table, batch.outputs, 0.1)
        (loss / batch.target_segments.total).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return 1000 * batch.target_segments.total / milliseconds(step, seconds)


def equal_models(vocabulary: int, size: str, longest: int) -> dict[str, Any]:
    """A Transformer, and three RNNs with hidden widths chosen for about the same number of
    parameters."""
    torch.manual_seed(1)
    config = transformer.Config(
        vocabulary, vocabulary, max_length=longest, **transformer.SIZES[size]
    )
    models: dict[str, Any] = {"Transformer": transformer.Transformer(config)}
    wanted = sum(p.numel() for p in models["Transformer"].parameters())
    for attention in ATTENTIONS:
        shape = rnn.Config(
            vocabulary, vocabulary, config.d_model, attention=attention, max_length=longest
        )
        width = nearest_width(
            lambda width, shape=shape: rnn.RNN(replace(shape, d_hidden=width)), wanted
        )  # type: ignore[misc]
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
    """Pairs of random sentences of `length` tokens on each side, their ends included."""
    rows = torch.randint(
        4, vocabulary, (2, max(1, pairs), length - 1), generator=torch.Generator().manual_seed(1)
    )
    return make_batch(*rows.tolist())
