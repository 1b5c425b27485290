"""A corpus holds what plain Python would keep; held-out pairs are as good as random and do not
depend on the order of the corpus."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import PAIRS, data_of, texts, write
from tests.refusals import refusal
from transduct.data import preparing as module
from transduct.data import splits, text
from transduct.data.filters import hashes, hashes_of_rows
from transduct.data.preparing import HeldOut, held_out_of
from transduct.data.replacements import Replacement
from transduct.data.samples import generate
from transduct.data.sources import FiltersConfig, TextSource
from transduct.data.text import read_examples

MANY = [(f"a {number}", f"b {number}") for number in range(9_000)]


def held_out(pairs, count, at_once=700):
    """The pairs that are held out of these, by several objects that are merged."""
    chosen = HeldOut(count)
    for start in range(0, len(pairs), at_once):
        some, part = pairs[start : start + at_once], HeldOut(count)
        part.add(hashes(one for one, _ in some).tolist(), hashes_of_rows(some).tolist(), some)
        part.shorten()
        for source, (key, pair) in part.chosen.items():
            chosen.add([source], [key], [pair])
    return chosen.pairs


@pytest.mark.parametrize("count", [1, 100, 4_000, 9_000])
def test_what_is_held_out_has_the_smallest_hashes(count):
    order = np.argsort(hashes(source for source, _ in MANY))[:count]
    expected = [MANY[number] for number in order.tolist()]
    for pairs in (MANY, MANY[::-1]):
        assert held_out(pairs, count) == expected


def test_neither_a_blank_text_nor_a_source_twice_is_held_out():
    pairs = [("", "b 1"), ("a 2", ""), ("a 3", " "), ("\u3000", "b 4"), ("a 5", "b 5")]
    assert held_out(pairs, 5) == pairs[-1:]
    assert len(held_out([("Cafe\u0301 b", "c"), ("Café b ", "d")], 2)) == 1


NAMES = [*dict.fromkeys(name for _, name in generate("number_names", 400))]
pytestmark = pytest.mark.usefixtures("small_pieces")


def test_the_corpus_holds_every_pair_in_order(made, tokenizers):
    corpus, said = made()
    assert len(corpus) == 100
    assert texts(corpus, tokenizers) == PAIRS
    for column, tokenizer in enumerate(tokenizers):
        encoded = tokenizer.encode([pair[column] for pair in PAIRS])
        assert corpus.lengths[:, column].tolist() == list(map(len, encoded))
    assert corpus.weights == [(0, 100, 1.0)]
    assert corpus.dropped == dict.fromkeys(
        ["held_out", "empty", "too_long", "length_ratio", "duplicate"], 0
    )
    assert held_out_of(corpus) is None
    assert said == ["corpus prepared: 100 pairs"]
    assert len(list(corpus.directory.glob("*.arrow"))) > 3
    files = [*json.loads((corpus.directory / "manifest.json").read_text())["files"]]
    assert files == sorted(files), "their order depends on the disk"


@pytest.mark.parametrize(
    "settings", [{}, {"max_length": 20}, {"max_ratio": 0}, {"drop_duplicates": False}]
)
def test_the_filters_leave_out_what_plain_python_would(made, tokenizers, settings):
    pairs = [
        *PAIRS,
        *PAIRS[:9],
        ("", "a"),
        ("a", " \t"),
        ("", ""),
        ("a", "b " * 30),
        PAIRS[0],
        ("a", "b " * 30),
    ]
    random.Random(1).shuffle(pairs)
    corpus, said = made(pairs, **settings)
    settings = {"max_length": 256, "max_ratio": 9.0, "drop_duplicates": True, **settings}
    kept, counts = [], dict.fromkeys(corpus.dropped, 0)
    for pair in pairs:
        source, target = (
            len(tokenizer.encode([side])[0]) for tokenizer, side in zip(tokenizers, pair)
        )
        if not source or not target:
            counts["empty"] += 1
        elif max(source, target) + 1 > settings["max_length"]:
            counts["too_long"] += 1
        elif settings["max_ratio"] and max(source, target) > settings["max_ratio"] * min(
            source, target
        ):
            counts["length_ratio"] += 1
        elif settings["drop_duplicates"] and pair in kept:
            counts["duplicate"] += 1
        else:
            kept.append(pair)
    assert texts(corpus, tokenizers) == [(source, target.strip()) for source, target in kept]
    assert corpus.dropped == counts
    reasons = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in counts.items() if n)
    assert said == [f"corpus prepared: {len(kept)} pairs (left out: {reasons})"]


def test_weights_follow_the_corpora_and_duplicates_are_found_across_them(
    made, tmp_path, tokenizers
):
    first, second = write(tmp_path, PAIRS[:20], "x"), write(tmp_path, PAIRS[15:50], "y")
    train = [
        first,
        TextSource(**{**vars(second), "weight": 2.5}),
        TextSource(generate="sort", count=5),
    ]
    corpus, _ = made(train=train)
    assert corpus.weights == [(0, 20, 1.0), (20, 50, 2.5), (50, 55, 1.0)]
    assert corpus.dropped["duplicate"] == 5
    assert texts(corpus, tokenizers, np.arange(50)) == PAIRS[:50]


def test_replacements_come_before_everything_else(made, tokenizers):
    corpus, _ = made([("a b x1", "y"), ("a b x2", "y")], replace=[Replacement("source", "x.", "c")])
    assert texts(corpus, tokenizers) == [("a b c", "y")]


def test_held_out_pairs_are_never_trained_on(made, tokenizers):
    pairs = [*PAIRS, *PAIRS, ("", "a")]
    corpus, said = made(pairs, held_out=10, drop_duplicates=False)
    sources, references = read_examples(held_out_of(corpus), Path())
    held = {(source, target) for source, (target,) in zip(sources, references)}
    trained = texts(corpus, tokenizers)
    assert len(held) == 10
    assert held | set(trained) == set(PAIRS)
    assert not held & set(trained)
    assert corpus.dropped["held_out"] == 20
    assert said == ["corpus prepared: 180 pairs (left out: 20 held out, 1 empty)"]
    again, _ = made([*PAIRS[::-1], ("", "a")], held_out=10)
    assert sorted(read_examples(held_out_of(again), Path())[0]) == sorted(sources)


def test_no_text_of_a_held_out_pair_is_trained_on(made, tokenizers):
    draw = random.Random(1)
    pairs = [(NAMES[draw.randrange(40)], f"a {NAMES[draw.randrange(200)]}") for _ in range(300)]
    corpus, _ = made(pairs, held_out=8, drop_duplicates=False, max_ratio=0)
    found = read_examples(held_out_of(corpus), Path())
    held = [(source, target) for source, (target,) in zip(*found)]
    assert len({source for source, _ in held}) == 8
    assert set(held) <= set(pairs)
    texts_of_held = [set(side) for side in zip(*held)]
    kept = [
        pair for pair in pairs if not any(text in side for text, side in zip(pair, texts_of_held))
    ]
    assert 100 < len(kept) < 292
    assert texts(corpus, tokenizers) == kept
    assert corpus.dropped["held_out"] == len(pairs) - len(kept)
    again, _ = made(pairs[::-1], held_out=8, max_ratio=0)
    assert sorted(zip(*read_examples(held_out_of(again), Path()))) == sorted(zip(*found))


def test_what_is_held_out_is_told_from_the_rest_after_the_replacements(made, tokenizers):
    pairs = [(f"{name}{mark}", f"a {name}") for name in NAMES[:20] for mark in "ab"]
    corpus, _ = made(pairs, held_out=5, replace=[Replacement("source", "[ab]$", "")], max_ratio=0)
    held = {source[:-1] for source in read_examples(held_out_of(corpus), Path())[0]}
    assert len(held) == 5
    assert {source for source, _ in texts(corpus, tokenizers)} == {*NAMES[:20]} - held


def test_nothing_left_is_refused_with_the_counts(made, tmp_path):
    message = (
        r"no pair is left to train on \(left out: 1 empty, 2 too long\); check .*a\.s, "
        r".*a\.t and the filters"
    )
    with refusal(message):
        made([("", "a"), PAIRS[0], PAIRS[1]], max_length=2)
    assert not (tmp_path / "corpus").exists()


def test_where_all_share_a_text_with_what_is_held_out_it_is_that_which_is_to_be_changed(made):
    pairs = [(f"{number}", "odd" if number % 2 else "even") for number in range(60)]
    message = (
        r"no pair is left to train on \(left out: 60 held out\); set data\.held_out to "
        r"0, and validate on files of "
    )
    with refusal(message):
        made(pairs, held_out=20)


def test_long_preparations_say_how_far_they_are(made, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS", 50)
    monkeypatch.setattr(splits, "SIZE", 600)
    said = made()[1]
    assert said[1] == "preparing the corpus: 100 pairs read"
    assert 50 <= int(re.fullmatch("preparing the corpus: (..) pairs read", said[0])[1]) < 100


@pytest.mark.parametrize("split, name", [("valid", "validation"), ("test", "test")])
@pytest.mark.parametrize("drop", [False, True])
def test_pairs_to_be_scored_that_are_in_training_are_counted_or_left_out(
    tmp_path, tokenizers, split, name, drop
):
    trained = [(f"a {n}", f"b {n}") for n in range(20)]
    scored = [*trained[:3], (" a  3 ", "other"), ("new", "neu")]  # blanks make no difference
    (tmp_path / "v.tsv").write_text("".join("\t".join(pair) + "\n" for pair in scored))
    scores = {split: TextSource(pairs="v.tsv"), "drop_validation": drop}
    data, lines = data_of(tmp_path, trained, **scores), []
    corpus = module.prepare(data, *tokenizers, tmp_path / "corpus", lines.append)
    leak = (
        f"warning: 3 of 5 {name} pairs are in training, and 4 of its sources: scores may be too "
        "good; data.drop_validation=true leaves them out of training"
    )
    assert (leak in lines) != drop
    assert len(corpus.lengths) == (16 if drop else 20)
    clean = replace(data, **{split: TextSource(generate="copy", count=3)}, drop_validation=False)
    more = []
    module.prepare(clean, *tokenizers, tmp_path / "clean", more.append)
    assert not [line for line in more if "in training" in line]


def test_a_changed_validation_file_is_left_out_anew(tmp_path, tokenizers):
    (tmp_path / "v.tsv").write_text("a 1\tb 1\n")
    valid = {"valid": TextSource(pairs="v.tsv"), "drop_validation": True}
    data = data_of(tmp_path, [(f"a {n}", f"b {n}") for n in range(9)], **valid)
    before = module.prepare(data, *tokenizers, tmp_path / "corpus", str)
    (tmp_path / "v.tsv").write_text("a 1\tb 1\na 2\tb 2\n")
    again = module.prepare(data, *tokenizers, tmp_path / "corpus", str)
    assert (len(before.lengths), len(again.lengths)) == (8, 7)


def test_the_filters_of_a_recipe_leave_pairs_out_of_training_and_belong_to_the_corpus(
    tmp_path, tokenizers
):
    pairs = [("a house by the sea", "ein Haus am Meer"), ("Same", "same"), ("<b>a</b>", "b")]
    pairs += [("a house by the sea!", "ein Haus am Meer"), ("a dog", "ein Hund")]
    plain = data_of(tmp_path, pairs)
    on = FiltersConfig(copied=True, markup=True, near_duplicates=0.6)
    data = replace(plain, filters=on)
    assert len(module.prepare(plain, *tokenizers, tmp_path / "all", str)) == 5
    for chunk in (1, 100):  # near duplicates are found whatever the chunks are
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text, "CHUNK", chunk)
            corpus = module.prepare(data, *tokenizers, tmp_path / f"some{chunk}", str)
        assert len(corpus) == 2
        assert {name: corpus.dropped[name] for name in on.names} == dict.fromkeys(on.names, 1)
    said = []
    module.prepare(
        plain, *tokenizers, tmp_path / "some1", said.append
    )  # another corpus, which is made anew
    assert any("corpus prepared: 5 pairs" in line for line in said)
