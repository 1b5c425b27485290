"""Every recipe loads in every profile; its quick profile trains on text that looks like its data."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from transduct.config import load_recipe, record
from transduct.data.samples import generate
from transduct.tasks.base import evaluate, train
from transduct.tasks.translation import TranslationTask

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
EXPECTED = {
    "multi30k_en_de",
    "tatoeba_en_de",
    "pydocs_en_ko",
    "tatoeba_en_ko",
    "small_parallel_enja",
    "cmudict_g2p",
    "wmt14_en_de",
}


def test_every_promised_recipe_is_there():
    assert {path.stem for path in RECIPES} >= EXPECTED


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_each_profile_is_a_whole_recipe(path, tmp_path):
    profiles = yaml.safe_load(path.read_text())["profiles"]
    assert {"quick", "cpu", "gpu"} <= set(profiles)
    for profile in [None, *profiles]:
        TranslationTask(load_recipe(path, profile=profile), tmp_path, print)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_quick_profile_runs(path, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    tree = yaml.safe_load(path.read_text())["data"]
    for part in ("train", "valid", "test"):
        corpus = tree[part][0] if part == "train" else tree[part]
        write(data, corpus, list(generate("reverse", 400 if part == "train" else 12, part)))
    overrides = [f"data.root={data}", "training.steps=3", "training.warmup=1", "training.checkpoint_every=2"]
    recipe = load_recipe(path, [*overrides, "training.batch_tokens=400", "data.workers=0"], "quick")
    model = train(recipe, tmp_path / "run", notify=str)
    report = evaluate(model, beam=2)
    assert set(report.scores) == set(recipe.data.get("metrics", ["bleu", "chrf", "ter", "exact_match"]))
    assert json.loads((model / "config.json").read_text())["task"] == "translation"


def write(folder: Path, corpus: dict, pairs: list[tuple[str, str]]) -> None:
    """Pairs as the files a recipe names, compressed as their endings say."""
    import gzip
    import lzma

    if "pairs" in corpus:
        files = {corpus["pairs"]: ["\t".join(pair) for pair in pairs]}
    else:
        files = {corpus["source"]: [s for s, _ in pairs], corpus["target"]: [t for _, t in pairs]}
    for name, lines in files.items():
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
        (folder / name).write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))


def test_the_paper_s_sizes():
    recipe = load_recipe(RECIPES[0].with_name("wmt14_en_de.yaml"), profile="big")
    task = TranslationTask(recipe, Path(), print)
    assert asdict(task._config(37000, 37000))["d_model"] == 1024
    from transduct.training.optim import paper_rate
    from transduct.training.trainer import TrainingConfig

    for profile, width in (("base", 512), ("big", 1024)):
        section = load_recipe(RECIPES[0].with_name("wmt14_en_de.yaml"), profile=profile).training
        training = record(TrainingConfig, section, "training")
        assert training.learning_rate == pytest.approx(paper_rate(width, 4000, 4000), rel=1e-3)
