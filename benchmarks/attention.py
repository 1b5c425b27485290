"""Self-attention, forward and backward, by sequence length: our kernel, the plain formula,
PyTorch's fused kernel.

python benchmarks/attention.py [--threads 2] [--precision float32] [--varied]

Batches of about 4096 tokens, 4 heads of width 32; medians of 9 runs in milliseconds, taking turns.
By default all sequences have the same length. With --varied their lengths range from three quarters
of it to all of it, as in planned batches, so that the formula and the fused kernel need padding.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from random import Random

import torch
from torch import Tensor

from transduct.functional import attention
from transduct.kernels import cpu, cpu_training
from transduct.segments import Segments

LENGTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS, HEADS, WIDTH = 4096, 4, 32


def milliseconds(run: Callable[[], None]) -> float:
    """The duration of one call."""
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def by_pytorch(largest: int, tensors: list[Tensor], segments: Segments) -> Tensor:
    """The plain formula if a head has at most `largest` weights, otherwise PyTorch's fused
    kernel."""
    usable, explicit = cpu.trainable, attention.LARGEST_EXPLICIT
    cpu.trainable, attention.LARGEST_EXPLICIT = lambda *_: False, largest
    try:
        return attention.segment_attention(*tensors, segments, segments)
    finally:
        cpu.trainable, attention.LARGEST_EXPLICIT = usable, explicit


def by_the_kernel(tensors: list[Tensor], segments: Segments) -> Tensor:
    """Our training kernel, at any length."""
    return cpu_training.attention(*tensors, segments, segments, causal=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--varied", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "| length | kernel | formula | fused | the better of these / kernel |\n| --- | --- | "
        "--- | --- | --- |"
    )
    for length in LENGTHS:
        random, lengths = Random(1), [length] * (TOKENS // length)
        if options.varied:
            lengths = [random.randint(max(1, length * 3 // 4), length) for _ in lengths]
        segments, shape = Segments.of(lengths), (sum(lengths), HEADS, WIDTH)
        dtype = getattr(torch, options.precision)
        tensors = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
        gradient = torch.randn(shape).to(dtype)
        sides = [by_the_kernel, partial(by_pytorch, length**2), partial(by_pytorch, 0)]
        runs = [
            lambda side=side: side(tensors, segments).backward(gradient)  # noqa: B023
            for side in sides
        ]
        times = [[milliseconds(run) for run in runs] for _ in range(11)][2:]
        ours, formula, fused = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"| {length} | {ours:.2f} | {formula:.2f} | {fused:.2f} | "
            f"{min(formula, fused) / ours:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
