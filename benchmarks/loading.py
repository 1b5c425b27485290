"""Whether data loading keeps up with training: examples per second of one loading process and of
the training step.

python benchmarks/loading.py recipes/cifar10_vit.yaml data.root=DATA/cifar10_jpg [--profile cpu]
[--batches 30]

Prepares the recipe's data in a temporary folder (or in --out), then makes batches and trains on
them, each alone on one core. On a CPU seconds are CPU time, so that other work on the machine
counts little. Prints JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from transduct.config import load_recipe, stages_of
from transduct.devices import pick_device
from transduct.tasks.base import task_class
from transduct.training.distributed import Ranks
from transduct.training.machine import prepare_machine
from transduct.training.step import Stepper, seed_generators

# whose examples are counted
TASKS = ("image_classification", "image_codes", "object_detection", "speech_recognition")


def examples(batch: Any) -> int:
    """The number of examples in a batch: its pictures or utterances."""
    return len(batch.pictures if hasattr(batch, "pictures") else batch.frames)


def measure(task: Any, count: int) -> dict[str, Any]:
    """Examples loaded per second, and trained on per second, over `count` batches of the first
    epoch."""
    device = pick_device(task.training.device)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seed_generators(task.training.seed)
    model = task.build_model().to(device).train()
    stepper, rate = (
        Stepper(model, task.training, task.loss, Ranks.join(device)),
        task.training.learning_rate,
    )
    stream = task.batches("train", 0, 0, 0, 1)
    first = next(stream)  # opens files and runs lazy imports
    started = clock()
    batches = list(islice(stream, count))
    loading = clock() - started
    stepper.take([first], 1, rate).loss()  # allocates memory
    started = clock()
    for batch in batches:
        stepper.take([batch], 1, rate).loss()
    training = clock() - started
    total = sum(map(examples, batches))
    speeds = {"loaded_per_second": total / loading, "trained_per_second": total / training}
    return {
        "examples": total,
        **{name: round(speed, 1) for name, speed in speeds.items()},
        "loading_over_training": round(training / loading, 1),
        "precision": task.training.precision,
        "device": device.type,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="a.b=c")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare_machine()
    recipe = stages_of(
        load_recipe(arguments.recipe, [*arguments.overrides, "data.workers=0"], arguments.profile)
    )[0]
    if recipe.task not in TASKS:
        parser.error(
            f"{arguments.recipe}: the task is {recipe.task}; give a recipe of one of: "
            f"{', '.join(TASKS)}"
        )
    with tempfile.TemporaryDirectory() as folder:
        directory = arguments.out or Path(folder)
        task = task_class(recipe.task)(recipe, directory, lambda line: print(line, file=sys.stderr))
        task.prepare()
        found = measure(task, arguments.batches)
    print(json.dumps({"recipe": arguments.recipe.stem, "profile": arguments.profile, **found}))


if __name__ == "__main__":
    main()
