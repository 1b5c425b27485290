"""What a recipe may say of its text, and what is refused before any of it is read."""

import re

import pytest

from tests.refusals import refusal
from transduct.data.replacements import (
    Replacement,
)
from transduct.data.sources import DataConfig, TextSource
from transduct.records import record


@pytest.mark.parametrize(
    "values, message",
    [
        ({}, "give source and target, or pairs, text, trees or generate: exactly one of them"),
        (
            {"source": "a", "target": "b", "pairs": "c.tsv"},
            "exactly one of them; found source and pairs (source=[] takes one away)",
        ),
        (
            {"source": ["a", "b"], "target": "c"},
            "found 2 source and 1 target files; give as many of each",
        ),
        ({"generate": "x", "count": 1}, "generate: no generated corpus is called 'x'; known are: "),
        ({"generate": "copy"}, "count is 0; give how many pairs to generate, only with generate"),
        ({"pairs": "a.tsv", "count": 3}, "count is 3; give how many"),
        ({"pairs": "a.tsv", "part": "test"}, "part is 'test'; give it only with generate"),
        (
            {"pairs": "a.foo"},
            "pairs: 'a.foo' has an unknown ending; expected .tsv, .csv, .jsonl, .parquet, .tmx, "
            ".xlf, .xliff, .po, or one of these",
        ),
        ({"pairs": "a.gz"}, "pairs: 'a.gz' has an unknown ending"),
        ({"pairs": "a"}, ".gz, .xz, .zst; of a folder, name the files"),
        ({"pairs": "a.ndjson"}, "pairs: 'a.ndjson' has an unknown ending; name it .jsonl"),
        ({"pairs": "a.pq.gz"}, "pairs: 'a.pq.gz' has an unknown ending; name it .parquet"),
        ({"pairs": "a.json"}, "pairs: 'a.json' has an unknown ending; write JSON lines, one"),
        (
            {"source": "a", "target": "b", "columns": [0, 1]},
            "columns is [0, 1]; name those to read, only with pairs",
        ),
        ({"pairs": "a.tsv", "columns": []}, "columns is []; name those to read"),
        (
            {"trees": "a.mrg", "columns": ["word"]},
            "columns: trees have no 'word'; they have: words, tags, brackets",
        ),
        (
            {"pairs": "a.tsv", "columns": [0, 1, 2], "alternatives": True},
            "alternatives reads further columns",
        ),
        (
            {"pairs": "a.jsonl", "columns": [0, 1]},
            "columns is [0, 1]; numbers count the columns of .tsv and .csv from 0",
        ),
        ({"pairs": "a.tsv", "columns": [0, -1]}, "columns is [0, -1]; numbers count the columns"),
        (
            {"pairs": "a.jsonl", "alternatives": True},
            "alternatives reads further columns as references, which only",
        ),
    ],
)
def test_impossible_sources_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TextSource(**values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"train": []}, "train is empty; name at least one corpus"),
        (
            {"train": [TextSource(pairs="a.tsv", alternatives=True)]},
            "alternatives are references to be measured against; in train a row has one target",
        ),
        (
            {"held_out": 5, "valid": TextSource(pairs="v.tsv")},
            "held_out is 5 and valid is given; set one of them",
        ),
        (
            {"valid": TextSource(pairs="a.tsv", weight=2)},
            "valid.weight is 2, must be 1: what is measured on is read once",
        ),
        (
            {"test": TextSource(pairs="a.tsv", weight=0.5)},
            "test.weight is 0.5, must be 1: what is measured",
        ),
    ],
)
def test_impossible_data_sections_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DataConfig(**{"train": [TextSource(pairs="a.tsv")], **values})


def test_a_recipe_section_becomes_these_records():
    section = {
        "train": [
            {"source": "a", "target": ["b"], "weight": 2},
            {"pairs": "c.tsv.gz", "columns": [1, 0]},
        ],
        "valid": {"generate": "copy", "count": 5, "part": "valid"},
        "replace": [{"side": "both", "pattern": "x"}],
    }
    data = record(DataConfig, section, "data")
    assert data.train == [
        TextSource(source="a", target=["b"], weight=2),
        TextSource(pairs="c.tsv.gz", columns=[1, 0]),
    ]
    assert data.valid == TextSource(generate="copy", count=5, part="valid")
    assert data.train[0].files() == ["a", "b"]
    assert data.replace == [Replacement("both", "x")]
    with refusal(r"recipe: data.train\[0\]: give source and target, or pairs, text"):
        record(DataConfig, {"train": [{}]}, "data")


@pytest.mark.parametrize(
    ("source", "target", "given", "languages"),
    [
        (["train.en"], ["train.de"], {}, ("en", "de")),
        (["a.en.xz", "b.en"], ["a.ko.xz", "b.ko"], {}, ("en", "ko")),
        (["a.en", "b.fr"], ["a.de", "b.de"], {}, None),
        (["a.txt"], ["b.txt"], {}, None),
        (["a.en"], ["b.txt"], {}, None),
        (["a"], ["b"], {"source_language": "German", "target_language": "en"}, ("German", "en")),
        (["a"], ["b"], {"source_language": "German"}, None),
    ],
)
def test_the_languages_of_a_corpus_are_given_or_stand_in_the_endings(
    source, target, given, languages
):
    train = [TextSource(source=source, target=target)]
    assert DataConfig(train=train, **given).languages == languages
