"""Table 3 of "Attention Is All You Need" on your own corpus: a base model, and variations that
change one thing each.

Every (row, value, seed) is a training of its own in OUT/runs, and a line in OUT/results.jsonl once
finished. Finished trainings are not repeated, and interrupted ones resume from their last
checkpoint. The duration of a step of each is measured at the end and written to OUT/steps.json.
"""

import json
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from transduct.config import Recipe, dump, load_recipe, merge
from transduct.devices import pick_device
from transduct.errors import TrainingFailed, TransductError
from transduct.predictors import base as predictors_base
from transduct.records import record
from transduct.runs import train
from transduct.storage import WEIGHTS, read_tensors, write_file
from transduct.tasks.translation import TranslationTask
from transduct.training.distributed import Ranks
from transduct.training.log import ignore
from transduct.training.machine import prepare_machine
from transduct.training.step import Stepper, seed_generators

RECIPE, RESULTS, RUNS, STEPS = "recipe.yaml", "results.jsonl", "runs", "steps.json"
BASE = "base"
TURNS, WARM = 25, 2  # timed steps of each row, and warm-up steps before
Rows = Mapping[str, Mapping[str, dict[str, Any]]]  # row -> value -> overrides of the recipe


def each(
    section: str, *keys: str, values: Sequence[Any], also: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """For each value, the overrides that set all `keys` of a section to it, and the keys in `also`
    to theirs."""
    return {
        str(value): {section: {**dict.fromkeys(keys, value), **(also or {})}} for value in values
    }


def position(scheme: str, mode: str = "add") -> dict[str, Any]:
    """The overrides that set the position scheme and its mode."""
    return {"model": {"positions": scheme, "position_mode": mode}}


# The base has 4 heads of width 32, 4 + 4 layers, width 128, feed-forward 256, dropout 0.15, label
# smoothing 0.1, and
# sinusoidal positions, whatever the recipe's are. As in the paper's rows (A) and (B), more heads
# are narrower, and
# narrower keys leave the values.
VARIATIONS: Rows = {
    "heads": each("model", "num_heads", values=(1, 2, 8)),
    "key_width": each("model", "d_k", values=(8, 16), also={"d_v": 32}),
    "layers": each("model", "encoder_layers", "decoder_layers", values=(2, 6)),
    "width": each("model", "d_model", values=(64, 256)),
    "feed_forward": each("model", "d_ff", values=(128, 512, 1024)),
    "dropout": each("model", "dropout", values=(0.0, 0.3)),
    "label_smoothing": each("training", "label_smoothing", values=(0.0, 0.2)),
    "positions": {
        **{
            scheme: position(scheme)
            for scheme in (
                *(
                    "none",
                    "index",
                    "normalised_index",
                    "binary",
                    "one_hot",
                    "learned",
                    "sinusoidal_concatenated",
                ),
                *("rotary", "alibi", "relative"),
            )
        },
        "sinusoidal, concatenated to the embedding": position("sinusoidal", "concatenate"),
        "sinusoidal, in attention": position("sinusoidal", "attention"),
    },
}


@dataclass(frozen=True)
class Result:
    """The scores of a training's final weights on the validation set, with greedy decoding.

    Perplexity is per subword. A training that diverged has no scores.
    """

    row: str
    value: str
    seed: int
    parameters: int = 0
    seconds: float = 0.0
    perplexity: float | None = None
    bleu: float | None = None


def chosen_rows(names: Sequence[str] | None) -> Rows:
    """The rows of these names; all if not given."""
    for name in names or ():
        if name not in VARIATIONS:
            raise TransductError(f"no row is called '{name}'; known are: {', '.join(VARIATIONS)}")
    return {name: VARIATIONS[name] for name in names or VARIATIONS}


def base_recipe(path: Path, root: str | None, steps: int | None) -> Recipe:
    """The recipe's CPU profile, with its schedule scaled to the number of steps."""
    over = ["model.positions=sinusoidal"] + ([] if root is None else [f"data.root={root}"])
    recipe = load_recipe(path, over, "cpu")
    if recipe.task != "translation":
        raise TransductError(f"{path}: its task is {recipe.task}; give a recipe for translation")
    if steps is None:
        return recipe
    training = dict(TranslationTask(recipe, Path(), ignore).recipe.training)
    for key in ("warmup", "validate_every", "checkpoint_every"):
        training[key] = training[key] and max(1, round(training[key] * steps / training["steps"]))
    return record(Recipe, merge(asdict(recipe), {"training": {**training, "steps": steps}}), "")


def run_variations(
    recipe: Recipe, rows: Rows, seeds: Sequence[int], out: Path, resume: bool
) -> Iterator[list[Result]]:
    """Run the unfinished trainings. Yields all results so far, at first and after each training.

    All rows of the first seed come first, so that the table is complete soon.

    Raises:
        TransductError: if a row does not fit the recipe, or `out` has results and `resume` is not
            set.
        TrainingFailed: if a signal stopped a training.
    """
    tasks = {}
    for seed in seeds:
        for (row, value), changed in _recipes(recipe, rows).items():
            seeded = merge(changed, {"training": {"seed": seed}})
            # fails if invalid
            tasks[row, value, seed] = TranslationTask(record(Recipe, seeded, ""), out, ignore)
    finished = _open(recipe, out, resume)
    yield finished
    held = {(result.row, result.value, result.seed) for result in finished}
    for (row, value, seed), task in tasks.items():
        if (row, value, seed) in held:
            continue
        finished.append(_train(task.recipe, row, value, seed, out))
        write_file(
            out / RESULTS,
            "".join(f"{json.dumps(asdict(result))}\n" for result in finished).encode(),
        )
        yield finished


def step_times(recipe: Recipe, rows: Rows, out: Path) -> dict[tuple[str, str], float]:
    """Milliseconds of a training step of each row, read from `out` or measured.

    They are medians. The rows take turns, so that other work on the machine slows all of them, and
    every step has another batch, as in training, because kernels are compiled for each shape.
    """
    path, recipes = out / STEPS, _recipes(recipe, rows)
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    known = {(row, value): milliseconds for row, value, milliseconds in held}
    if known.keys() >= recipes.keys():
        return known
    prepare_machine()
    steppers, folder = {}, out / RUNS / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    for key, changed in recipes.items():
        task = TranslationTask(record(Recipe, changed, ""), folder, ignore)
        device = pick_device(task.training.device)
        task.prepare()
        seed_generators(task.training.seed)
        model = task.build_model().to(device).train()
        steppers[key] = Stepper(model, task.training, task.loss, Ranks.join(device))
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in recipes}
    batches = chain.from_iterable(task.batches("train", epoch, 0, 0, 1) for epoch in count())
    for number in range(1, WARM + TURNS + 1):
        for (key, stepper), batch in zip(steppers.items(), batches):
            begun = time.perf_counter()
            stepper.take([batch.to(device)], number, 1e-4).loss()
            taken[key].append(time.perf_counter() - begun)
    found = {key: 1000 * statistics.median(times[WARM:] or times) for key, times in taken.items()}
    write_file(
        path, json.dumps([[*key, milliseconds] for key, milliseconds in found.items()]).encode()
    )
    return found


def _recipes(recipe: Recipe, rows: Rows) -> dict[tuple[str, str], dict[str, Any]]:
    """The base and its variations, by row and value."""
    found = {(BASE, ""): asdict(recipe)}
    return found | {
        (row, value): merge(asdict(recipe), over)
        for row in rows
        for value, over in rows[row].items()
    }


def _open(recipe: Recipe, out: Path, resume: bool) -> list[Result]:
    """The results in `out`, which must be of the same recipe; empty for a new folder."""
    path = out / RECIPE
    if path.exists() and not resume:
        raise TransductError(
            f"{out}: holds variations already; go on with --resume or choose another --out"
        )
    if path.exists() and _without_root(load_recipe(path)) != _without_root(recipe):
        raise TransductError(
            f"{out}: its variations are of another recipe or other steps; choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_file(path, dump(asdict(recipe)).encode())
    lines = (
        (out / RESULTS).read_text(encoding="utf-8").splitlines() if (out / RESULTS).exists() else []
    )
    return [Result(**json.loads(line)) for line in lines]


def _without_root(recipe: Recipe) -> Recipe:
    """The recipe without the location of its files."""
    return replace(recipe, data={key: value for key, value in recipe.data.items() if key != "root"})


def _train(recipe: Recipe, row: str, value: str, seed: int, out: Path) -> Result:
    """Train one variation, score its final weights and delete its checkpoints."""
    directory = out / RUNS / "_".join(f"{row} {value} {seed}".replace(",", "").split())
    try:
        model_directory = train.train(recipe, directory, resume=True, notify=ignore)
    except TrainingFailed as error:
        if "diverged" not in str(error):
            raise
        shutil.rmtree(directory / "checkpoints")
        return Result(row, value, seed)
    task = TranslationTask(recipe, directory, ignore)
    task.prepare()
    scores = task.evaluate(predictors_base.load(model_directory).model).scores
    events = [json.loads(line) for line in (directory / train.LOG).read_text().splitlines()]
    seconds = max(event.get("seconds", 0.0) for event in events)
    # an interrupted call may have deleted them already
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    parameters = sum(weight.numel() for weight in read_tensors(model_directory / WEIGHTS).values())
    return Result(row, value, seed, parameters, seconds, scores["perplexity"], scores["bleu"])
