"""The image classification task: its corpus, its batches, its loss, its mistakes, what it saves;
and that it learns."""

import json
import tarfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.families import SHORT
from tests.helpers import ready
from tests.pictures import BARS, SIDE, bar, png, write_pictures
from tests.refusals import refusal
from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.images import resized
from transduct.predictors.image_classification import (
    LabelledImagesConfig,
    rows_of,
)
from transduct.records import record
from transduct.runs import evaluate, train
from transduct.tasks import image_classification
from transduct.tasks.image_classification import fraction

TRAIN, TEST = {"images": "train.tar"}, {"images": "test.tar.xz"}
CHANGED = {"crop": 2, "flip": True, "operations": 1, "erase": 0.5}


def recipe_of(directory, **sections):
    tree = {
        "task": "image_classification",
        "data": {
            "train": [TRAIN],
            "test": TEST,
            "root": str(directory),
            "size": SIDE,
            "workers": 0,
        },
        "model": {"patch_size": 4, "d_model": 16, "num_heads": 2, "d_ff": 32, "layers": 1},
        "training": {**SHORT, "batch_tokens": 90},
    }
    return Recipe(**{key: merged(tree[key], sections.pop(key, {})) for key in tree}, **sections)


def merged(held, given):
    return {**held, **given} if isinstance(held, dict) else held


def make_task(directory, said=str, **sections):
    """A task in `directory`, its pictures written first: 30 to train on, in a folder that is then
    packed, 9 to test."""
    if not (directory / "train").exists():
        write_pictures(directory / "train", 30)
        write_pictures(directory / "test.tar.xz", 9, start=30)
    packed(directory / "train")
    return image_classification.ImageClassificationTask(
        recipe_of(directory, **sections), directory / "run", said
    )


def packed(folder):
    """The archive of a folder's files beside it, as a corpus."""
    with tarfile.open(folder.with_suffix(".tar"), "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.add(path, path.relative_to(folder))
    return {"images": f"{folder.name}.tar"}


def prepared(directory, said=str, **sections):
    return ready(make_task(directory, said, **sections))


def batches(task, epoch=0):
    return list(task.batches("train", epoch, 0, 0, 1))


def pictures_of(task, epoch=0):
    """Every picture of an epoch and its label."""
    made = batches(task, epoch)
    return [
        (picture, int(label))
        for batch in made
        for picture, label in zip(batch.pictures.numpy(), batch.labels)
    ]


# what is prepared


def test_each_picture_comes_once_an_epoch_with_its_label(tmp_path):
    task, _ = prepared(tmp_path)
    expected = Counter((bar(BARS[i % 3], i).tobytes(), BARS[i % 3]) for i in range(30))
    orders = [
        [
            (picture.tobytes(), task.about.labels[label])
            for picture, label in pictures_of(task, epoch)
        ]
        for epoch in (0, 1)
    ]
    assert Counter(orders[0]) == Counter(orders[1]) == expected
    assert orders[0] != orders[1]


def test_the_mean_and_the_deviation_are_those_of_the_training_pictures(tmp_path):
    task, _ = prepared(tmp_path)
    colours = np.stack([bar(BARS[i % 3], i) for i in range(30)]).reshape(-1, 3) / 255
    assert task.about.mean == pytest.approx(colours.mean(0), abs=1e-4)
    assert task.about.deviation == pytest.approx(colours.std(0), abs=1e-4)
    read = torch.cat([task.about.read(batch.pictures) for batch in batches(task)])
    assert read.shape == (30, 3, SIDE, SIDE)
    torch.testing.assert_close(read.mean((0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(read.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_pictures_of_one_colour_are_read_as_numbers(tmp_path):
    for label in ("grey", "dull"):
        (tmp_path / "train" / label).mkdir(parents=True)
        (tmp_path / "train" / label / "a.png").write_bytes(
            png(np.full((SIDE, SIDE, 3), 77, np.uint8))
        )
    task, _ = prepared(tmp_path, data={"test": None})
    assert all(task.about.read(batch.pictures).isfinite().all() for batch in batches(task))


@pytest.mark.parametrize("size", [7, 14])
def test_pictures_of_other_sizes_are_fitted(tmp_path, size):
    task, _ = prepared(tmp_path, data={"size": size}, model={"patch_size": 7})
    expected = {resized(bar(BARS[i % 3], i), size, size).tobytes() for i in range(30)}
    assert {picture.tobytes() for picture, _ in pictures_of(task)} == expected


def test_captions_may_name_the_labels(tmp_path):
    make_task(tmp_path)
    names = sorted(
        path.relative_to(tmp_path / "train").as_posix()
        for path in (tmp_path / "train").rglob("*.png")
    )
    (tmp_path / "labels.tsv").write_text(
        "".join(f"{name}\t{'ab'[i % 2]}\n" for i, name in enumerate(names))
    )
    task, _ = prepared(
        tmp_path, data={"train": [{**TRAIN, "captions": "labels.tsv"}], "test": None}
    )
    assert task.about.labels == ["a", "b"]


def test_the_corpus_is_made_once_and_anew_where_its_pictures_change(tmp_path):
    said = []
    prepared(tmp_path, said.append)
    assert said == ["corpus prepared: 30 pictures of 3 labels from train.tar (left out: none)"]
    prepared(tmp_path, said.append, data={"augmentation": CHANGED})
    assert said[1:] == ["corpus unchanged: reused 30 rows"]
    prepared(tmp_path, said.append, data={"hold_out": 0.5})
    assert "corpus prepared again: hold_out changed" in said


# what is held out


def test_a_share_is_held_out_by_name_and_never_trained_on(tmp_path):
    said = []
    task, model = prepared(tmp_path, said.append, data={"hold_out": 0.4})
    names = {f"{BARS[i % 3]}/{i:04}.png": bar(BARS[i % 3], i).tobytes() for i in range(30)}
    held = {data for name, data in names.items() if fraction(name) < 0.4}
    assert 5 < len(held) < 20
    assert {picture.tobytes() for epoch in range(3) for picture, _ in pictures_of(task, epoch)} == {
        *names.values()
    } - held
    trained = len(names) - len(held)
    numbers = np.arange(trained, 30)
    assert {picture.tobytes() for picture in rows_of(task.corpus, numbers, SIDE)[0]} == held
    assert task.evaluate(model).details["examples"] == len(held)
    assert f"held out: {len(held)} pictures" in said


def test_shares_are_as_if_drawn_by_lot():
    shares = np.array([fraction(f"cat/{i}.png") for i in range(1000)])
    assert np.histogram(shares, 4, (0, 1))[0].min() > 200


def test_held_out_pictures_have_the_labels_they_had(tmp_path):
    task, _ = prepared(tmp_path, data={"hold_out": 0.4})
    stream = task._validation.read(task.about.labels, Refused("stop"))
    expected = Counter(
        (bar(BARS[i % 3], i).tobytes(), BARS[i % 3])
        for i in range(30)
        if fraction(f"{BARS[i % 3]}/{i:04}.png") < 0.4
    )
    assert Counter((picture.tobytes(), label) for picture, label in stream) == expected


def test_a_valid_corpus_is_read_where_there_is_one(tmp_path):
    task, model = prepared(tmp_path, data={"valid": TEST})
    report = task.evaluate(model)
    assert report.details["examples"] == 9
    assert set(report.scores) == {"accuracy", "f1"}
    assert next(iter(report.scores)) == "accuracy"


# batches and loss


def test_what_is_held_out_is_not_mixed_in_either(tmp_path):
    task, _ = prepared(tmp_path, data={"hold_out": 0.4})
    everything = replace(task.data.augmentation, mix=1.0)
    trained = task.corpus.weights[-1][0]
    asked = []

    class Watched:
        def columns(self, numbers):
            asked.extend(numbers.tolist())
            return task.corpus.columns(numbers)

    for epoch in range(20):
        rules = {"trained": trained, "size": SIDE, "patches": 9, "how": everything}
        image_classification.batch_of(
            np.arange(trained), corpus=Watched(), seed=1, epoch=epoch, **rules
        )
    assert set(asked) == set(range(trained))


def test_the_loss_of_a_mixed_picture_is_that_of_its_shared_label(tmp_path):
    task, model = prepared(
        tmp_path, data={"augmentation": {"mix": 1.0}}, training={"label_smoothing": 0.3}
    )
    batch = batches(task)[0]
    assert (batch.labels != batch.others).any()
    soft = (
        F.one_hot(batch.labels, 3) * batch.shares[:, None]
        + F.one_hot(batch.others, 3) * (1 - batch.shares)[:, None]
    )
    scores = model.classify(*model.encode(task.about.read(batch.pictures)))
    expected = F.cross_entropy(scores, soft, reduction="sum", label_smoothing=0.3)
    total, count, weight = task.loss(model, batch)["labels"]
    torch.testing.assert_close(total, expected)
    assert (count, weight) == (len(batch.pictures), 1.0)


def test_a_batch_split_in_two_has_the_loss_of_the_whole(tmp_path):
    task, model = prepared(tmp_path, data={"augmentation": {**CHANGED, "mix": 0.5}})
    make = task.epoch(0).make
    whole, *halves = (
        task.loss(model, make(np.array(n)))["labels"] for n in ([1, 2, 9, 4], [1, 2], [9, 4])
    )
    torch.testing.assert_close(whole[0], halves[0][0] + halves[1][0])
    assert whole[1] == halves[0][1] + halves[1][1]


def test_the_budget_of_a_batch_counts_patches(tmp_path):
    task, _ = prepared(tmp_path, training={"batch_tokens": 65})
    made = batches(task)
    assert sorted(len(batch.pictures) for batch in made) == [2, 7, 7, 7, 7]
    assert all(
        batch.tokens == 9 * len(batch.pictures) == 9 * batch.counts["labels"] for batch in made
    )
    assert made[0].to(torch.device("cpu")) is made[0]
    assert made[0].to(torch.device("meta")).pictures.device.type == "meta"


# what is wrong


def broken_corpus(directory):
    """Thirty pictures, one cut off, one without a folder."""
    make_task(directory)
    whole = (directory / "train" / "down" / "0001.png").read_bytes()
    (directory / "train" / "down" / "0001.png").write_bytes(whole[: len(whole) // 2])
    (directory / "train" / "loose.png").write_bytes(whole)


def test_a_broken_picture_stops_training_by_name(tmp_path):
    broken_corpus(tmp_path)
    with refusal(r"train.tar: down/0001.png: not a whole picture .*data.broken=skip"):
        prepared(tmp_path)


def test_a_broken_picture_can_be_skipped_and_is_counted_and_named(tmp_path, caplog):
    broken_corpus(tmp_path)
    said = []
    task, model = prepared(
        tmp_path, said.append, data={"broken": "skip", "valid": TRAIN, "test": None}
    )
    assert said[0] == "corpus prepared: 29 pictures of 3 labels from train.tar (left out: 2 broken)"
    assert "train.tar: down/0001.png: not a whole picture" in said[1]
    assert "train.tar: loose.png: found no text for it" in said[1]
    assert "29 of 29 validation pictures are in training" in said[2]
    assert said[3] == said[1]  # the same corpus was to be validated on
    assert task.evaluate(model).details["left_out"] == {"broken": 2}
    assert not caplog.records  # each validation would say it again
    assert task.corpus.dropped == {"broken": 2}


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_label_that_training_does_not_have_is_named(tmp_path, part):
    make_task(tmp_path)
    write_pictures(tmp_path / "other", 3)
    (tmp_path / "other" / "across").rename(tmp_path / "other" / "spiral")
    expected = (
        r"other.tar: spiral/0000.png: unknown label 'spiral'; training has: across, aslope, down; "
        "fix it, or train on pictures that have it"
    )
    with refusal(expected):
        prepared(tmp_path, data={part: packed(tmp_path / "other")})


@pytest.mark.parametrize("part", ["valid", "test"])
def test_an_empty_corpus_to_measure_on_is_found_before_training(tmp_path, part):
    make_task(tmp_path)
    (tmp_path / "empty").mkdir()
    with refusal(r"^empty: found no picture to measure on \(there is none\); give one that"):
        prepared(tmp_path, data={part: {"images": "empty"}})


def test_to_hold_out_nothing_is_refused(tmp_path):
    make_task(tmp_path)
    with refusal(r"hold_out is 1e-09, which keeps back none of \d+ pictures; raise it"):
        prepared(tmp_path, data={"hold_out": 1e-9})


def test_a_label_that_is_held_out_altogether_is_named(tmp_path):
    make_task(tmp_path)
    rare = next(f"rare/{i}.png" for i in range(100) if fraction(f"rare/{i}.png") < 0.1)
    (tmp_path / "train" / "rare").mkdir()
    (tmp_path / "train" / rare).write_bytes(png(bar("down", 1)))
    with refusal(f"{rare}: held out, but no other picture has its label 'rare'; lower"):
        prepared(tmp_path, data={"hold_out": 0.1})


def test_one_label_is_too_few(tmp_path):
    make_task(tmp_path)
    write_pictures(tmp_path / "one", 1)
    with refusal(r"found one label to train on \('across'\), expected at least 2; check"):
        prepared(tmp_path, data={"train": [packed(tmp_path / "one")]})


def test_nothing_to_train_on_is_said(tmp_path):
    make_task(tmp_path)
    (tmp_path / "empty").mkdir()
    with refusal(r"no picture is left to train on from empty.tar .*check data.train"):
        prepared(tmp_path, data={"train": [packed(tmp_path / "empty")]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hold_out": 0.1, "valid": TEST}, "hold_out and valid are both set"),
        (
            {"size": SIDE, "augmentation": {"crop": SIDE + 1}},
            r"augmentation.crop is 13, must be at most size \(12\)",
        ),
    ],
    ids=str,
)
def test_data_that_cannot_be_is_refused(changes, message):
    with refusal(message):
        record(LabelledImagesConfig, {"train": [TRAIN], **changes}, "data")


@pytest.mark.parametrize(
    ("sections", "message"),
    [({"model": {"patch_size": 5}}, "image_size is 12, must be a multiple of patch_size")],
    ids=str,
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_is_written(tmp_path, sections, message):
    with refusal(message):
        image_classification.ImageClassificationTask(
            recipe_of(tmp_path, **sections), tmp_path / "run", str
        )
    assert list(tmp_path.iterdir()) == []


# a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pictures")
    make_task(directory)
    train.train(recipe_of(directory, data={"valid": TEST}), directory / "run", notify=str)
    return directory / "run"


def test_the_model_directory_says_what_it_was_made_of(run):
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["task"] == "image_classification"
    assert config["pictures"]["labels"] == ["across", "aslope", "down"]
    assert len(config["pictures"]["mean"]) == len(config["pictures"]["deviation"]) == 3
    card = (run / "model" / "card.md").read_text()
    assert "30 pictures from train.tar (left out: none)" in card
    assert "accuracy" in card


def test_evaluation_reads_the_test_set_or_what_is_given(run, tmp_path):
    report = evaluate.evaluate(run)
    assert report.details["examples"] == 9
    write_pictures(tmp_path / "more", 6, start=50)
    assert evaluate.evaluate(run, {"source": str(tmp_path / "more")}).details["examples"] == 6
    names = [f"{BARS[i % 3]}/{i:04}.png" for i in range(50, 56)]
    (tmp_path / "labels.tsv").write_text("".join(f"{name}\tacross\n" for name in names))
    files = {"source": str(tmp_path / "more"), "reference": str(tmp_path / "labels.tsv")}
    assert set(evaluate.evaluate(run, files).details["confusion"]) == {"across"}


@pytest.mark.slow
def test_bars_are_told_apart_after_a_few_hundred_steps(tmp_path):
    write_pictures(tmp_path / "train.tar", 600)
    write_pictures(tmp_path / "test.tar.xz", 150, start=1000)
    recipe = recipe_of(
        tmp_path,
        data={"augmentation": {"crop": 2}},
        model={"d_model": 32, "d_ff": 64, "layers": 2},
        training={
            "steps": 300,
            "batch_tokens": 576,
            "learning_rate": 0.003,
            "warmup": 30,
            "validate_every": 0,
            "checkpoint_every": 100,
            "schedule": "cosine",
        },
    )
    train.train(recipe, tmp_path / "run", notify=str)
    assert evaluate.evaluate(tmp_path / "run").scores["accuracy"] >= 95.0
