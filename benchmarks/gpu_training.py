"""Training on a GPU: our step plain, compiled and captured, against Hugging Face's Marian and
torch.nn.Transformer.

python benchmarks/gpu_training.py --out DIR [--rounds 3] [--minutes 4] [--only NAME] [--miniature]

All sides use bfloat16, dropout, clipping and fused AdamW. Each runs in a process of its own and
they take turns; results are medians. Peers get batches sorted by length. MFU is the model's
arithmetic, without padding and filler, over 790 TFLOP/s, which bfloat16 matrix products reach on an
H200. `--miniature` runs the same code on a CPU, without compilers. Writes training.json and
training.md; a model that would start after three quarters of the time is left out. Last come the
parts of a layer that have kernels of their own, in kernels.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from transduct.blocks.transformer import FeedForward
from transduct.functional.lookup import rows as looked_up
from transduct.models.transformer import SIZES
from transduct.training.fused import add_norm, feed_forward
from transduct_bench.ours import Batches, training, training_batches
from transduct_bench.peers import torch_training, transformers_training
from transduct_bench.rows import CAPTIONS, NEWS, about, drawn
from transduct_bench.timing import Side, measured

PEAK = 790e12
PATIENCE = 150.0  # seconds after which a side counts as failed; compilers take most of them


@dataclass(frozen=True)
class Work:
    """A model and its training data."""

    name: str
    size: str
    vocabulary: int
    kind: tuple[float, float, int, int]
    tokens: int
    steps: int


WORKS = [
    Work("multi30k, 2.4 M", "tiny", 8_000, CAPTIONS, 8_192, 8),
    Work("multi30k, 2.4 M, large batches", "tiny", 8_000, CAPTIONS, 25_600, 8),
    Work("base", "base", 32_000, NEWS, 25_600, 8),
    Work("big", "big", 32_000, NEWS, 25_600, 8),
]
MINIATURE = [Work("miniature", "tiny", 200, (1.5, 0.3, 2, 8), 96, 2)]


def batches_of(work: Work) -> Batches:
    """Full batches of sentences of random words, each sorted by length."""
    mean = float(np.exp(work.kind[0] + work.kind[1] ** 2 / 2))
    sources, lengths = drawn(
        work.kind, round(1.3 * (work.steps + 2) * work.tokens / mean), work.vocabulary, 1
    )
    return training_batches(sources, lengths, work.vocabulary, work.tokens, work.steps)


def arithmetic(work: Work, batches: Batches) -> float:
    """Floating-point operations of a step per target token: the forward pass, and twice as many
    backward."""
    shape: dict[str, Any] = SIZES[work.size]
    d, inner, encoders, decoders = (
        shape[name] for name in ("d_model", "d_ff", "encoder_layers", "decoder_layers")
    )
    total, tokens = 0.0, 0
    for sources, targets in batches:
        for source, target in zip(sources, targets, strict=True):
            s, t = len(source) + 1, len(target) + 1
            linear = encoders * s * (4 * d * d + 2 * d * inner) + t * work.vocabulary * d
            linear += decoders * (t * (6 * d * d + 2 * d * inner) + s * 2 * d * d)
            scores = 2 * d * (encoders * s * s + decoders * (t * t / 2 + t * s))
            total, tokens = total + 6 * (linear + scores), tokens + t
    return total / tokens


# All sides hold memory at the same time (a Marian some 25 GiB for base, 40 for big), so these two
# sizes run only these:
KEPT = {
    # Nine sides that compile at once take two minutes, and these rows shall take one.
    "tiny": [
        "ours, plain",
        "ours, captured",
        "ours, compiled and captured",
        "Hugging Face Marian",
        "Hugging Face Marian, compiled",
    ],
    "base": [
        "ours, plain",
        "ours, captured",
        "ours, compiled",
        "ours, compiled and captured",
        "ours, compiled, not deterministic",
        "Hugging Face Marian",
        "Hugging Face Marian, compiled",
    ],
    "big": [
        "ours, captured",
        "ours, compiled",
        "ours, compiled and captured",
        "ours, compiled, not deterministic",
        "Hugging Face Marian, compiled",
    ],
}
LARGE = 100 * 2**30  # on a GPU with less memory than this (bytes) only the sides in FEWEST run
FEWEST = {
    "tiny": KEPT["tiny"],
    "base": ["ours, compiled", "ours, compiled and captured", "Hugging Face Marian, compiled"],
    "big": ["ours, compiled and captured", "Hugging Face Marian, compiled"],
}


def sides_of(
    work: Work, batches: Batches, device: str, compilers: bool, memory: int = LARGE
) -> list[Side]:
    """Our sides and the peers', in the order of their turns, as far as they fit into the GPU's
    memory."""
    given = {"batches": batches, "precision": "bfloat16", "device": device}
    ours = {**given, "size": work.size, "vocabulary": work.vocabulary}
    theirs = {
        **given,
        "threads": 1,
        "shape": {"dropout": 0.1, "vocabulary": work.vocabulary, **SIZES[work.size]},
    }
    sides = [
        Side("ours, plain", training, ours),
        Side("ours, plain, not deterministic", training, {**ours, "deterministic": False}),
        Side("ours, captured", training, {**ours, "captured": True}),
        Side("ours, compiled", training, {**ours, "compiled": True}),
        Side("ours, compiled and captured", training, {**ours, "compiled": True, "captured": True}),
        Side(
            "ours, compiled, not deterministic",
            training,
            {**ours, "compiled": True, "deterministic": False},
        ),
        Side("Hugging Face Marian", transformers_training, theirs),
        Side("Hugging Face Marian, compiled", transformers_training, {**theirs, "compiled": True}),
        Side("torch.nn.Transformer", torch_training, theirs),
    ]
    kept = (KEPT if memory >= LARGE else FEWEST).get(work.size, [side.label for side in sides])
    return [
        side for side in sides if side.label in kept and (compilers or "compiled" not in side.label)
    ]


def rows_of(
    work: Work,
    device: str,
    rounds: int,
    compilers: bool,
    left_out: list[str],
    patience: float = PATIENCE,
) -> list[dict[str, Any]]:
    """The measurements of one model, one row per side; `left_out` collects the sides that failed,
    and why."""
    batches, failed = batches_of(work), dict[str, str]()
    memory = torch.cuda.mem_get_info()[1] if device == "cuda" else LARGE
    sides = sides_of(work, batches, device, compilers, memory)
    speeds, memories = measured(sides, rounds, compilers, failed, patience)
    tokens = sum(len(target) + 1 for _, targets in batches for target in targets) / len(batches)
    found = {
        side.label: pair
        for side, *pair in zip(sides, speeds, memories, strict=True)
        if side.label not in failed
    }
    peer = max(
        (speed for label, (speed, _) in found.items() if not label.startswith("ours")), default=None
    )
    each = arithmetic(work, batches)
    left_out += [f"{work.name}, {label} ({reason})" for label, reason in failed.items()]
    return [
        {
            "model": work.name,
            "side": label,
            "tokens_per_second": round(speed),
            "ratio": peer and round(speed / peer, 2),
            "mfu": round(speed * each / PEAK, 4),
            "milliseconds": round(1000 * tokens / speed, 2),
            "memory_gib": round(memory / 1024, 2),
        }
        for label, (speed, memory) in found.items()
    ]


def table(rows: Sequence[dict[str, Any]], left_out: Sequence[str] = ()) -> str:
    """The rows as Markdown, with what was not measured."""
    head = (
        "| model | side | target tok/s | times best peer | MFU | ms a step | peak GiB |\n"
        + "| --- " * 7
        + "|\n"
    )
    return (
        head
        + "".join(
            f"| {r['model']} | {r['side']} | {r['tokens_per_second']:,} "
            f"| {'-' if r['ratio'] is None else format(r['ratio'], '.2f')} | "
            f"{100 * r['mfu']:.1f} % "
            f"| {r['milliseconds']:.1f} | {r['memory_gib']:.2f} |\n"
            for r in rows
        )
        + "".join(f"| {name} | not measured |\n" for name in left_out)
    )


def kernels(device: str, count: int, clock: Callable[[Callable[[], Any]], float]) -> str:
    """The milliseconds of forward and backward pass of parts of base, by our kernels and by
    PyTorch's operations, for `count` tokens."""

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)

    x, rate = drawn(count, 512), 0.1
    network = FeedForward(512, 2048, rate, "relu").to(device).train()
    residual, weight = (drawn(n, 512, dtype=torch.float32) for n in (count, 32_000))
    norm, ids = nn.LayerNorm(512, device=device), torch.randint(32_000, (count,), device=device)

    def apart() -> tuple[torch.Tensor, torch.Tensor]:
        s = residual + F.dropout(x, rate)
        return s, norm(s)

    parts: dict[str, tuple[list[torch.Tensor], Callable[[], Any], Callable[[], Any]]] = {
        "dropout, residual, norm": (
            [residual, x, *norm.parameters()],
            lambda: add_norm(residual, x, rate, norm, True),
            apart,
        ),
        "feed-forward network": (
            [x, *network.parameters()],
            lambda: [feed_forward(network, x)],
            lambda: [network.outer(F.dropout(F.relu(network.inner(x)), rate))],
        ),
        "lookup": ([weight], lambda: [looked_up(weight, ids)], lambda: [F.embedding(ids, weight)]),
    }
    lines = ["| part of base | our ms | PyTorch's ms |", "| --- | --- | --- |"]
    for name, (leaves, *functions) in parts.items():

        def passes(function: Callable[[], Any], leaves: list[torch.Tensor] = leaves) -> Any:
            with torch.autocast(device, torch.bfloat16):
                found = function()
            return torch.autograd.grad(found, leaves, [each.detach() for each in found])

        ours, theirs = (clock(partial(passes, function)) for function in functions)
        lines.append(f"| {name} | {ours:.3f} | {theirs:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--miniature", action="store_true")
    given = parser.parse_args()
    works = MINIATURE if given.miniature else [work for work in WORKS if given.only in work.name]
    device, rounds = ("cpu", 1) if given.miniature else ("cuda", given.rounds)
    given.out.mkdir(parents=True, exist_ok=True)
    started, rows, left_out = time.perf_counter(), [], []
    for number, work in enumerate(works, 1):
        passed = time.perf_counter() - started
        if passed > 45.0 * given.minutes:
            left_out.append(work.name)
            continue
        patience = min(PATIENCE, 60.0 * given.minutes - passed - 15.0)
        new = rows_of(work, device, rounds, not given.miniature, left_out, patience)
        rows += new
        write(given.out, device, rows, [*left_out, *(later.name for later in works[number:])])
        print(table(new), f"{time.perf_counter() - started:.0f} s", flush=True)
    write(given.out, device, rows, left_out)
    if device == "cuda":
        write_kernels(given.out)
    print(table(rows, left_out))


def write_kernels(out: Path) -> None:
    """Measure the parts of a layer on the GPU, and write their table."""
    from triton.testing import do_bench_cudagraph

    text = kernels("cuda", 25_600, do_bench_cudagraph)
    (out / "kernels.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def write(out: Path, device: str, rows: Sequence[dict[str, Any]], left_out: Sequence[str]) -> None:
    """Write the measurements so far, so that an interrupted run leaves them."""
    known = about() | {"device": device_name(device), "command": " ".join(["python", *sys.argv])}
    found = {"about": known, "rows": rows, "left_out": left_out}
    (out / "training.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "training.md").write_text(table(rows, left_out), encoding="utf-8")


def device_name(device: str) -> str:
    """The name of the device."""
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
