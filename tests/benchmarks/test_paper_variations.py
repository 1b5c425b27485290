import json
from itertools import pairwise

import paper_variations as variations
import pytest
from paper_tables import RECIPES
from paper_variations import (
    BASE,
    RESULTS,
    RUNS,
    VARIATIONS,
    Result,
    base_recipe,
    chosen_rows,
    run_variations,
)

from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.config import Recipe, load_recipe, merge
from transduct.errors import TrainingFailed
from transduct.records import record
from transduct.storage import WEIGHTS, read_tensors
from transduct.tasks.translation import TranslationTask
from transduct.training.log import ignore

MULTI30K = RECIPES / "multi30k_en_de.yaml"
HEADS = {"heads": {"1": {"model": {"num_heads": 1}}}}


def short(**sections):
    """A recipe of two steps."""
    return tiny_recipe(**{"training": {"steps": 2, "validate_every": 0}, **sections})


def last(found):
    """The last of what a generator gives, as it was then."""
    *_, results = (list(results) for results in found)
    return results


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which base and one variation have been trained with two seeds."""
    out = tmp_path_factory.mktemp("variations")
    return out, last(run_variations(short(), HEADS, [1, 2], out, resume=False))


@pytest.fixture
def forbidden(monkeypatch):
    """Training anything is a mistake."""

    def train(recipe, directory, **rest):
        raise AssertionError(f"trained {directory.name}")

    monkeypatch.setattr(variations.train, "train", train)


def test_every_variation_fits_the_recipe_and_none_is_the_base(tmp_path):
    recipe = base_recipe(MULTI30K, None, None)
    resolved = [TranslationTask(recipe, tmp_path, ignore).recipe]
    for values in VARIATIONS.values():
        for over in values.values():
            changed = record(Recipe, merge(vars(recipe), over), "")
            resolved.append(TranslationTask(changed, tmp_path, ignore).recipe)
            assert resolved[-1] not in resolved[:-1], over


def test_fewer_steps_shrink_the_schedule(tmp_path):
    training = base_recipe(MULTI30K, "somewhere", 280).training
    assert {
        key: training[key] for key in ("steps", "warmup", "validate_every", "checkpoint_every")
    } == {"steps": 280, "warmup": 30, "validate_every": 140, "checkpoint_every": 7}
    assert base_recipe(MULTI30K, "somewhere", None).data["root"] == "somewhere"
    assert base_recipe(MULTI30K, None, 1).training["checkpoint_every"] == 1


def test_the_base_has_the_positions_of_the_paper_whatever_the_recipe_has():
    assert load_recipe(MULTI30K, profile="cpu").model["positions"] == "rotary"
    assert base_recipe(MULTI30K, None, None).model["positions"] == "sinusoidal"


def test_rows_are_chosen_by_name():
    assert list(chosen_rows(["width", "heads"])) == ["width", "heads"]
    assert chosen_rows(None) == VARIATIONS
    with refusal("no row is called 'head'; known are: heads, key_width, "):
        chosen_rows(["heads", "head"])


def test_another_task_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("task: speech_recognition\nprofiles: {cpu: {}}\n")
    with refusal("its task is speech_recognition; give a recipe for translation"):
        base_recipe(path, None, None)


def test_each_variation_and_seed_is_trained_and_scored(finished):
    out, results = finished
    assert [(r.row, r.value, r.seed) for r in results] == [
        (BASE, "", 1), ("heads", "1", 1), (BASE, "", 2), ("heads", "1", 2),
    ]  # fmt: skip
    assert len({r.perplexity for r in results}) == 4
    assert len({r.parameters for r in results}) == 1  # heads share a width between them
    assert all(r.perplexity > 1 and r.bleu >= 0 and r.seconds > 0 for r in results)
    assert [
        Result(**json.loads(line)) for line in (out / RESULTS).read_text().splitlines()
    ] == results
    folders = sorted(path.name for path in (out / RUNS).iterdir())
    assert folders == ["base_1", "base_2", "heads_1_1", "heads_1_2"]
    assert all((out / RUNS / name / "model").exists() for name in folders)
    assert not list(out.glob(f"{RUNS}/*/checkpoints"))


def test_parameters_are_those_of_the_weights_and_of_the_model_as_built(finished):
    out, results = finished
    for result, folder in zip(results, ("base_1", "heads_1_1", "base_2", "heads_1_2"), strict=True):
        task = TranslationTask(
            load_recipe(out / RUNS / folder / "recipe.yaml"), out / RUNS / folder, ignore
        )
        task.prepare()
        assert result.parameters == sum(p.numel() for p in task.build_model().parameters())
        weights = read_tensors(out / RUNS / folder / "model" / WEIGHTS)
        assert result.parameters == sum(weight.numel() for weight in weights.values())


def test_steps_of_all_rows_take_turns_and_are_timed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(variations, "TURNS", 2)
    taken, take = [], variations.Stepper.take

    def noted(stepper, batches, number, rate):
        taken.append((stepper.model.config.num_heads, number, tuple(batches[0].source.tolist())))
        return take(stepper, batches, number, rate)

    monkeypatch.setattr(variations.Stepper, "take", noted)
    found = variations.step_times(short(), HEADS, tmp_path)
    assert found.keys() == {(BASE, ""), ("heads", "1")}
    assert all(milliseconds > 0 for milliseconds in found.values())
    numbers = range(1, variations.WARM + 3)
    assert [each[:2] for each in taken] == [
        (heads, number) for number in numbers for heads in (2, 1)
    ]
    assert all(one[2] != other[2] for one, other in pairwise(taken))
    assert variations.step_times(short(), HEADS, tmp_path) == found
    assert len(taken) == 2 * len(numbers)


def test_what_is_finished_is_not_trained_again(finished, forbidden):
    out, results = finished
    moved = short(data={"root": "elsewhere"})
    assert last(run_variations(moved, HEADS, [1, 2], out, resume=True)) == results
    with pytest.raises(AssertionError, match="trained base_3"):
        last(run_variations(short(), HEADS, [1, 3], out, resume=True))
    with refusal("holds variations already; go on with --resume or choose another --out"):
        last(run_variations(short(), HEADS, [1], out, resume=False))
    with refusal("of another recipe or other steps; choose another --out"):
        last(run_variations(short(training={"steps": 3}), HEADS, [1], out, resume=True))


def test_an_interrupted_call_goes_on(finished, tmp_path, monkeypatch):
    _, results = finished
    calls = run_variations(short(), HEADS, [1, 2], tmp_path, resume=False)
    assert next(calls) == []
    assert len(next(calls)) == 1
    calls.close()
    trained, train = [], variations.train.train

    def watched(recipe, directory, **rest):
        trained.append(directory.name)
        return train(recipe, directory, **rest)

    monkeypatch.setattr(variations.train, "train", watched)
    again = last(run_variations(short(), HEADS, [1, 2], tmp_path, resume=True))
    assert trained == ["heads_1_1", "base_2", "heads_1_2"]
    assert [(r.row, r.seed, r.perplexity) for r in again] == [
        (r.row, r.seed, r.perplexity) for r in results
    ]


def test_a_run_that_was_finished_but_not_noted_is_scored(finished, tmp_path):
    _, results = finished
    recipe = TranslationTask(
        short(training={"seed": 1, "steps": 2, "validate_every": 0}), tmp_path, ignore
    ).recipe
    directory = tmp_path / RUNS / "base_1"
    variations.train.train(recipe, directory, notify=ignore)
    variations.shutil.rmtree(directory / "checkpoints")
    [found] = last(run_variations(short(), {}, [1], tmp_path, resume=False))
    assert found.perplexity == results[0].perplexity


def test_a_training_that_diverges_is_noted(tmp_path):
    wild = {"training": {"learning_rate": 1e30, "warmup": 1, "divergence_tries": 0}}
    found = last(
        run_variations(
            short(training={"steps": 6}), {"rate": {"wild": wild}}, [1], tmp_path, resume=False
        )
    )
    assert found[1] == Result("rate", "wild", 1)
    assert found[0].bleu is not None
    assert not list(tmp_path.glob(f"{RUNS}/*/checkpoints"))


def test_a_signal_stops_everything(tmp_path, monkeypatch):
    def stopped(recipe, directory, **rest):
        raise TrainingFailed("stopped by a signal at step 1; go on with --resume")

    monkeypatch.setattr(variations.train, "train", stopped)
    with pytest.raises(TrainingFailed, match="stopped by a signal"):
        last(run_variations(short(), {}, [1], tmp_path, resume=False))
    assert not (tmp_path / RESULTS).exists()


def test_a_wrong_variation_fails_before_anything_is_trained(tmp_path, forbidden):
    rows = {"heads": {"3": {"model": {"num_heads": 3}}}}
    with refusal("d_model 16 is not a multiple of num_heads 3"):
        last(run_variations(short(), rows, [1], tmp_path, resume=False))
    assert not list(tmp_path.iterdir())
