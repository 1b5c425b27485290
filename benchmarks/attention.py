"""The formula against PyTorch's fused attention, forward and backward, by length.

python benchmarks/attention.py [--threads 2]

About 4096 tokens in each batch, 4 heads of width 32; medians of 9 runs, one side after the other, in milliseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from transduct.functional.attention import attention


def milliseconds(run: Callable[[], None]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print("| length | formula | fused | ratio |\n| --- | --- | --- | --- |")
    for length in (8, 16, 32, 64, 128, 256, 512, 1024):
        shape = (max(1, 4096 // length), 4, length, 32)
        query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
        gradient = torch.randn(shape)
        sides = [
            lambda: attention(query, key, value).backward(gradient),  # noqa: B023 (called in this turn of the loop)
            lambda: scaled_dot_product_attention(query, key, value).backward(gradient),  # noqa: B023
        ]
        times = [[milliseconds(side) for side in sides] for _ in range(11)][2:]
        ours, fused = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {length} | {ours:.2f} | {fused:.2f} | {fused / ours:.2f} |")


if __name__ == "__main__":
    main()
