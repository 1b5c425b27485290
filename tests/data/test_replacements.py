"""Replacements happen in order, in bounded time and room, and placeholders are put back."""

import re
import time
from dataclasses import replace

import pytest

from tests.refusals import refusal
from transduct.data import replacements
from transduct.data.replacements import (
    Replacement,
    changes_of,
    changes_with_placeholders,
    of_references,
    placeholders_of_parts,
    restored,
)


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
    monkeypatch.setattr(replacements, "SECONDS", 0.05)
    text = "a" * 99 + "c"
    assert changes_of("source", [Replacement("source", "(a+)+$", "b")])(text) == text
    message = (
        "replacing '(a|aa)+$' takes longer than 0.05 s in a text of 100 characters; write a "
        "simpler pattern"
    )
    with refusal(re.escape(message)):
        changes_of("source", [Replacement("source", "(a|aa)+$", "b")])(text)


def test_all_patterns_together_take_bounded_time(monkeypatch):
    monkeypatch.setattr(replacements, "SECONDS", 0.05)
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


ROOM = Replacement("both", r"[0-9]+", "NUM{n}", 10)


def test_what_placeholders_stand_for_is_put_back_by_its_number():
    text, replaced = changes_with_placeholders("source", [ROOM])("Zimmer 4711 kostet 12 Euro .")
    assert text == "Zimmer NUM0 kostet NUM1 Euro ."
    assert restored("room NUM0 costs NUM1 euros .", replaced) == "room 4711 costs 12 euros ."
    assert restored("NUM1 for NUM0, NUM0", replaced) == "12 for 4711, 4711"
    assert restored("NUM12 NUM7 NUM1은", replaced) == "NUM12 NUM7 12은"
    assert restored("a", ()) == "a"


def test_numbers_that_come_again_are_put_back_in_their_order():
    few = Replacement("source", "[a-z]", "#{n}", 2)
    text, replaced = changes_with_placeholders("source", [few])("abcde")
    assert text == "#0#1#0#1#0"
    assert restored("#0 #0 #0 #0 #1 #1", replaced) == "a c e e b d"


def test_each_part_of_a_text_has_what_its_own_placeholders_stand_for():
    few = Replacement("source", "[0-9]+", "NUM{n}", 2)
    text, replaced = changes_with_placeholders("source", [few])("1 a 2, 3 and b and 4, 5")
    assert text == "NUM0 a NUM1, NUM0 and b and NUM1, NUM0"
    parts = ["NUM0 a NUM1,", "NUM0 and b", "and", "NUM1, NUM0 NUM0 NUM12"]
    shares = placeholders_of_parts(parts, replaced)
    back = [restored(part, share) for part, share in zip(parts, shares)]
    assert back == ["1 a 2,", "3 and b", "and", "4, 5 5 NUM12"]
    assert placeholders_of_parts(["a", "b"], ()) == [(), ()]


def test_rules_that_hide_nothing_change_texts_and_references_as_before():
    marked = Replacement("both", "[a-z]", r"#{n}\g<0>", 9)
    clean = Replacement("both", "&amp;", "&")
    text, replaced = changes_with_placeholders("source", [clean, marked, ROOM])("a &amp; 7")
    assert (text, replaced) == (r"#0a & 7".replace("#0", "#NUM0").replace("7", "NUM1"), replaced)
    assert [original for _, original in replaced] == ["0", "7"]
    assert of_references([clean, marked, ROOM]) == [clean, marked]
    alone = Replacement("target", r"[0-9]+", "NUM{n}", 10)
    assert of_references([alone]) == [alone]
    assert of_references([replace(alone, side="source"), alone]) == []
