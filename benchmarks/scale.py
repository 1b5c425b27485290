"""What many ranks cost: measured where one machine can, computed where it cannot.

python benchmarks/scale.py --simulate 10000000000 --ranks 512 --json
python benchmarks/scale.py --costs --tokens-per-second 400000 --euros 2.5

`--simulate` runs the real plan over lengths that a function makes: a window is planned as a rank
does at its start, and its batches are shared out to ranks whose number changes twice. `--costs` is
arithmetic from the speed of one GPU; no cluster was measured.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np

from transduct.data.batching import _examples, load, plan, windows
from transduct.segments import Filler

BUDGET, SEED = 4096, 1
GPUS = (1, 8, 64, 512)
TOKENS, BYTES = 30, 88  # of a pair, on its longer side and on disk
NVLINK, NETWORK = 450e9, 25e9 / 8  # bytes a second within a machine, and between machines
OF_A_MACHINE = 8


class Lengths:
    """The lengths of `count` pairs, a function of their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, order: np.ndarray) -> np.ndarray:
        mixed = order.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        return np.stack([5 + mixed % 60, 5 + mixed // 64 % 60], 1).astype(np.int64)


@dataclass(frozen=True)
class Simulated:
    """What a start costs a rank, and whether each example of some windows came once."""

    examples: int
    ranks: int
    windows: int
    seconds_to_start: float
    mb_a_rank: float
    seen_once: bool


def simulate(examples: int, ranks: int, samples: int = 2) -> Simulated:
    """Plan windows of an epoch, and share one out to numbers of ranks that change."""
    of, lengths, before = windows(examples), Lengths(examples), _peak()
    begun = time.perf_counter()
    batches = plan(lengths, SEED, 0, BUDGET, window=(0, of))
    seconds, memory = time.perf_counter() - begun, _peak() - before
    once = _same(np.concatenate([*_shared_out(batches, ranks)]), np.concatenate(batches))
    chosen = sorted({of * number // samples for number in range(samples)})
    found = [_examples(examples, SEED, 0, (number, of)) for number in chosen]
    every = np.concatenate(found)
    once &= len(np.unique(every)) == len(every)
    # All windows together have every example if their sizes add up and no two share one.
    if of == 1:
        once &= len(every) == examples
    return Simulated(examples, ranks, of, round(seconds, 2), round(memory / 2**20, 1), bool(once))


def _shared_out(batches: list[np.ndarray], ranks: int) -> Iterator[np.ndarray]:
    """The batches in the order of ranks that are all there, then half of them, then the rest."""
    start = 0
    for world, steps in ((ranks, 3), (max(ranks // 2, 1), 2), (max(ranks - 1, 1), None)):
        turns = -(-ranks // world)
        for rank in range(world):
            own = load(batches, _itself, start, rank, world, 0, ranks)
            for batch in islice(own, None if steps is None else steps * turns):
                if not isinstance(batch, Filler):
                    yield np.asarray(batch)
        start += ranks * (steps or 0)


def _itself(indices: np.ndarray) -> np.ndarray:
    return indices


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(np.sort(one), np.sort(other))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True)
class Cost:
    """An epoch on paper.

    Attributes:
        sent_ms: time in which the gradients of a step travel, within a machine or between machines.
        efficiency: of a GPU, if no sending is hidden behind the backward pass.
    """

    pairs: int
    gpus: int
    hours: float
    euros: float
    sent_ms: float
    efficiency: float
    corpus_gb: float


def costs(speed: float, parameters: float, step: float, euros: float) -> list[Cost]:
    """What an epoch of many pairs costs.

    Args:
        speed: tokens a second of one GPU.
        step: seconds of a step of one GPU.
        euros: of a GPU and an hour.
    """
    found = []
    for pairs in (10**7, 10**9, 10**10):
        for gpus in GPUS:
            link = NVLINK if gpus <= OF_A_MACHINE else NETWORK
            sent = 2 * 4 * parameters * (gpus - 1) / gpus / link  # a ring: there and back
            efficiency = step / (step + sent)
            hours = pairs * TOKENS / (speed * gpus * efficiency) / 3600
            price = hours * gpus * euros
            storage = pairs * BYTES / 1e9
            found.append(Cost(pairs, gpus, hours, price, 1e3 * sent, efficiency, storage))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulate", type=int, metavar="EXAMPLES")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--tokens-per-second", type=float, default=4e5, help="of one GPU")
    parser.add_argument("--parameters", type=float, default=62e6, help="of the model")
    parser.add_argument("--step", type=float, default=0.032, help="seconds of a step of one GPU")
    parser.add_argument("--euros", type=float, default=2.5, help="of a GPU and an hour")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[Simulated] | list[Cost] = []
    if asked.simulate:
        rows = [simulate(asked.simulate, asked.ranks)]
    elif asked.costs:
        rows = costs(asked.tokens_per_second, asked.parameters, asked.step, asked.euros)
    else:
        parser.error("give --simulate EXAMPLES or --costs")
    for row in rows:
        found = {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(row).items()
        }
        print(
            json.dumps(found) if asked.json else "  ".join(f"{k} {v:,}" for k, v in found.items())
        )


if __name__ == "__main__":
    main()
