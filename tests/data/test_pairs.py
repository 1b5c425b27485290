"""Pairs are read, encoded and filtered as plain Python would, and some are held out."""

import random
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import PAIRS, texts, write
from transduct.data import pairs as module
from transduct.data.pairs import held_out_of
from transduct.data.samples import generate
from transduct.data.sources import Replacement, TextSource
from transduct.data.text import read_examples
from transduct.errors import TransductError

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
    message = r"no pair is left to train on \(left out: 1 empty, 2 too long\); check .*a\.s, .*a\.t and the filters"
    with pytest.raises(TransductError, match=message):
        made([("", "a"), PAIRS[0], PAIRS[1]], max_length=2)
    assert not (tmp_path / "corpus").exists()


def test_where_all_share_a_text_with_what_is_held_out_it_is_that_which_is_to_be_changed(made):
    pairs = [(f"{number}", "odd" if number % 2 else "even") for number in range(60)]
    message = r"no pair is left to train on \(left out: 60 held out\); set data\.held_out to 0, and validate on files of "
    with pytest.raises(TransductError, match=message):
        made(pairs, held_out=20)


def test_long_preparations_say_how_far_they_are(made, monkeypatch):
    monkeypatch.setattr(module, "PROGRESS", 50)
    assert made()[1][:2] == [
        "preparing the corpus: 56 pairs read",
        "preparing the corpus: 100 pairs read",
    ]
