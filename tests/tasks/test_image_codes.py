"""Image codes: learnt, used on files and arrays, measured; what is wrong is said before anything is
written."""

import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.families import DRAWN, RECIPES, in_folder
from tests.helpers import real
from tests.pictures import write_pictures
from tests.refusals import refusal
from transduct.config import Recipe
from transduct.runs import evaluate, train
from transduct.tasks import image_codes
from transduct.tasks.image_codes import ImageCodesTask
from transduct_corpora.scenes import generate

TINY = RECIPES["image codes"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codes")
    train.train(in_folder(TINY, folder), folder / "run", notify=str)
    return folder / "run"


def with_data(**changes):
    return replace(TINY, data={**TINY.data, **changes})


def test_scores_are_those_of_the_pictures_given(run, tmp_path):
    report = evaluate.evaluate(run, against=run)
    assert set(report.scores) == {
        *("reconstruction_error", "psnr", "code_usage", "code_perplexity", "attributes_right")
    }
    assert report.details["against"] == report.scores
    assert report.details["p_values"] == {"attributes_right": 1.0}
    assert report.scores["psnr"] == pytest.approx(
        -10 * np.log10(report.scores["reconstruction_error"])
    )
    pictures = np.stack([picture for _, picture in generate(3, "test", 8)]) / 255.0
    remade = np.stack([each.pixels for each in report.outputs]) / 255.0
    assert report.scores["reconstruction_error"] == pytest.approx(np.mean((pictures - remade) ** 2))
    write_pictures(tmp_path / "bars", 6)
    given = evaluate.evaluate(run, {"source": str(tmp_path / "bars")})
    assert "attributes_right" not in given.scores
    assert given.details == {"pictures": 6, "left_out": {"broken": 0}}


def test_the_model_directory_shows_pictures_above_what_is_kept(run):
    page = np.asarray(Image.open(run / "model" / "samples.png"))
    assert page.shape[0] > 2 * 128
    assert "reconstruction_error" in (run / "model" / "card.md").read_text()
    assert json.loads((run / "model" / "config.json").read_text())["model"]["quantiser"] == "vq"


def task(recipe, folder):
    made = ImageCodesTask(recipe, folder, str)
    made.prepare()
    return made


def test_batches_hold_all_pictures_and_their_temperature_falls(tmp_path):
    steps = 24
    made = task(replace(TINY, training={**TINY.training, "steps": steps}), tmp_path)
    batches = list(made.batches("train", 0, 0, 0, 1))
    assert sum(len(batch.pictures) for batch in batches) == 24
    assert all(
        batch.counts == {"pixels": 768.0, "codes": 768.0} and batch.tokens == 16
        for batch in batches
    )
    held = {batch.pictures[i].numpy().tobytes() for batch in batches for i in range(4)}
    assert held == {picture.tobytes() for _, picture in generate(24, "train", 8)}
    coldness = [
        batch.temperature for epoch in range(5) for batch in made.batches("train", epoch, 0, 0, 1)
    ]
    assert coldness == pytest.approx(
        [*(16 ** -(step / steps) for step in range(steps)), *[1 / 16] * 6]
    )
    resumed = [batch.temperature for batch in made.batches("train", 1, 2, 0, 1)]
    assert resumed == coldness[8:12]
    shared = [
        [batch.temperature for batch in made.batches("train", 1, 0, rank, 2)] for rank in (0, 1)
    ]
    assert shared[0] == shared[1] == pytest.approx([16 ** -(step / steps) for step in (3, 4, 5)]), (
        "ranks part ways"
    )
    # Six batches make two steps of four, the second with two.
    shared = [
        [batch.temperature for batch in real(made.batches("train", 1, 0, rank, 4))]
        for rank in range(4)
    ]
    first, second = (16 ** -(step / steps) for step in (2, 3))
    assert shared == [
        pytest.approx(each) for each in ([first, second], [first, second], [first], [first])
    ]


def test_broken_pictures_stop_training_or_are_left_out(tmp_path):
    write_pictures(tmp_path / "bars", 12)
    (tmp_path / "bars" / "down" / "0001.png").write_bytes(b"broken")
    with tarfile.open(tmp_path / "bars.tar", "w") as archive:
        archive.add(tmp_path / "bars", "bars")
    recipe = with_data(train=[{"images": "bars.tar"}], valid=None, test=None, root=str(tmp_path))
    with refusal(r"down/0001.png: not a whole picture.*data.broken=skip"):
        task(recipe, tmp_path / "run")
    made = task(replace(recipe, data={**recipe.data, "broken": "skip"}), tmp_path / "run")
    assert len(made.corpus) == 11
    assert made.corpus.dropped == {"broken": 1}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": {"quantiser": "none"}}, "model.quantiser is 'none'"),
        ({"data": {**DRAWN, "size": 10}}, "picture_size is 10, must be a multiple of 4"),
    ],
)
def test_what_is_wrong_is_said_at_once(change, message, tmp_path):
    recipe = {"task": "image_codes", "data": TINY.data, "model": TINY.model, **change}
    if "model" in change:
        recipe["model"] = {**TINY.model, **change["model"]}
    with refusal(message):
        image_codes.ImageCodesTask(Recipe(**recipe), tmp_path / "run", str)
    assert not (tmp_path / "run").exists()
