"""Several translation models that decide together."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import transduct
from tests.helpers import with_settings
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.decoding.search import length_penalty
from transduct.inference import engine
from transduct.inference.ensemble import Review
from transduct.predictors import base as predictors_base
from transduct.predictors.ensembles import combine, take_vocabularies
from transduct.runs import train

TEXTS = ["a b c", "d", "c a", ""]


def together(**changes):
    """A recipe of two models that decide together, with other seeds or families."""
    training = {"steps": 4, "validate_every": 2}
    recipe = tiny_recipe(tokenizer={"kind": "character"}, training=training, model={"d_k": None})
    stages = [{"training": {"seed": 1}}, {"training": {"seed": 2}, **changes}]
    return replace(recipe, stages=stages, ensemble=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble")
    train.train(together(), folder / "run", notify=str)
    return folder / "run"


def test_stages_become_members_and_none_starts_from_another(run):
    model = transduct.load(run)
    held = [path.name for path in sorted((run / "model").iterdir())]
    assert held == ["1", "2", "card.md", "config.json"]
    for number in (1, 2):
        member = run / "model" / str(number)
        stage = run / f"stage_{number}"
        files, expected = ({p.name for p in d.iterdir()} for d in (member, stage / "model"))
        assert files == expected
        assert "start_from" not in (stage / "recipe.yaml").read_text()
    stages = [transduct.load(run / f"stage_{number}") for number in (1, 2)]
    scores = [stage.score(["a b"], ["b a"])[0] for stage in stages]
    assert min(scores) < model.score(["a b"], ["b a"])[0]
    assert model.evaluate((["a b", "c"], [["b a"], ["c"]])).scores.keys() >= {"chrf", "exact_match"}
    found = model.translate(TEXTS, beam=2, n_best=2)
    alone = [model.translate([text], beam=2)[0].text for text in TEXTS]
    assert alone == [each.text for each in found]
    assert found[0].score == pytest.approx(model.score(["a b c"], [found[0].tokens])[0], abs=1e-4)


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    """A run of two models that write forwards and one that writes backwards."""
    folder = tmp_path_factory.mktemp("both_ways")
    recipe = together(data={"backwards": True})
    recipe = replace(recipe, stages=[*recipe.stages, {"training": {"seed": 3}}])
    train.train(recipe, folder / "run", notify=str)
    parts = [folder / "run" / f"stage_{number}" / "model" for number in (1, 3)]
    combine(parts, folder / "forwards")
    return folder / "run"


@pytest.mark.parametrize(
    "options", [{"beam": 4}, {"beam": 4, "length_penalty": 1.5}, {"beam": 4, "temperature": 1.5}]
)
def test_members_that_write_backwards_review_what_the_others_find(both_ways, options):
    model = transduct.load(both_ways)
    first, reviewer = (transduct.load(both_ways / f"stage_{number}") for number in (1, 2))
    alone = transduct.load(both_ways.parent / "forwards")
    assert (first.backwards, reviewer.backwards, model.backwards) == (False, True, False)
    texts = [text for text in TEXTS if text]
    found = model.translate(texts, n_best=4, **options)
    unreviewed = alone.translate(texts, n_best=4, **options)
    alpha = 0.0 if "temperature" in options else options.get("length_penalty", 1.0)
    for text, translation, plain in zip(texts, found, unreviewed, strict=True):
        others = translation.alternatives
        ranks = [each.score / length_penalty(len(each.tokens) + 1, alpha) for each in others]
        assert ranks == sorted(ranks, reverse=True)
        for each in others:
            assert each.text in [other.text for other in plain.alternatives]
            forwards, backwards, scored = (
                one.score([text], [each.tokens])[0] for one in (alone, reviewer, model)
            )
            assert each.score == pytest.approx((2 * forwards + backwards) / 3, abs=1e-4)
            assert each.score == pytest.approx(scored, abs=1e-4)
    again = [model.translate([text], n_best=4, **options)[0] for text in texts]
    assert [each.text for each in again] == [each.text for each in found]
    assert model.translate(["a b"], prefixes=["c"])[0].text.startswith("c"), (
        "those that search write forwards"
    )


def test_a_review_penalises_lengths_as_the_search_does(both_ways, monkeypatch):
    alphas, sort = [], Review.sort

    def watched(self, found, sources, alpha, budget):
        alphas.append(alpha)
        return sort(self, found, sources, alpha, budget)

    monkeypatch.setattr(Review, "sort", watched)
    model = transduct.load(both_ways)
    for options in ({}, {"length_penalty": 0.3}, {"temperature": 1.0, "length_penalty": 0.3}):
        assert model.translate(["a b"], **options)
    assert alphas == [1.0, 0.3, 0.0], "samples are in the order of their own scores"


def test_a_review_takes_no_more_at_once_than_the_call_allows_and_no_output_is_too_long_for_it(
    both_ways, monkeypatch
):
    asked, score = [], engine.score

    def watched(model, sources, targets, begin, end, budget):
        asked.append(budget)
        return score(model, sources, targets, begin, end, budget)

    monkeypatch.setattr(engine, "score", watched)
    model = transduct.load(both_ways)
    found = model.predict(["a b c", "d"])
    assert model.predict(["a b c", "d"], batch_tokens=7) == found
    assert asked == [model.decoding.budget(torch.device("cpu")), 7]
    second = both_ways / "stage_2" / "model"
    model_settings = json.loads((second / "config.json").read_text())["model"]
    nine = {**model_settings, "max_length": 9}
    reviewer = with_settings(second, both_ways.parent / "shorter", model=nine)
    combine([both_ways / "stage_1" / "model", reviewer], both_ways.parent / "with_shorter")
    short = transduct.load(both_ways.parent / "with_shorter")
    assert (short.longest, transduct.load(both_ways).longest) == (8, 39)
    [cut] = short.translate(["a b c d"], n_best=4, beam=4)
    assert all(len(each.tokens) <= 8 for each in cut.alternatives)


def test_a_run_of_several_goes_on_where_it_was(run, tmp_path):
    half = shutil.copytree(run, tmp_path / "run")
    for path in (half / "model", half / "stage_2" / "model"):
        shutil.rmtree(path)
    train.train(together(), half, resume=True, notify=str)
    for number in "12":
        weights = f"model/{number}/model.safetensors"
        assert (half / weights).read_bytes() == (run / weights).read_bytes()


def test_stages_take_the_vocabulary_of_the_first_whatever_they_are_trained_on(tmp_path):
    """A unigram vocabulary is another each time that it is trained."""
    other = {"data": {"train": [{"generate": "copy", "count": 40}]}}
    recipe = replace(together(**other), tokenizer={"kind": "unigram", "size": 30})
    train.train(recipe, tmp_path / "run", notify=str)
    one, other = (tmp_path / "run" / "model").glob("*/tokenizer.json")
    assert one.read_bytes() == other.read_bytes()
    assert len(transduct.load(tmp_path / "run").translate(["a b"])) == 1


def test_a_vocabulary_that_was_half_taken_is_taken_whole_and_another_is_refused(tmp_path):
    """As after a kill between its two files."""
    first, second = tmp_path / "stage_1", tmp_path / "stage_2"
    for folder, names in ((first, ("source", "target")), (second, ("source",))):
        folder.mkdir()
        for name in names:
            (folder / f"tokenizer.{name}.json").write_text(name)
    take_vocabularies(first, second)
    assert (second / "tokenizer.target.json").read_text() == "target"
    (second / "tokenizer.target.json").write_text("another")
    with refusal(r"stage_2: its tokenizers are not those of .*stage_1; train one from"):
        take_vocabularies(first, second)


def test_models_to_start_from_bring_one_vocabulary_or_none_is_trained(run, trained_run, tmp_path):
    own, other = str(run / "stage_1" / "model"), str(trained_run / "model")
    recipe = replace(together(model={"start_from": other}), tokenizer={})
    with refusal(r"stages\[1\]: model\.start_from is .*, whose tokenizers stages\[0\] would not"):
        train.train(recipe, tmp_path / "run", notify=str)
    recipe = replace(recipe, model={**recipe.model, "start_from": own})
    with refusal(r"model: its tokenizers are not those of .*stage_1/model; train one"):
        train.train(recipe, tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()
    from_first = {"start_from": str(tmp_path / "run" / "stage_1" / "model")}
    train.train(together(model=from_first), tmp_path / "run", notify=str)
    assert (tmp_path / "run" / "model" / "2" / "model.safetensors").exists()


def test_it_can_be_copied_and_put_together_by_hand(run, tmp_path):
    parts = [run / f"stage_{number}" / "model" for number in (1, 2)]
    combine(parts, tmp_path / "both")
    predictors_base.copy_model(tmp_path / "both", tmp_path / "copy")
    expected = transduct.load(run).translate(TEXTS)
    assert transduct.load(tmp_path / "copy").translate(TEXTS) == expected
    with refusal("both: exists already; choose another name"):
        combine(parts, tmp_path / "both")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_it_searches_and_is_scored_like_its_first_member(run, tmp_path):
    one, two = (run / f"stage_{number}" / "model" for number in (1, 2))
    asked = {"decoding": {"beam": 3}, "metrics": ["exact_match"], "bleu_tokenize": "char"}
    combine([with_settings(one, tmp_path / "1", **asked), two], tmp_path / "both")
    model = transduct.load(tmp_path / "both")
    assert (model.decoding.beam, model.metrics, model.bleu_tokenize) == (3, ["exact_match"], "char")


def test_what_cannot_decide_together_is_refused(run, trained_run, tmp_path):
    first, other = run / "stage_1" / "model", tmp_path / "other"
    with refusal("an ensemble needs at least two models; name another"):
        combine([first], tmp_path / "out")
    with refusal(r"model: its tokenizers are not those of .*stage_1/model; train one from"):
        combine([first, trained_run / "model"], tmp_path / "out")
    with refusal("model: only translation models, none of them an ensemble, decide together"):
        combine([first, run / "model"], tmp_path / "out")
    rule = {"side": "both", "pattern": "a", "by": "b"}
    with refusal(r"other: its data\.replace is not that of"):
        combine([first, with_settings(first, other, replace=[rule])], tmp_path / "out")
    with refusal("other: only translation models"):
        combine([first, with_settings(first, other, task="language_modeling")], tmp_path / "out")
    with_settings(first, other)
    (other / "tokenizer.json").unlink()
    with refusal(r"other/tokenizer\.json: .*"):
        combine([first, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    model = transduct.load(run)
    with refusal("no attention to show: its context is one vector, or it is an ensemble"):
        model.attention("a b")
    with refusal("captured search does not support Ensemble; leave captured out"):
        model.translate(["a"], captured=True)


@pytest.mark.parametrize("members", [None, [], ["../1"], [".."], ["a/../.."], [1], "1"])
def test_members_that_are_no_folders_of_it_are_neither_loaded_nor_copied(run, tmp_path, members):
    """Nor of a model that is no ensemble and needs none."""
    message = r"m/config.json: members is .*, expected names of folders there"
    with refusal(message):
        transduct.load(with_settings(run / "model", tmp_path / "m", members=members))
    changed = with_settings(run / "model" / "1", tmp_path / "m", members=members)
    with refusal(message):
        predictors_base.copy_model(changed, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("member", ["1", "2"])
def test_what_is_missing_or_damaged_of_a_member_is_named(run, tmp_path, member):
    damaged = shutil.copytree(run / "model", tmp_path / "m")
    tokenizer = damaged / member / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:100])
    with refusal(f"m/{member}/tokenizer.json: not a tokenizer"):
        transduct.load(damaged)
    tokenizer.unlink()
    with refusal(f"m/{member}: holds no tokenizer.json; copy the member again"):
        transduct.load(damaged)
    shutil.rmtree(damaged / member)
    with refusal(f"m/{member}/config.json: cannot be read .*; expected a member of the ens"):
        transduct.load(damaged)


def test_members_that_were_exchanged_are_noticed(run, trained_run, tmp_path):
    damaged = shutil.copytree(run / "model", tmp_path / "m")
    tokenizer = damaged / "2" / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text())))
    with refusal("m/2: its tokenizers are not those of"):
        transduct.load(damaged)
    shutil.rmtree(damaged / "2")
    shutil.copytree(run / "model", damaged / "2")
    shutil.copy(damaged / "1" / "tokenizer.json", damaged / "2" / "tokenizer.json")
    with refusal(r"m/2/config\.json: unknown family 'ensemble'; known are: tran"):
        transduct.load(damaged)


@pytest.mark.parametrize("stages", [[], [{}], [{}, {"task": "language_modeling"}]])
def test_a_recipe_needs_two_translators(tmp_path, stages):
    with refusal("ensemble is true; expected two stages or more, each a translation model; or"):
        train.train(replace(together(), stages=stages), tmp_path / "run", notify=str)
    assert not (tmp_path / "run").exists()
