"""What a recipe may say of its text, and what is refused before any of it is read."""

import re
import time
from dataclasses import replace

import pytest

from tests.refusals import refusal
from transduct.data import sources
from transduct.data.sources import (
    DataConfig,
    Replacement,
    TextSource,
    changes_of,
    hiding,
    of_references,
    restored,
    shared_out,
)
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


@pytest.mark.parametrize("cycle", [0, 3])
@pytest.mark.parametrize(
    "pattern, by",
    [
        ("(", ""),
        ("a", r"\1"),
        ("a", r"\g<name>"),
        ("a", "\\"),
        ("(a)", r"{n}\2"),
        ("a{99999999999999999999}", ""),
        ("(?R)?a", ""),
        ("a", "\ud800"),
    ],
)
def test_impossible_replacements_are_refused(pattern, by, cycle):
    with pytest.raises(ValueError, match=re.escape(f"cannot replace '{pattern}' by '{by}': ")):
        Replacement("both", pattern, by, cycle)


def test_a_pattern_that_takes_for_ever_is_refused(monkeypatch):
    monkeypatch.setattr(sources, "SECONDS", 0.05)
    text = "a" * 99 + "c"
    assert changes_of("source", [Replacement("source", "(a+)+$", "b")])(text) == text
    message = (
        "replacing '(a|aa)+$' takes longer than 0.05 s in a text of 100 characters; write a "
        "simpler pattern"
    )
    with refusal(re.escape(message)):
        changes_of("source", [Replacement("source", "(a|aa)+$", "b")])(text)


def test_all_patterns_together_take_bounded_time(monkeypatch):
    monkeypatch.setattr(sources, "SECONDS", 0.05)
    rules = [Replacement("source", "(a|aa)+$", "b")] * 100
    began = time.process_time()
    with refusal(r"takes longer than 0\.05 s"):
        changes_of("source", rules)("a" * 99 + "c")
    assert time.process_time() - began < 2


@pytest.mark.parametrize("by", ["b" * 30, r"\g<0>" * 30], ids=["text", "groups"])
def test_a_text_does_not_grow_without_bound(by):
    rules = [Replacement("source", ".", by)] * 7
    with refusal("lengthens a text to more than 1,060 characters; wri"):
        changes_of("source", rules)("abc")
    assert len(changes_of("source", rules[:1])("abc")) == 90


@pytest.mark.parametrize("rule", [("a" * 1001, ""), ("a", "b" * 1001)])
def test_a_rule_of_any_length_is_refused(rule):
    with pytest.raises(ValueError, match="has 1,001 characters; give at most 1000"):
        Replacement("source", *rule)


def test_a_replacement_may_number_its_matches():
    change = changes_of("source", [Replacement("source", r"\S+", r"#{n} \g<0>", cycle=3)])
    assert change("a b c d") == "#0 a #1 b #2 c #0 d"
    assert change("a") == "#0 a"
    change = changes_of("source", [Replacement("source", r"(\S+)", r"\1{n}{n}", cycle=11)])
    assert change("a {n} " + "c " * 9) == "a00 {n}11 c22 c33 c44 c55 c66 c77 c88 c99 c1010 "


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


ROOM = Replacement("both", r"[0-9]+", "NUM{n}", 10)


def test_what_placeholders_stand_for_is_put_back_by_its_number():
    text, replaced = hiding("source", [ROOM])("Zimmer 4711 kostet 12 Euro .")
    assert text == "Zimmer NUM0 kostet NUM1 Euro ."
    assert restored("room NUM0 costs NUM1 euros .", replaced) == "room 4711 costs 12 euros ."
    assert restored("NUM1 for NUM0, NUM0", replaced) == "12 for 4711, 4711"
    assert restored("NUM12 NUM7 NUM1은", replaced) == "NUM12 NUM7 12은"
    assert restored("a", ()) == "a"


def test_numbers_that_come_again_are_put_back_in_their_order():
    few = Replacement("source", "[a-z]", "#{n}", 2)
    text, replaced = hiding("source", [few])("abcde")
    assert text == "#0#1#0#1#0"
    assert restored("#0 #0 #0 #0 #1 #1", replaced) == "a c e e b d"


def test_each_part_of_a_text_has_what_its_own_placeholders_stand_for():
    few = Replacement("source", "[0-9]+", "NUM{n}", 2)
    text, replaced = hiding("source", [few])("1 a 2, 3 and b and 4, 5")
    assert text == "NUM0 a NUM1, NUM0 and b and NUM1, NUM0"
    parts = ["NUM0 a NUM1,", "NUM0 and b", "and", "NUM1, NUM0 NUM0 NUM12"]
    shares = shared_out(parts, replaced)
    back = [restored(part, share) for part, share in zip(parts, shares)]
    assert back == ["1 a 2,", "3 and b", "and", "4, 5 5 NUM12"]
    assert shared_out(["a", "b"], ()) == [(), ()]


def test_rules_that_hide_nothing_change_texts_and_references_as_before():
    marked = Replacement("both", "[a-z]", r"#{n}\g<0>", 9)
    clean = Replacement("both", "&amp;", "&")
    text, replaced = hiding("source", [clean, marked, ROOM])("a &amp; 7")
    assert (text, replaced) == (r"#0a & 7".replace("#0", "#NUM0").replace("7", "NUM1"), replaced)
    assert [original for _, original in replaced] == ["0", "7"]
    assert of_references([clean, marked, ROOM]) == [clean, marked]
    alone = Replacement("target", r"[0-9]+", "NUM{n}", 10)
    assert of_references([alone]) == [alone]
    assert of_references([replace(alone, side="source"), alone]) == []


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
