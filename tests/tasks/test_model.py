"""What tasks share: weights taken over by name, model directories and their cards."""

import json

import pytest
import torch

from tests.helpers import tiny
from tests.refusals import refusal
from transduct import storage
from transduct.data.sources import DataConfig, TextSource
from transduct.models import vit
from transduct.tasks import model as shared
from transduct.training.config import TrainingConfig


def written(directory, model):
    storage.write_directory(directory, {storage.WEIGHTS: storage.pack(storage.weights_of(model))})
    return directory


def test_weights_are_taken_wherever_names_agree(tmp_path):
    held, model = tiny(seed=1), tiny(seed=2)
    before = {name: weight.clone() for name, weight in storage.weights_of(model).items()}
    said = []
    shared.start_from(model, written(tmp_path / "held", held), said.append)
    for name, weight in storage.weights_of(model).items():
        assert torch.equal(weight, storage.weights_of(held)[name])
    assert said == [
        f"started from {tmp_path / 'held'}: {len(before)} of {len(before)} weights taken"
    ]


def test_weights_that_the_other_lacks_stay(tmp_path):
    held, model = tiny(seed=1, decoder_layers=1), tiny(seed=2)
    before = storage.weights_of(model)["decoder.1.feed_forward.inner.weight"].clone()
    shared.start_from(model, written(tmp_path / "held", held), str)
    assert torch.equal(storage.weights_of(model)["decoder.1.feed_forward.inner.weight"], before)


def test_weights_that_are_left_are_named(tmp_path):
    held, said = tiny(seed=1, output_bias=True, encoder_layers=3), []
    shared.start_from(tiny(seed=2, output_bias=True), written(tmp_path / "held", held), said.append)
    [line] = said
    assert " 90 of 90 weights taken; not taken of it: encoder.2." in line
    assert line.endswith(", ...")


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_a_table_that_serves_in_several_places_is_taken_by_the_name_of_any(tmp_path, tie):
    held, model, said = tiny(seed=1, tie="none"), tiny(seed=2, tie=tie), []

    def rename(weights):
        for name in weights.keys() - {"source_embedding.table"}:
            del weights[name]

    shared.start_from(model, written(tmp_path / "held", held), said.append, rename)
    assert torch.equal(model.source_embedding.table, held.source_embedding.table)
    whole = len(storage.weights_of(model))
    assert said == [
        f"started from {tmp_path / 'held'}: 1 of {whole} weights taken, the rest is new"
    ]


def test_weights_are_renamed_first(tmp_path):
    held, model = tiny(seed=1), tiny(seed=2)

    def rename(weights):
        weights["encoder_norm.weight"] = weights.pop("decoder_norm.weight")

    shared.start_from(model, written(tmp_path / "held", held), str, rename)
    assert torch.equal(model.encoder_norm.weight, held.decoder_norm.weight)


def test_weights_of_another_shape_are_refused(tmp_path):
    held = written(tmp_path / "held", tiny(d_ff=16))
    (held / storage.CONFIG).write_text('{"format": 1, "task": "any", "model": {"d_ff": 16}}')
    said = r"held: weight '.*' is \(.*\), this model's is \(.*\); give this model the sizes of that"
    with refusal(said + r" one \(model.d_ff is \d+, that one has 16\)"):
        shared.start_from(tiny(), held, str)


def test_a_model_that_shares_nothing_is_refused(tmp_path):
    held = written(tmp_path / "held", torch.nn.Linear(2, 2))
    with refusal("held: shares no weight with this model; start from a model of the same"):
        shared.start_from(tiny(), held, str)


def classifier(labels, seed, width=8):
    """A picture classifier, and one whose rows are told apart by their labels."""
    torch.manual_seed(seed)
    return vit.ViT(
        vit.Config(
            labels=len(labels), image_size=8, patch_size=4, d_model=width, num_heads=2, layers=1
        )
    )


def started(directory, labels, other, held=None, **named):
    """The rows of a model of `labels` begun from one of the labels `other`, its own rows, and what
    was said."""
    model, said = classifier(labels, 2), []
    before = model.output.weight.detach().clone()
    written(directory, held or classifier(other, 1))
    (directory / storage.CONFIG).write_text(
        json.dumps({"format": 1, "task": "any", "pictures": {"labels": other}} | named)
    )
    rows = shared.LabelRows(labels, ("pictures", "labels"), ("output.*",))
    shared.start_from(
        model, directory, said.append, lambda held: rows.order(model, directory, said.append, held)
    )
    return model.output.weight, before, said


def test_rows_of_labels_are_taken_by_label(tmp_path):
    theirs = classifier(["sea", "apple"], 1).output.weight
    rows, _, said = started(tmp_path / "held", ["apple", "sea"], ["sea", "apple"])
    assert torch.equal(rows, theirs.flip(0))
    assert said[0] == f"{tmp_path / 'held'}: rows taken by label, 2 of 2"
    rows, _, said = started(tmp_path / "same", ["sea", "apple"], ["sea", "apple"])
    assert torch.equal(rows, theirs)
    assert len(said) == 1


def test_rows_of_new_labels_stay_and_are_said(tmp_path):
    theirs = classifier(["sea", "apple"], 1).output.weight
    rows, before, said = started(tmp_path / "more", ["leaf", "apple", "sea"], ["sea", "apple"])
    assert torch.equal(rows, torch.stack((before[0], theirs[1], theirs[0])))
    assert said[0].endswith("rows taken by label, 2 of 3; new: leaf")
    rows, before, said = started(tmp_path / "others", ["leaf", "stone"], ["sea", "apple"])
    assert torch.equal(rows, before)
    assert said[0].endswith("rows taken by label, 0 of 2; new: leaf, stone")


def test_rows_are_taken_from_the_head_that_has_as_many_as_labels(tmp_path):
    """Rows are taken of the one that has them, whichever comes first."""
    for first, second in (((9, 4), (2, 4)), ((2, 4), (9, 4))):
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 2), "b": torch.nn.Linear(4, 2)})
        held = {"a.weight": torch.ones(first), "b.weight": torch.ones(second)}
        (tmp_path / storage.CONFIG).write_text(
            json.dumps({"format": 1, "task": "any", "labels": ["sea", "apple"]})
        )
        said = []
        shared.LabelRows(["apple", "sea"], ("labels",), ("*.weight",)).order(
            model, tmp_path, said.append, held
        )
        assert [float(held[name].min()) == 1.0 for name in held] == [
            first == (2, 4),
            second == (2, 4),
        ]
        assert said == [f"{tmp_path}: rows taken by label, 2 of 2"]


def test_rows_that_are_no_labels_are_not_taken(tmp_path):
    rows, before, said = started(
        tmp_path / "held", ["leaf", "sea"], ["sea", "leaf"], pictures={"kind": "span"}
    )
    assert torch.equal(rows, before)
    assert said[0].endswith("rows taken by label, 0 of 2; new: leaf, sea")
    with refusal("give this model the sizes of that one"):
        started(
            tmp_path / "wide", ["leaf", "sea"], ["sea", "leaf"], classifier(["sea", "leaf"], 1, 16)
        )
    one = shared.LabelRows(["a", "b"], ("labels",), ("output.*",))
    one.order(classifier(["a", "b"], 1), tmp_path / "nowhere", str, {})  # which has no such weights


# models in use


def test_files_and_what_was_left_out_are_said():
    data = DataConfig(train=[TextSource(source="a", target="b")])
    assert (
        shared.files_summary(data, {"too_long": 1200, "empty": 0})
        == "from a, b (left out: 1,200 too long)"
    )
    data = DataConfig(train=[TextSource(generate="copy", count=9)])
    assert shared.files_summary(data, {}) == "from a generated corpus (left out: none)"


def test_a_card_counts_the_tokens_of_a_step_on_all_ranks():
    training = TrainingConfig(batch_tokens=500, accumulate=3)
    about = shared.card("A model", "3 texts", training, {}, {"step": 7, "seconds": 2.0, "ranks": 2})
    assert "7 steps of at most 3,000 tokens" in about


@pytest.mark.parametrize(
    "best, averaged, scores, said",
    [
        (None, [9], {}, "float32.\n\nScores"),
        (
            None,
            [3, 9],
            {},
            "float32.\nThe weights are those of step 9, the last, averaged with those of "
            "step 3.\n\n",
        ),
        (4, [4], {}, "float32.\nThe weights are those of step 4, the best by bleu.\n\nScores"),
        (
            4,
            [4],
            {1: 2.5, 2: 1.0},
            "best by bleu.\nAverages of checkpoints had this bleu: of 1 2.5, of 2 1.\n\n",
        ),
        (4, [2, 3, 4], {}, "step 4, the best by bleu, averaged with those of step 2, 3.\n\nScores"),
    ],
)
def test_a_card_says_which_weights_there_are(best, averaged, scores, said):
    training = TrainingConfig(best="bleu", average=5)
    log = {"step": 9, "seconds": 1.0, "best_step": best, "averaged": averaged}
    log |= {"average_scores": scores, "average_metric": "bleu"}
    assert said in shared.card("A model", "1 pair from a", training, {"bleu": 1.0}, log)
