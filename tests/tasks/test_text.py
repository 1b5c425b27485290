"""What tasks over text share: tokenizers made once, weights taken over by name, model
directories."""

import json

import pytest

from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.tasks import text


def trained():
    return Tokenizer.train(["a b c", "b c d"], "character", 20)


def test_a_tokenizer_is_trained_once_and_then_loaded(tmp_path):
    said = []
    one = text.run_tokenizer(tmp_path / "tokenizer.json", None, trained, said.append)
    two = text.run_tokenizer(tmp_path / "tokenizer.json", None, pytest.fail, said.append)
    assert one.digest == two.digest == trained().digest
    assert said == [f"tokenizer.json: {one.size} tokens, trained and saved"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "tokenizer.digests.json",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("change", ["ids", "decoder"])
def test_a_tokenizer_that_has_changed_under_a_run_is_refused(tmp_path, change):
    path = tmp_path / "tokenizer.json"
    text.run_tokenizer(path, None, trained, str)
    held = path.read_text()
    content = json.loads(held)
    if change == "ids":
        ids = content["model"]["vocab"]
        ids["a"], ids["b"] = ids["b"], ids["a"]
    else:
        content["decoder"] = {"type": "Fuse"}
    path.write_text(json.dumps(content))
    found = text.run_tokenizer(path, None, pytest.fail, str)  # before the first step it may change
    assert found.digest != trained().digest
    path.write_text(held)
    assert text.run_tokenizer(path, None, pytest.fail, str).digest == trained().digest
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    path.write_text(json.dumps(content))
    with refusal(r"tokenizer.json: has changed since its run began, .*another --out"):
        text.run_tokenizer(path, None, pytest.fail, str)
    path.write_text(held)
    assert text.run_tokenizer(path, None, pytest.fail, str).digest == trained().digest


def test_a_run_of_an_older_version_has_no_digest_until_it_goes_on(tmp_path):
    path = tmp_path / "tokenizer.json"
    trained().save(path)
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    text.run_tokenizer(path, None, pytest.fail, str)
    path.write_text(path.read_text() + " ")
    with refusal("has changed since its run began"):
        text.run_tokenizer(path, None, pytest.fail, str)


def test_a_tokenizer_is_trained_where_the_model_to_start_from_has_none(tmp_path):
    said = []
    text.run_tokenizer(tmp_path / "tokenizer.json", tmp_path, trained, said.append)
    assert "trained and saved" in said[0]


def test_until_a_run_has_begun_its_tokenizer_is_that_of_the_model_it_is_to_start_from_now(tmp_path):
    (tmp_path / "other").mkdir()
    text.run_tokenizer(
        tmp_path / "tokenizer.json", None, lambda: Tokenizer.train(["q r s"], "character", 8), str
    )
    trained().save(tmp_path / "other" / "tokenizer.json")
    said = []
    found = text.run_tokenizer(
        tmp_path / "tokenizer.json", tmp_path / "other", pytest.fail, said.append
    )
    assert found.digest == trained().digest
    assert f"taken from {tmp_path / 'other'}" in said[0]
    (tmp_path / "checkpoints" / "step_0").mkdir(parents=True)
    Tokenizer.train(["q r s"], "character", 8).save(tmp_path / "other" / "tokenizer.json")
    kept = text.run_tokenizer(
        tmp_path / "tokenizer.json", tmp_path / "other", pytest.fail, said.append
    )
    assert kept.digest == trained().digest, "its weights know no other"
    assert len(said) == 1


def test_a_tokenizer_that_has_gone_from_a_run_is_not_trained_again(tmp_path):
    """Another unigram would give every token another number."""
    (tmp_path / "checkpoints" / "step_0").mkdir(parents=True)
    with refusal(r"tokenizer\.json: is missing, and the checkpoints here were trained with it"):
        text.run_tokenizer(tmp_path / "tokenizer.json", None, trained, str)
    assert not (tmp_path / "tokenizer.json").exists()


def test_dropout_needs_merges_before_anything_is_written(tmp_path):
    (tmp_path / "other").mkdir()
    trained().save(tmp_path / "other" / "tokenizer.json")
    with refusal(r"of kind 'character' has no merges to drop; set tokenizer\.dropout to 0"):
        text.run_tokenizer(
            tmp_path / "tokenizer.json", tmp_path / "other", pytest.fail, str, dropout=0.1
        )
    assert not (tmp_path / "tokenizer.json").exists()


SOURCES, TARGETS = [[3, 4, 5], [6], [7, 8]], [[9], [3, 4, 5, 6], [10, 3]]
