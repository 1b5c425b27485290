"""Text to image: codes of a model before, captions dropped by lot, pictures from texts; a tiny
world is learnt."""

import json
import shutil
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import transduct
from tests.families import RECIPES, in_folder
from tests.models.test_dalle import BEGIN, tiny_dalle
from tests.pictures import write_pictures
from tests.refusals import refusal
from transduct.config import Recipe, load_recipe
from transduct.runs import evaluate, train
from transduct.storage import CONFIG, WEIGHTS, read_tensors
from transduct.tasks import base, text_to_image
from transduct.tasks.text_to_image import TextToImageTask, fill_up, make_batch
from transduct_corpora import scenes

TINY = RECIPES["text to image"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, and the run of the codes it started from."""
    folder = tmp_path_factory.mktemp("painter")
    recipe = in_folder(TINY, folder)
    train.train(recipe, folder / "run", notify=str)
    (folder / "recipe.json").write_text(json.dumps(recipe.__dict__))
    return folder


@pytest.fixture(scope="module")
def recipe(folder):
    return Recipe(**json.loads((folder / "recipe.json").read_text()))


def task(recipe, folder):
    folder.mkdir(exist_ok=True)
    made = TextToImageTask(recipe, folder, str)
    made.prepare()
    return made


def test_one_model_directory_draws_pictures(folder):
    model = transduct.load(folder / "run")
    [picture] = model.predict(["a small red circle in the middle"], samples=2, guidance=3.0)
    assert str(picture) == "picture 8x8"
    files = {path.name for path in (folder / "run" / "model").iterdir()}
    assert files == {CONFIG, WEIGHTS, "card.md", "tokenizer.json", "samples.png"}
    assert np.asarray(Image.open(folder / "run" / "model" / "samples.png")).shape[1] > 3 * 128
    assert "attributes_right" in (folder / "run" / "model" / "card.md").read_text()


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_caption_without_its_picture_is_found_before_any_code_is(recipe, tmp_path, split):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "0.png")
    (tmp_path / "captions.tsv").write_text("0.png\tblack\n7.png\tnothing\n")
    source = {"images": "pictures", "captions": "captions.tsv"}
    data = {**recipe.data, "root": str(tmp_path), split: [source] if split == "train" else source}
    made = TextToImageTask(replace(recipe, data=data), tmp_path, str)
    with refusal(r"7.png: found a caption without its picture"):
        made.check_data()
    TextToImageTask(replace(recipe, data={**data, "broken": "skip"}), tmp_path, str).check_data()


def test_the_codes_inside_are_those_it_started_from(folder):
    inside = read_tensors(folder / "run" / "model" / WEIGHTS)
    before = read_tensors(folder / "codes" / "model" / WEIGHTS)
    assert {
        name.removeprefix("vae.") for name in inside if name.startswith("vae.")
    } == before.keys()
    assert all(torch.equal(inside[f"vae.{name}"], weight) for name, weight in before.items())


def test_it_is_measured_in_all_it_promises(folder):
    report = evaluate.evaluate(folder / "run", samples=1)
    assert set(report.scores) == {
        *("attributes_right", "nats_per_code"),
        *("reconstruction_error", "psnr", "code_usage", "code_perplexity"),
    }
    assert report.details["pictures"] == len(report.outputs) == 3


def test_a_batch_holds_captions_codes_and_where_each_code_is_told():
    batch = make_batch([[9, 10], []], [np.array([1, 2, 3]), np.array([4, 5, 6])], 7)
    assert batch.tokens_in.tolist() == [9, 10, 7, 1, 2, 7, 4, 5]
    assert batch.segments.lengths.tolist() == [5, 3]
    assert batch.places.tolist() == [2, 3, 4, 5, 6, 7]
    assert batch.codes.tolist() == [1, 2, 3, 4, 5, 6]
    assert (batch.tokens, batch.counts) == (8, {"codes": 6.0})


def test_a_batch_is_filled_up_with_codes_that_do_not_count():
    pictures = [np.arange(4), np.arange(4)]
    batch = fill_up(make_batch([[9, 10], []], pictures, 7), 60, 3)
    assert batch.tokens_in.tolist() == [9, 10, 7, 0, 1, 2, 7, 0, 1, 2, *[0] * 118]
    assert batch.segments.lengths.tolist()[:4] == [6, 4, 4, 4]
    assert batch.counted.tolist() == [1.0] * 8
    assert (batch.tokens, batch.counts) == (10, {"codes": 8.0})
    unusual = make_batch([[9] * 9] * 20, [np.arange(4)] * 20, 7)
    assert fill_up(unusual, 60, 9) is unusual


def captions_of(batch, begin):
    return [
        row[row > begin].tolist() for row in batch.tokens_in.split(batch.segments.lengths.tolist())
    ]


def test_captions_are_dropped_by_lot_anew_each_epoch(recipe, tmp_path):
    made = task(recipe, tmp_path)
    begin = made.vae.codes

    def shown(epoch):
        """The codes of each picture and its caption, in an order that no epoch changes."""
        batches = made.batches("train", epoch, 0, 0, 1)
        pairs = [
            (batch.codes.view(-1, made.vae.places).tolist(), captions_of(batch, begin))
            for batch in batches
        ]
        return sorted(pair for each in pairs for pair in zip(*each, strict=True))

    assert 0 < sum(not caption for _, caption in shown(0)) < 24
    assert shown(0) == shown(0) != shown(1)
    whole = task(replace(recipe, data={**recipe.data, "drop_captions": 0.0}), tmp_path)
    assert all(all(captions_of(batch, begin)) for batch in whole.batches("train", 0, 0, 0, 1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_codes_given_all_before_them(smoothing):
    model = tiny_dalle()
    batch = make_batch([[9, 10, 11], [12]], [np.arange(9) % 7, np.arange(9)[::-1] % 7], BEGIN)

    class Bare(TextToImageTask):
        def __init__(self):
            self.training = base.TrainingConfig(label_smoothing=smoothing)

    loss, count, weight = Bare().loss(model, batch)["codes"]
    logits = model.logits(model.hidden(batch.tokens_in, batch.segments))[batch.places]
    logits = logits[:, logits[0].isfinite()]  # no word can come where a code does
    expected = torch.nn.functional.cross_entropy(
        logits, batch.codes, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(loss, expected)
    assert (count, weight) == (18.0, 1.0)


def test_captions_that_lose_their_ends_are_counted(folder, recipe, tmp_path):
    for longest, cut in ((8, True), (64, False)):
        said, run = [], tmp_path / str(longest)
        run.mkdir()
        made = TextToImageTask(
            replace(recipe, data={**recipe.data, "max_length": longest}), run, said.append
        )
        made.prepare()
        assert made.corpus.lengths[:, 0].max() <= longest
        ends = [
            line
            for line in said
            if line.endswith(f" than data.max_length, {longest} tokens: they lose their ends")
        ]
        assert len(ends) == cut


def test_captions_and_pictures_that_lack_each_other_are_left_out(folder, recipe, tmp_path):
    write_pictures(tmp_path / "bars", 6)
    with tarfile.open(tmp_path / "bars.tar", "w") as archive:
        archive.add(tmp_path / "bars", "bars")
    lines = [f"bars/across/000{i}.png\tbar across" for i in (0, 3)] + ["bars/none.png\tnone"]
    (tmp_path / "bars.tsv").write_text("".join(f"{line}\n" for line in lines))
    data = {
        "train": [{"images": "bars.tar", "captions": "bars.tsv"}],
        "root": str(tmp_path),
        "size": 8,
    }
    mixed = replace(recipe, data={**data, "workers": 0})
    with refusal(r"found no text for it.*data.broken=skip"):
        task(mixed, tmp_path / "run")
    said = []
    made = TextToImageTask(
        replace(mixed, data={**data, "broken": "skip"}), tmp_path / "run", said.append
    )
    made.prepare()
    assert made.corpus.dropped == {"broken": 5}
    assert any("5 left out" in line and "aslope/0002.png" in line for line in said)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"data": {"size": 16}},
            "its pictures have 8 pixels a side, data.size is 16; give both the same",
        ),
        ({"decoding": {"guidance": "much"}}, "decoding.guidance is the text 'much'"),
    ],
)
def test_what_is_wrong_is_said_at_once(recipe, change, message, tmp_path):
    sections = {name: {**getattr(recipe, name), **over} for name, over in change.items()}
    with refusal(message):
        text_to_image.TextToImageTask(replace(recipe, **sections), tmp_path / "run", str)
    assert not (tmp_path / "run").exists()


def test_without_codes_nothing_is_trained(recipe, tmp_path):
    bare = {name: value for name, value in recipe.model.items() if name != "start_from"}
    with refusal(r"model\.start_from is missing; name a model of image_codes"):
        train.train(replace(recipe, model=bare), tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()


def test_a_start_that_holds_no_codes_is_refused(recipe, trained_run, tmp_path):
    wrong = replace(recipe, model={**recipe.model, "start_from": str(trained_run / "model")})
    with refusal("a model of translation; start from one of image_codes or text_to_image"):
        text_to_image.TextToImageTask(wrong, tmp_path, str)
    missing = replace(recipe, model={**recipe.model, "start_from": str(tmp_path / "nowhere")})
    with refusal(r"config.json: cannot be read"):
        text_to_image.TextToImageTask(missing, tmp_path / "run", str)


def test_a_finished_run_needs_its_start_no_more(folder, recipe, tmp_path):
    start, said = tmp_path / "start", []
    shutil.copytree(folder / "run" / "model", start)
    started = replace(recipe, model={**recipe.model, "start_from": str(start)}, tokenizer={})
    made = train.train(
        replace(started, training={**TINY.training, "steps": 1}), tmp_path / "run", notify=str
    )
    shutil.rmtree(start)
    assert (
        train.train(
            load_recipe(tmp_path / "run" / "recipe.yaml"), tmp_path / "run", True, said.append
        )
        == made
    )
    assert said == [f"{tmp_path / 'run'}: this run is finished; its model is {made}"]


def test_a_start_without_its_weights_is_told_as_such(folder, recipe, tmp_path):
    start = tmp_path / "part"
    shutil.copytree(folder / "run" / "model", start, ignore=shutil.ignore_patterns("*.safetensors"))
    started = replace(recipe, model={**recipe.model, "start_from": str(start)}, tokenizer={})
    with refusal(r"part/model\.safetensors: .*(missing|No such file|not there)"):
        train.train(started, tmp_path / "run", notify=str)


@pytest.mark.slow
def test_a_tiny_world_is_learnt(tmp_path, monkeypatch):
    """Red and blue squares in five places: both stages, then at least nine of ten pictures are
    right."""
    for name, value in {"SINGLE": 1.0, "SHAPES": ("square",), "SIZES": {"large": 0.4}}.items():
        monkeypatch.setattr(scenes, name, value)
    monkeypatch.setattr(scenes, "COLOURS", {name: scenes.COLOURS[name] for name in ("red", "blue")})
    data = {
        "train": [{"generate": "scenes", "count": 600}],
        "valid": {"generate": "scenes", "count": 40},
        "test": {"generate": "scenes", "count": 40},
        "size": 16,
        "workers": 0,
    }
    training = {
        **{"schedule": "cosine", "learning_rate": 0.003, "warmup": 20, "label_smoothing": 0.0},
        **{"validate_every": 0, "log_every": 100, "checkpoint_every": 1000},
    }
    stages = [
        {
            "task": "image_codes",
            "model": {"channels": [16, 32], "codes": 32, "d_code": 8},
            "training": {"steps": 600, "batch_tokens": 256},
        },
        {
            "task": "text_to_image",
            "data": {"max_length": 8},
            "tokenizer": {"kind": "word", "size": 30},
            "model": {"layers": 2, "d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.0},
            "training": {"steps": 700, "batch_tokens": 400},
            "decoding": {"temperature": 0.7},
        },
    ]
    train.train(
        Recipe("text_to_image", data, training=training, stages=stages),
        tmp_path / "run",
        notify=str,
    )
    scores = evaluate.evaluate(tmp_path / "run").scores
    assert scores["attributes_right"] >= 90.0
    assert scores["reconstruction_error"] < 0.01
