"""Every recipe loads in every profile; its quick profile trains on text that looks like its
data."""

import gzip
import json
import lzma
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tests.pictures import BARS, write_pictures
from tests.tones import write_tones
from transduct.config import load_recipe, stages_of
from transduct.data.samples import generate
from transduct.records import record
from transduct.runs.evaluate import evaluate
from transduct.runs.train import train
from transduct.tasks.base import task_class
from transduct.tasks.translation import TranslationTask
from transduct.training.config import TrainingConfig
from transduct.training.optim import paper_rate

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
TRANSLATED = {"bleu", "chrf", "ter", "exact_match"}
CODED = {"nats_per_code", "reconstruction_error", "psnr", "code_usage", "code_perplexity"}
SCORES = {  # what `transduct evaluate --json` is promised to give
    "multi30k_en_de": TRANSLATED,
    "multi30k_rnn": TRANSLATED,
    "multi30k_pretrained": TRANSLATED,
    "tatoeba_en_de": TRANSLATED,
    "pydocs_en_ko": TRANSLATED,
    "tatoeba_en_ko": TRANSLATED,
    "small_parallel_enja": TRANSLATED,
    "wmt14_en_de": TRANSLATED,
    "cmudict_g2p": {"word_error_rate", "token_error_rate"},
    "wsj_parsing": {"f1"},
    "nsmc_bert": {"accuracy", "f1"},
    "sst2_bert": {"accuracy", "f1"},
    "wsj_tags": {"accuracy", "f1"},
    "generated_spans": {"exact_match", "f1"},
    "shakespeare_bert": {"accuracy", "masked_accuracy", "nats_per_token"},
    "cifar10_vit": {"accuracy", "f1"},
    "scenes_detr": {"ap", "ap50"},
    "digits_speech": {"word_error_rate", "token_error_rate"},
    "scenes_dalle": {"attributes_right", *CODED},
    "crawl_tiles_dalle": CODED,
    "tinyshakespeare_gpt": {"nats_per_token", "nats_per_character", "perplexity"},
}


def test_every_promised_recipe_is_there():
    assert {path.stem for path in RECIPES} == set(SCORES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_each_profile_is_a_whole_recipe(path, tmp_path):
    profiles = yaml.safe_load(path.read_text())["profiles"]
    assert {"quick", "cpu", "gpu"} <= set(profiles)
    for profile in [None, *profiles]:
        for stage in stages_of(load_recipe(path, profile=profile)):
            task_class(stage.task)(stage, tmp_path, print)
    assert not list(tmp_path.iterdir())


def few(data):
    """Let what is generated for a section of data be of few examples."""
    for part, most in (("train", 60), ("valid", 4), ("test", 4)):
        held = data.get(part) or []
        for corpus in held if isinstance(held, list) else [held]:
            for place in (corpus, corpus.get("collage", {})):
                place.update({key: most for key in ("count", "strings") if key in place})


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_quick_profile_runs(path, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    stages = stages_of(load_recipe(path))
    for stage in stages:
        for part in ("train", "valid", "test"):
            if held := stage.data.get(part):
                write(data, held[0] if part == "train" else held, part)
    short = ["training.steps=3", "training.warmup=1", "training.checkpoint_every=2"]
    staged = load_recipe(path).stages
    short += [f"stages.{i}.{each}" for i in range(len(staged)) for each in short]
    recipe = load_recipe(
        path, [f"data.root={data}", *short, "training.batch_tokens=400", "data.workers=0"], "quick"
    )
    for section in (recipe.data, *(stage.get("data", {}) for stage in recipe.stages)):
        few(section)
    model = train(recipe, tmp_path / "run", notify=str)
    assert set(evaluate(model).scores) == SCORES[path.stem]
    assert json.loads((model / "config.json").read_text())["task"] == stages[-1].task


def write(folder: Path, corpus: dict, part: str) -> None:
    """Text as the files a recipe names, compressed as their endings say; what is generated needs
    none."""
    if "images" in corpus:
        count = 60 if part == "train" else 12
        write_pictures(folder / corpus["images"], count)
        if "captions" in corpus:
            names = [f"{BARS[i % 3]}/{i:04}.png" for i in range(count)]
            text = "".join(f"{name}\ta bar {name.split('/')[0]}\n" for name in names)
            (folder / corpus["captions"]).write_bytes(lzma.compress(text.encode()))
        return
    if "sounds" in corpus:
        write_tones(folder / corpus["sounds"], 8, 2)
        return
    pairs = list(generate("reverse", 200 if part == "train" else 4, part))
    if "source" in corpus:
        files = {corpus["source"]: [s for s, _ in pairs], corpus["target"]: [t for _, t in pairs]}
    elif "text" in corpus:
        files = {corpus["text"]: [text for text, _ in pairs]}
    elif "trees" in corpus:
        tagged = [
            [f"({'XY'[i % 2]} {word})" for i, word in enumerate(text.split())] for text, _ in pairs
        ]
        files = {corpus["trees"]: [f"((S {' '.join(words)}))" for words in tagged]}
    elif "columns" in corpus:  # a label and a text, wherever they stand
        rows = [[str(i % 2)] * max(corpus["columns"]) + [text] for i, (text, _) in enumerate(pairs)]
        files = {corpus["pairs"]: ["\t".join(row) for row in rows]}
    else:
        files = {corpus["pairs"]: ["\t".join(pair) for pair in pairs]} if "pairs" in corpus else {}
    for name, lines in files.items():
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
        (folder / name).write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))


def test_the_paper_s_sizes():
    recipe = load_recipe(RECIPES[0].with_name("wmt14_en_de.yaml"), profile="big")
    assert (recipe.model["norm"], recipe.model["positions"]) == ("post", "sinusoidal")
    task = TranslationTask(recipe, Path(), print)
    assert asdict(task.model_config())["d_model"] == 1024
    for profile, width in (("base", 512), ("big", 1024)):
        section = load_recipe(RECIPES[0].with_name("wmt14_en_de.yaml"), profile=profile).training
        training = record(TrainingConfig, section, "training")
        assert training.learning_rate == pytest.approx(paper_rate(width, 4000, 4000), rel=1e-3)
