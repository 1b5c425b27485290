"""The `gpu` profile of each recipe for eight seconds: how fast it trains, and what it waits for.

python benchmarks/gpu_recipes.py --out DIR [--data ROOT] [--only NAME] [--full NAME] [--miniature]

Of a recipe in stages the first is measured. Each recipe runs in a process of its own. It takes six
steps plainly, captured and, if it is to be compiled, compiled, over the same batches, and says how
far their losses differ at most. Then it trains as the program chooses. None starts after 170 of the
240 seconds; the rest are listed, for `--only`. `--full` trains one recipe to its end and scores it
on its test set, however long that takes. ROOT holds a folder for each corpus, as the recipes' first
lines name it. `--miniature` does the same on a CPU with generated data. Writes recipes.json and
prints a table last.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch

from transduct.config import Recipe, load_recipe, stages_of
from transduct.devices import pick_device
from transduct.errors import TransductError
from transduct.kernels.cuda_graphs import pinned
from transduct.tasks.base import Task, task_class
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.machine import one_ahead, prepare_machine
from transduct.training.step import Stepper, Taken, seed_generators
from transduct_bench.rows import about

RECIPES = Path(__file__).parents[1] / "recipes"
COMPARED = 6  # steps whose losses are compared
SECONDS, LATEST, MOST = 8.0, 170.0, 70.0  # of training; the last start; of a recipe in all
MINIATURE = {
    "transformer": {"capture": True},
    "rnn": {"capture": True},
}
TINY: dict[str, Any] = {
    "data": {
        "train": [{"generate": "reverse", "count": 120}],
        "valid": {"generate": "reverse", "part": "valid", "count": 8},
        "test": {"generate": "reverse", "part": "test", "count": 8},
        "max_length": 40,
        "workers": 0,
    },
    "tokenizer": {"kind": "bpe", "size": 60},
    "training": {"steps": 6, "batch_tokens": 200, "warmup": 2, "checkpoint_every": 6},
    "decoding": {"beam": 1},
}


def recipe_of(name: str, data: Path, miniature: bool) -> Recipe:
    """The recipe with its `gpu` profile and the folder of its corpus, or a miniature."""
    if miniature:
        model = {"family": name, "size": "tiny"}
        training = {**TINY["training"], **MINIATURE[name], "device": "cpu"}
        return Recipe("translation", **{**TINY, "model": model, "training": training})
    path = RECIPES / f"{name}.yaml"
    folder = re.search(r"data\.root=DATA/(\S+)", path.read_text(encoding="utf-8"))
    overrides = [f"data.root={data / folder[1]}"] if folder else []
    return load_recipe(path, overrides, "gpu")


def ways_of(task: Task) -> dict[str, TrainingConfig]:
    """The ways in which the task's steps can run, of which losses are compared."""
    config = task.training
    ways = {"plain": replace(config, compile=False, capture=False)}
    if task.model.model.captures_steps and config.optimiser == "adam":
        ways["captured"] = replace(config, compile=False, capture=True)
    if config.compile is True:
        ways["compiled"] = replace(config, compile=True, capture=False)
    return ways


def examples(batch: Any) -> int:
    """The number of examples in a batch, without filler."""
    return int(batch.sizes["sequences" if "sequences" in batch.sizes else "pictures"])


def stepper_of(task: Task, config: TrainingConfig, said: list[str]) -> Stepper:
    """A new model that takes steps in one way."""
    device = pick_device(config.device)
    seed_generators(config.seed)
    model = task.build_model().to(device).train()
    return Stepper(model, config, task.loss, Ranks.join(device), said.append)


def measure(recipe: Recipe, folder: Path, seconds: float) -> dict[str, Any]:
    """Compare the ways, then train for some seconds in the one that the program chooses."""
    said: list[str] = []
    prepare_machine()
    task = task_class(recipe.task)(recipe, folder, said.append)
    task.prepare()
    config = task.training
    compared = list(islice(task.batches("train", 0, 0, 0, 1), COMPARED))
    losses: dict[str, list[float]] = {}
    for name, way in ways_of(task).items():
        stepper = stepper_of(task, way, said)
        losses[name] = [
            stepper.take([batch], number, config.learning_rate / max(1, config.warmup)).loss()
            for number, batch in enumerate(compared, 1)
        ]
        stepper.release()
    apart = {
        name: max(abs(a - b) / abs(a) for a, b in zip(losses["plain"], each, strict=True))
        for name, each in losses.items()
        if name != "plain"
    }
    stepper = stepper_of(task, config, said)
    return {
        "task": recipe.task,
        "chosen": [name for name in ("compile", "capture") if vars(config)[name] is True],
        "precision": config.precision,
        "losses": losses,
        "apart": apart,
        **trained(task, stepper, seconds),
        "said": said,
    }


def trained(task: Task, stepper: Stepper, seconds: float) -> dict[str, Any]:
    """Train for some seconds, as the trainer does, after a few steps that compile and capture."""
    config, cuda = task.training, stepper.device.type == "cuda"
    batches: Iterator[Any] = chain.from_iterable(
        task.batches("train", epoch, 0, 0, 1) for epoch in count()
    )
    if cuda:
        batches = one_ahead(map(pinned, batches) if stepper.captured else batches)
    for number, batch in enumerate(islice(batches, 4), 1):
        stepper.take([batch], number, 0.0).loss()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    steps = seen = tokens = 0
    waited, began = 0.0, time.perf_counter()
    pending: list[Taken] = []
    while time.perf_counter() - began < seconds or not steps:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        pending.append(stepper.take([batch], steps + 5, 0.0))
        if len(pending) > 1:
            pending.pop(0).loss()
        steps, seen, tokens = steps + 1, seen + examples(batch), tokens + batch.tokens
    pending.pop().loss()
    passed = time.perf_counter() - began
    stepper.release()
    return {
        "milliseconds_a_step": round(1000 * passed / steps, 2),
        "examples_per_second": round(seen / passed, 1),
        "tokens_per_second": round(tokens / passed, 1),
        "waiting": round(waited / passed, 3),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
        "minutes": round(config.steps * passed / steps / 60, 2),
    }


def complete(name: str, recipe: Recipe, out: Path) -> dict[str, Any]:
    """Train a recipe to its end and score it."""
    from transduct.runs.evaluate import evaluate
    from transduct.runs.train import train

    began = time.perf_counter()
    model = train(recipe, out / name, resume=(out / name).exists(), notify=say)
    minutes = (time.perf_counter() - began) / 60
    return {"trained_minutes": round(minutes, 2), "scores": dict(evaluate(model).scores)}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def child(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one recipe in a process of its own."""
    command = [sys.executable, __file__, "--child", name, "--out", str(given.out)]
    command += ["--data", str(given.data)] + ["--miniature"] * given.miniature
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"did not end within {MOST:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Mapping[str, Mapping[str, Any]], left: list[str]) -> str:
    """The measurements, a line each."""
    lines = [
        f"{'recipe':22} {'steps':9} {'ex/s':>9} {'ms/step':>8} {'wait':>6} {'GiB':>6} {'min':>8}"
        "  losses differ by"
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"{name:22} failed: {row['failed']}")
            continue
        how = "+".join(each[:4] for each in row["chosen"]) or "plain"
        apart = ", ".join(f"{way} {value:.1e}" for way, value in row["apart"].items()) or "-"
        memory = "-" if row["memory_gib"] is None else f"{row['memory_gib']:.2f}"
        lines.append(
            f"{name:22} {how:9} {row['examples_per_second']:9,.0f} "
            f"{row['milliseconds_a_step']:8.2f} {100 * row['waiting']:5.1f}% {memory:>6} "
            f"{row['minutes']:8.2f}  {apart}"
        )
        if "scores" in row:
            scores = ", ".join(f"{score} {value:.4g}" for score, value in row["scores"].items())
            lines.append(f"{'':22} to its end in {row['trained_minutes']:.2f} min: {scores}")
    lines += [f"{name:22} not measured, for want of time" for name in left]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of the names of the recipes to measure")
    parser.add_argument("--full", help="a recipe to train to its end")
    parser.add_argument("--miniature", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        seconds = 0.2 if given.miniature else SECONDS
        with tempfile.TemporaryDirectory() as folder:
            recipe = stages_of(recipe_of(given.child, given.data.resolve(), given.miniature))[0]
            try:
                print(json.dumps(measure(recipe, Path(folder), seconds)))
            except TransductError as error:
                sys.exit(str(error))
        return
    names = list(MINIATURE) if given.miniature else sorted(path.stem for path in RECIPES.iterdir())
    names = [name for name in names if given.only in name and given.full in (None, name)]
    given.out.mkdir(parents=True, exist_ok=True)
    known = about() | {"command": " ".join(["python", *sys.argv])}
    if torch.cuda.is_available() and not given.miniature:
        known["device"] = torch.cuda.get_device_name()
    began, rows, left = time.perf_counter(), dict[str, dict[str, Any]](), list(names)
    for name in names:
        if time.perf_counter() - began > LATEST:
            break
        left.remove(name)
        rows[name] = child(name, given)
        if given.full == name and "failed" not in rows[name]:
            recipe = recipe_of(name, given.data.resolve(), given.miniature)
            rows[name] |= complete(name, recipe, given.out)
        found = {"about": known, "rows": rows, "left_out": left}
        (given.out / "recipes.json").write_text(
            json.dumps(found, indent=1) + "\n", encoding="utf-8"
        )
        say(f"{time.perf_counter() - began:6.1f} s  {name}")
    print(table(rows, left))


if __name__ == "__main__":
    main()
