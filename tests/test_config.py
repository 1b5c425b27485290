"""Recipes are read, overridden, checked with full names in errors, written and read back."""

import os
import re
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import yaml

from transduct.config import (
    Recipe,
    dump,
    load_recipe,
    merge,
    parse_override,
    placed,
    recipe_words,
    stages_of,
)
from transduct.errors import TransductError, UnknownKey
from transduct.records import record


@dataclass(frozen=True)
class Source:
    path: str
    weight: float = 1.0

    def __post_init__(self):
        if self.weight <= 0:
            raise ValueError(f"weight is {self.weight}, must be above 0")


@dataclass(frozen=True)
class Section:
    """A record with one field of every kind."""

    sources: list[Source]
    valid: Source | None = None
    steps: int = 10
    rate: float = 0.1
    name: str | list[str] = "x"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    kind: Literal["a", "b"] = "a"
    shared: bool = True


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# files


def test_a_recipe_is_read_and_overridden_in_order(recipe):
    path = recipe(
        """
task: translation
training: {steps: 100, learning_rate: 1e-3, betas: [0.9, 0.98]}
profiles:
  quick: {training: {steps: 10}, model: {size: tiny}}
"""
    )
    plain = load_recipe(path)
    assert plain.training == {"steps": 100, "learning_rate": 0.001, "betas": [0.9, 0.98]}
    assert (plain.model, plain.stages) == ({}, [])
    quick = load_recipe(path, ["training.seed=7", "training.betas=[0.8, 0.9]"], "quick")
    assert quick.training == {"steps": 10, "learning_rate": 0.001, "betas": [0.8, 0.9], "seed": 7}
    assert quick.model == {"size": "tiny"}
    assert (
        load_recipe(path, ["training.steps=5", "training.steps=6"], "quick").training["steps"] == 6
    )


def doublings(count):
    """A list whose aliases stand for 2 ** count values."""
    lines = ["- &a0 [x]", *(f"- &a{i + 1} [*a{i}, *a{i}]" for i in range(count))]
    return "\n".join(f"    {line}" for line in lines)


@pytest.mark.parametrize(
    "replace, said",
    [
        (doublings(22), "what its aliases .* stand for expands to more than 100,000 values; write"),
        (doublings(9999), "what its aliases .* expands to more than 100,000 values"),
        ("    - &a [*a]", "what its aliases .* expands to more than 100,000 values"),
        ("    - &a {x: {<<: *a}}", "what its aliases .* expands to more than 100,000 values"),
    ],
    ids=["doubled", "doubled for ever", "itself", "itself merged"],
)
def test_aliases_that_expand_without_bound_are_refused(tmp_path, replace, said):
    path = tmp_path / "a.yaml"
    path.write_text(f"task: translation\nstages:\n- data:\n    replace:\n{replace}\n")
    began = time.process_time()
    with pytest.raises(TransductError, match=f"a.yaml: {said}"):
        load_recipe(path)
    assert time.process_time() - began < 5


def test_merges_that_copy_without_bound_are_refused(tmp_path):
    lines = ["a: &a {" + ", ".join(f"k{i}: 0" for i in range(999)) + "}"]
    lines += [f"b{i}: {{<<: *a}}" for i in range(200)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(
        TransductError, match=r"a.yaml:\d+: not valid YAML: merges \(<<\) of more than 100,000 val"
    ):
        load_recipe(tmp_path / "a.yaml")


def test_aliases_within_bounds_stand_for_their_value(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(f"task: translation\nstages:\n- data:\n    replace:\n{doublings(3)}\n")
    assert load_recipe(path).stages[0]["data"]["replace"][2] == [[["x"]] * 2] * 2


def test_an_override_with_large_aliases_is_refused():
    words = "[&a [x], " + ", ".join(
        f"&{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]" for i in range(20)
    )
    with pytest.raises(TransductError, match="expands to"):
        parse_override(f"data.replace={words}]")


def test_a_recipe_without_end_and_one_in_utf16_are_refused(tmp_path):
    with pytest.raises(
        TransductError, match=r"/dev/zero: longer than 1,000,000 bytes; expected a re"
    ):
        load_recipe("/dev/zero")
    (tmp_path / "a.yaml").write_text("task: translation\n", encoding="utf-16")
    with pytest.raises(
        TransductError, match=r"cannot read the recipe .*; save it in UTF-8, as an editor can"
    ):
        load_recipe(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "found empty, expected a recipe with the key 'task'"),
        ("- a", "found a list, expected a recipe"),
        ("task", "found 'task', expected a recipe"),
        ("data: {}", "missing key 'task'"),
        ("task: 3", ":1: task is 3, expected text"),
        ("task: t\ndata: [1]", ":2: data is a list, expected a mapping of keys"),
        ("task: t\ntrainin: {}", ":2: unknown key 'trainin'; did you mean 'training'?"),
        (
            "task: t\nzzz: {}",
            "unknown key 'zzz'; known are: task, data, tokenizer, model, training, "
            "decoding, stages",
        ),
        (
            "task: t\nseed: 3",
            ":2: unknown key 'seed'; known are: task, data, tokenizer, model, training, "
            "decoding, stages"
            ", ensemble; a key of a section is written with it, as in training.steps=100",
        ),
        (
            "task: t\nsteps: 3\ntraining: {steps: 5}",
            ":2: unknown key 'steps'; did you mean 'training.steps'?",
        ),
        (
            "task: t\nsize: 3\nmodel: {size: a}\ntokenizer: {size: 5}",
            "mean 'tokenizer.size' or 'model.size'?",
        ),
        ("task: t\ndata: {a: 1, a: 2}", ":2: not valid YAML: the key 'a' appears twice"),
        ("task: t\ntask: u", ":2: not valid YAML: the key 'task' appears twice"),
        (
            "task: t\ndata:\n  a: {b: 1}\n  <<: {c: 1}\n  <<: {d: 1}",
            ":5: not valid YAML: the key '<<' appears",
        ),
        (
            "task: t\ndata: {a: 2024-13-45}",
            ": not valid YAML: month must be in 1..12; put text in quotes",
        ),
        (
            "task: t\ndata: " + "[" * 5000 + "]" * 5000,
            ": not valid YAML: maximum recursion depth exceeded",
        ),
        ("task: [", ":1: not valid YAML: "),
        ("task: t\n\tdata: {}", ":2: not valid YAML: "),
        (
            "task: !!python/object/apply:os.getcwd []",
            ":1: not valid YAML: could not determine a constructor",
        ),
        ("task: \x01", ": not valid YAML: "),
        (b"task: \xff", "cannot read the recipe"),
    ],
)
def test_what_is_no_recipe_is_refused_with_its_place(recipe, text, said):
    path = recipe(text)
    with pytest.raises(TransductError) as caught:
        load_recipe(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


PLACED = """task: t
data:
  train:
    - {source: a}
    - source: b
      weight: 2
training: {steps: 10}
stages:
  - {}
  - training: {rate: 3}
    model:
      size: tiny
profiles:
  cpu:
    training:
      rate: 5
    stages:
      1: {training: {warmup: 7}}
"""


@pytest.mark.parametrize(
    "key, overrides, profile, place",
    [
        ("?data.train[1].weight", [], None, "{path}:6"),
        ("data.train[0].source", [], None, "{path}:4"),
        ("data.train[1].weight", [], None, "{path}:6"),
        ("data.valid", [], None, "{path}:2"),
        ("training.steps", [], None, "{path}:7"),
        ("training.steps", [], "cpu", "{path}:7"),
        ("training.rate", [], "cpu", "{path}:16"),
        (
            "training.rate",
            ["training.steps=3", "training.rate=5"],
            "cpu",
            "the override 'training.rate=5'",
        ),
        ("training.rate", ["training={rate: 5}"], None, "the override 'training={rate: 5}'"),
        (
            "training.rate",
            ["training.rate=5", "training.rate=6"],
            None,
            "the override 'training.rate=6'",
        ),
        ("stages[1].training.rate", [], "cpu", "{path}:10"),
        ("stages[1].training.warmup", [], "cpu", "{path}:18"),
        ("stages[1].model.size", [], None, "{path}:12"),
        ("stages[0].training.steps", [], None, "{path}:7"),
        ("stages[1].model.x", ["stages.1.model.x=1"], None, "the override 'stages.1.model.x=1'"),
        ("stages[1].model.x", ["model.x=1"], None, "the override 'model.x=1'"),
        (
            "training.rate",
            [f"training={{rate: {9:060}}}"],
            None,
            "the override 'training={rate: " + "0" * 44 + "...'",
        ),
        ("?tarining", ["tarining.steps=3"], None, "the override 'tarining.steps=3'"),
        ("?model.foo", ["model.foo.bar=1"], None, "the override 'model.foo.bar=1'"),
        ("data.train", ["data.train.x=1"], None, "{path}:3"),
        ("data", ["data.root=x"], None, "{path}:2"),
        ("model.size", [], None, "{path}"),
        ("data", [], None, "{path}:2"),
        ("stages[1].model", [], None, "{path}:11"),
        ("stages[1].model", ["training.its=1"], None, "{path}:11"),
        ("decoding.beam", [], None, "{path}"),
        ("decoding.beam", ["stages.1.model.x=1"], None, "{path}"),
    ],
)
def test_an_error_in_a_recipe_names_its_line(recipe, key, overrides, profile, place):
    path = recipe(PLACED)
    kind = UnknownKey if key.startswith("?") else TransductError
    key = key.lstrip("?")
    with pytest.raises(kind) as caught, placed(str(path), overrides, profile):
        raise kind("{key} is odd", key=key)
    assert str(caught.value) == f"{place.replace('{path}', str(path))}: {key} is odd"


@pytest.mark.parametrize("facts", [{}, {"file": "options", "key": "data"}, {"input": 1}], ids=str)
def test_what_is_not_of_a_key_of_the_recipe_stays_as_it_is(recipe, facts):
    error = TransductError("odd", **facts)
    with pytest.raises(TransductError) as caught, placed(str(recipe(PLACED))):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("key, place", [("x", "the override 'training.x=1'"), ("y", "recipe")])
def test_a_recipe_without_a_file_has_overrides_at_least(key, place):
    with (
        pytest.raises(TransductError, match=rf"^{place}: training.{key} is odd"),
        placed(None, ["training.x=1"]),
    ):
        raise TransductError("{key} is odd", key=f"training.{key}")


def test_a_recipe_that_changes_while_it_is_trained_is_spoken_of_as_it_was(recipe):
    path = recipe(PLACED)

    def changed():
        path.write_text("[")
        raise TransductError("{key} is odd", key="training.steps")

    with pytest.raises(TransductError, match=r"recipe\.yaml:7: training.steps"), placed(str(path)):
        changed()


def test_a_recipe_may_come_through_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["task: t\ndata: {x: 1}"])
    writer.start()
    with placed(str(pipe)):
        assert load_recipe(pipe).data == {"x": 1}
    writer.join()


def test_mappings_of_a_recipe_may_be_merged(recipe):
    text = """
task: t
data: {a: &one {x: 1, y: 2}, b: &two {<<: *one, y: 3}}
model: {<<: *two, z: 4}
stages: [{<<: [*two, *one], x: 5}]
"""
    found = load_recipe(recipe(text))
    assert found.data == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert found.model == {"x": 1, "y": 3, "z": 4}
    assert found.stages == [{"x": 5, "y": 3}]


def test_of_several_merged_mappings_the_first_wins(recipe):
    text = """
task: t
data: {a: &first {steps: 1, rate: 1}, b: &second {steps: 2, rate: 2, more: 2}}
model: {<<: [*first, *second], rate: 3}
"""
    assert load_recipe(recipe(text)).model == {"steps": 1, "rate": 3, "more": 2}


def test_mappings_that_merge_each_other_many_times_stay_small(recipe):
    lines = ["task: t", "data:", "  a0: &a0 {key: 1}"]
    # 9^29 keys
    lines += [f"  a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    assert load_recipe(recipe("\n".join(lines))).data["a29"] == {"key": 1}


def test_only_mappings_are_merged(recipe):
    with pytest.raises(
        TransductError, match="expected a mapping or list of mappings for merging, but found scalar"
    ):
        load_recipe(recipe("task: t\nmodel: {<<: 3}"))


def test_folders_may_begin_at_home(recipe, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    path = recipe("task: t\ndata: {root: ~/a}\nstages: [{data: {root: b}}, {}, {data: }]")
    assert load_recipe(path).data == {"root": "/home/me/a"}
    found = load_recipe(path, ["data.root=~/c", "stages.0.data.root=~"])
    assert (found.data["root"], found.stages[0]["data"]["root"]) == ("/home/me/c", None)
    assert load_recipe(path, ["model.start_from=~/run/model"]).model == {
        "start_from": "/home/me/run/model"
    }


def test_a_recipe_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(
            TransductError, match=r"cannot read the recipe .* give the path of a YAML file"
        ) as caught:
            load_recipe(path)
        assert str(path) in str(caught.value)


def test_a_profile_may_have_a_number_for_a_name(recipe):
    assert load_recipe(recipe("task: t\nprofiles: {1: {data: {x: 2}}}"), profile="1").data == {
        "x": 2
    }


@pytest.mark.parametrize(
    "profiles, said",
    [
        ("{quick: {}}", "no profile 'quik'; did you mean 'quick'?"),
        ("{gpu: {}, cpu: {}}", "no profile 'quik'; known are: gpu, cpu"),
        ("", "no profile 'quik'; the recipe has none"),
        ("[quik]", "profiles is a list, expected a mapping of names to overrides"),
        ("{1: {}, 2: {}}", "no profile 'quik'; known are: 1, 2"),
        (
            "{quik: 3}",
            "recipe.yaml: profiles.quik is 3, expected a mapping of keys to change",
        ),
        ("{quik: {trainin: {}}}", ":2: unknown key 'trainin'; did you mean 'training'?"),
    ],
)
def test_a_profile_that_is_not_there_is_refused(recipe, profiles, said):
    path = recipe(f"task: t\nprofiles: {profiles}")
    with pytest.raises(TransductError) as caught:
        load_recipe(path, profile="quik")
    assert said in str(caught.value)


# overrides


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("3", 3),
        ("true", True),
        ("null", None),
        ("", None),
        ("[1, 2e-1]", [1, 0.2]),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("'1e-3'", "1e-3"),
        ("x=y", "x=y"),
        ("1:30", "1:30"),
        ("-1:30.5", "-1:30.5"),
        ("0100", "0100"),
        ("-010", "-010"),
        ("0", 0),
        ("-5", -5),
        ("0.5", 0.5),
        ("00.5", 0.5),
        ("1_000", 1000),
        ("0x1f", 31),
        ("1e", "1e"),
        ("e3", "e3"),
        ("한국어", "한국어"),
    ],
)
def test_an_override_is_read_as_yaml(text, value):
    found = parse_override(f"a.b={text}")
    assert found == {"a": {"b": value}}
    assert type(found["a"]["b"]) is type(value)


@pytest.mark.parametrize("text", ["=3", ".=3", "a..b=3", ".a=3", "a.=3"])
def test_an_override_needs_a_key(text):
    with pytest.raises(TransductError) as caught:
        parse_override(text)
    assert str(caught.value) == f"the override '{text}' has no key; write section.key=value"


def test_an_override_needs_a_value(tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: a\n")
    assert load_recipe(tmp_path / "recipe.yaml", ["training.best="]).training == {"best": None}
    with pytest.raises(TransductError) as caught:
        load_recipe(tmp_path / "recipe.yaml", ["training.best"])
    assert (
        str(caught.value) == "the override 'training.best' has no value; write training.best=value"
    )


@pytest.mark.parametrize(
    "words, said",
    [
        ("a.yaml b.yaml", "found 2 recipes (a.yaml, b.yaml); give one"),
        ("a b", "found 2 recipes (a, b); give one, or train on two texts with: --source a --t"),
        (
            "r.yaml training.steps 3",
            "found 'training.steps', a key without its '='; write training.steps=3",
        ),
        (
            "training.steps 3",
            "found 'training.steps', a key without its '='; write training.steps=3",
        ),
        (
            "r.yaml training.steps= 3",
            "found a space after 'training.steps='; write training.steps=3",
        ),
        ("r.yaml training.steps = 3", "a key without its '='; write training.steps=3"),
        ("r.yaml training.steps: 3", "a key without its '='; write training.steps=3"),
        ("r.yaml training.steps", "a key without its '='; write training.steps=VALUE"),
        ("r.yaml steps 3", "'steps' is no file and no override: write section.key=value, as in t"),
    ],
)
def test_words_of_a_command_that_are_no_recipe_and_no_override_are_refused(words, said):
    with pytest.raises(TransductError, match=re.escape(said)):
        recipe_words(words.split())


def test_several_tables_are_trained_on_together():
    assert recipe_words(["a.tsv", "b.csv.gz", "c.d=1"], lambda name: "sv" in name) == (
        ["a.tsv", "b.csv.gz"],
        ["c.d=1"],
    )


@pytest.mark.parametrize("overrides", [{"training.best": "bleu"}, "training.best=bleu"])
def test_overrides_are_a_list(tmp_path, overrides):
    (tmp_path / "recipe.yaml").write_text("task: a\n")
    with pytest.raises(TransductError) as caught:
        load_recipe(tmp_path / "recipe.yaml", overrides)
    expected = f"found overrides {overrides!r}, expected a list such as ['training.steps=2000']"
    assert str(caught.value) == expected


def test_a_recipe_may_lie_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "recipe.yaml").write_text("task: a\n")
    assert load_recipe("~/recipe.yaml").task == load_recipe(Path("~/recipe.yaml")).task == "a"


def test_an_override_that_is_no_yaml_is_named():
    with pytest.raises(TransductError, match=r"^the override 'a=\[1': not valid YAML: "):
        parse_override("a=[1")


def test_an_override_holds_in_stages_that_say_the_same_otherwise(tmp_path):
    text = (
        "task: a\ntraining: {steps: 9, seed: 1, betas: [0.9, 0.99]}\nstages:\n- {training: "
        "{steps: 1}}\n"
        "- {model: {d_model: 8}}\n- {training: {steps: 3, betas: [0.9, 0.98]}}\n"
    )
    (tmp_path / "recipe.yaml").write_text(text)
    overrides = ["training.steps=5", "training.betas.1=0.5", "stages.0.training.steps=6"]
    found = load_recipe(tmp_path / "recipe.yaml", overrides)
    assert found.training == {"steps": 5, "seed": 1, "betas": [0.9, 0.5]}
    assert found.stages == [
        {"training": {"steps": 6}},
        {"model": {"d_model": 8}},
        {"training": {"steps": 5, "betas": [0.9, 0.5]}},
    ]


@pytest.mark.parametrize("name, value", [("stages", []), ("ensemble", True)])
def test_a_stage_has_no_stages(name, value):
    recipe = Recipe("translation", stages=[{}, {name: value}])
    with pytest.raises(
        TransductError,
        match=rf"recipe: stages\[1\]\.{name} is for the whole recipe; write it above",
    ):
        stages_of(recipe)


def test_items_of_a_list_are_changed_by_their_numbers():
    base = {"stages": [{"training": {"steps": 1, "seed": 2}}, {"task": "x"}], "betas": [0.9, 0.98]}
    over = {"stages": {"0": {"training": {"steps": 5}}, 1: {"data": {"a": 1}}}, "betas": {1: 0.99}}
    stages = [{"training": {"steps": 5, "seed": 2}}, {"task": "x", "data": {"a": 1}}]
    assert merge(base, over) == {"stages": stages, "betas": [0.9, 0.99]}
    assert base["stages"][0]["training"]["steps"] == 1
    with pytest.raises(TransductError, match="'stages' has no item '2'; it has 2, counted from 0"):
        merge(base, {"stages": {2: {}}})
    with pytest.raises(
        TransductError, match=r"'data\.train\.0\.source' has no item '1'; it has 1, counted from 0"
    ):
        merge({"data": {"train": [{"source": ["a"]}]}}, parse_override("data.train.0.source.1=b"))


@pytest.mark.parametrize(
    "base, over, merged",
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"d": 2}}}, {"a": {"b": {"c": 1, "d": 2}}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 3}, {"a": 3}),
        ({"a": 3}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 3}, {"b": 4}, {"a": 3, "b": 4}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    ],
)
def test_mappings_are_merged_and_all_else_replaced(base, over, merged):
    before = yaml.safe_dump(base)
    assert merge(base, over) == merged
    assert yaml.safe_dump(base) == before


# records


def test_a_record_is_built_with_the_records_in_it():
    values = {
        "sources": [{"path": "a"}, {"path": "b", "weight": 2}],
        "valid": {"path": "c"},
        "name": ["x", "y"],
    }
    found = record(Section, values, "data")
    assert found == Section([Source("a"), Source("b", 2)], Source("c"), name=["x", "y"])
    assert record(Section, {"sources": [], "valid": None, "kind": "b"}, "data") == Section(
        [], kind="b"
    )


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, "missing key 'data.sources'"),
        ([], "data is a list, expected a mapping of keys"),
        (None, "data is empty, expected a mapping of keys"),
        ({"sources": [], "step": 3}, "unknown key 'data.step'; did you mean 'steps'?"),
        ({"sources": [], 3: 3}, "unknown key 'data.3'; known are: sources, valid, "),
        ({"sources": {}}, "data.sources is a mapping, expected a list"),
        (
            {"sources": [{"path": "a"}, {"pat": "b"}]},
            "unknown key 'data.sources[1].pat'; did you mean 'path'?",
        ),
        ({"sources": [{}]}, "missing key 'data.sources[0].path'"),
        ({"sources": [3]}, "data.sources[0] is 3, expected a mapping of keys"),
        (
            {"sources": [{"path": "a", "weight": 0}]},
            "data.sources[0].weight is 0.0, must be above 0",
        ),
        ({"sources": [], "valid": {"path": 3}}, "data.valid.path is 3, expected text"),
        ({"sources": [], "valid": "a"}, "data.valid is 'a', expected a mapping of keys"),
        (
            {"sources": [], "steps": "many"},
            "data.steps is the text 'many', expected a whole number",
        ),
        ({"sources": [], "steps": 1.5}, "data.steps is 1.5, expected a whole number"),
        ({"sources": [], "steps": True}, "data.steps is True, expected a whole number"),
        ({"sources": [], "rate": "0.1"}, "data.rate is the text '0.1', expected a number"),
        ({"sources": [], "rate": None}, "data.rate is empty, expected a number"),
        (
            {"sources": [], "betas": [0.9, "b"]},
            "data.betas[1] is the text 'b', expected a number",
        ),
        ({"sources": [], "kind": "c"}, "data.kind is 'c', expected 'a' or 'b'"),
        ({"sources": [], "shared": 1}, "data.shared is 1, expected true or false"),
        ({"sources": [], "name": 3}, "data.name is 3, expected text"),
        ({"sources": [], "kind": "c" * 99}, f"data.kind is '{'c' * 59}, expected 'a' or 'b'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_full_name(values, said):
    with pytest.raises(TransductError) as caught:
        record(Section, values, "data", "my recipe")
    assert str(caught.value).startswith(f"my recipe: {said}")


def test_without_a_section_the_name_is_that_of_the_key():
    with pytest.raises(TransductError, match=r"^recipe: missing key 'sources'$"):
        record(Section, {}, "")
    with pytest.raises(
        TransductError, match=r"^recipe: the recipe is empty, expected a mapping of keys$"
    ):
        record(Section, None, "")
    with pytest.raises(TransductError, match=r"^recipe: weight is 0\.0, must be above 0$"):
        record(Source, {"path": "a", "weight": 0}, "")


# writing


@pytest.mark.parametrize(
    "value",
    [
        1e-3,
        1e-9,
        1e300,
        0.1,
        3,
        True,
        None,
        "1e-3",
        "null",
        "",
        "한 국어: x",
        "a\nb",
        "\x85",
        "a\x85\nb",
        "a\u2028b",
        "\u2029",
        "\r\n",
        " \t",
        [1, {"b": 2}],
        {"a\x85b": 1},
    ],
)
def test_what_is_written_is_read_again(recipe, value):
    written = Recipe("t", data={"z": value, "a": {"z": value}}, stages=[{"x": value}])
    text = dump(asdict(written))
    assert load_recipe(recipe(text)) == written
    assert text.index("\n  z:") < text.index("\n  a:"), "the order of keys"
    assert "국어" in text or "국어" not in str(value)
