"""Labelled F1 by evalb's rules: its own examples, cases counted by hand, and a second
implementation."""

import random
from collections import Counter

import pytest

from transduct.data.trees import Tree, linearised
from transduct.errors import TransductError
from transduct.evaluation.text import corpus_scores
from transduct.evaluation.trees import labelled_f1, read

GOLD = "(S (A this) (B is (A a test)))"
# A guess for GOLD, after evalb's sample.tst; the constituents that match, those of the guess.
SAMPLE = [
    ("(S (A this) (B is (A a test)))", 4, 4),
    ("(S (A this) (B is (C a test)))", 3, 4),
    ("(S (C this) (B is (A a test)))", 3, 4),
    ("(S (A this) (B is a (A test)))", 3, 4),
    ("(S (A this is) (A a test))", 2, 3),
    ("(S this is a test)", 1, 1),
    ("this is a test", 0, 0),
    ("(S (A this) (B is (A (A a test))))", 4, 5),
    ("(S (A this) (B is (A (A (A (A (A a test)))))))", 4, 8),
    ("(S (A this) (B (Z is (A a test))))", 4, 5),
    ("(TOP (S (A this) (B is (A a test))))", 4, 4),
    ("(S (A this) (B is not (A a test)))", 0, 4),  # another number of words
    ("", 0, 0),
]


def f1(guess, gold):
    return labelled_f1([guess], [[gold]]).score


@pytest.mark.parametrize("guess, matched, guessed", SAMPLE)
def test_evalb_s_examples(guess, matched, guessed):
    assert f1(guess, GOLD) == pytest.approx(200 * matched / (4 + guessed))
    beside = labelled_f1([GOLD, guess], [[GOLD]] * 2).score  # a wrong tree costs its brackets
    assert beside == pytest.approx(200 * (4 + matched) / (8 + 4 + guessed))


@pytest.mark.parametrize(
    "guess, gold, expected",
    [
        ("(S (ADVP XX )ADVP XX )S", "(S (PRT XX )PRT XX )S", 100),
        (
            "(S (NP XX , )NP (VP XX . )VP )S",
            "(S (NP XX )NP , (VP XX )VP . )S",
            100,
        ),  # where punctuation hangs
        (
            "(S (NP XX XX )NP (VP XX )VP XX )S",
            "(S (NP XX )NP , (VP XX )VP . )S",
            100,
        ),  # and what it is called
        (
            "(S (NP XX )NP (PRN : )PRN (VP XX )VP )S",
            "(S (NP XX )NP : (VP XX )VP )S",
            100,
        ),  # nothing else in it
        ("(NP (NP XX )NP )NP", "(NP XX )NP", 200 / 3),  # one of two is matched
        ("(X (S XX )S )X", "(X (S (S XX )S )S )X", 80),
        ("(ROOT (S1 (S XX )S )S1 )ROOT", "(TOP (S XX )S )TOP", 100),
        ("(S (NP XX )NP XX )S", "(S (NP XX XX )NP )S", 50),
        ("(S (NP XX XX", "(S (NP XX XX )NP )S", 100),  # what is open ends at the end
        (")S ) (S (NP XX XX )NP )S", "(S (NP XX XX )NP )S", 100),  # nothing to close
        (
            "(S (NP The cat) , (VP sat --))",
            "(S (NP The cat ,) (VP sat) --)",
            100,
        ),  # references of words
        (
            "(S (NP The cat) (VP sat) .)",
            "(S (NP XX XX )NP (VP XX )VP . )S",
            100,
        ),  # one notation against the other
    ],
)
def test_by_hand(guess, gold, expected):
    assert f1(guess, gold) == pytest.approx(expected)


def test_counts_are_added_up_over_sentences_and_the_first_reference_counts():
    guesses, references = zip(*((guess, [GOLD, "(X this)"]) for guess, *_ in SAMPLE))
    matched, guessed = (sum(column) for column in list(zip(*SAMPLE))[1:])
    expected = 200 * matched / (4 * len(SAMPLE) + guessed)
    assert labelled_f1(guesses, references).score == pytest.approx(expected)
    assert corpus_scores(guesses, references, ["f1"]).scores == {"f1": pytest.approx(expected)}


def test_references_without_constituents_have_no_f1():
    with pytest.raises(
        TransductError, match="the references hold no constituent, so there is no F1; give trees"
    ):
        labelled_f1(["(S XX )S", "(S XX )S"], [["XX"], ["(TOP (NP . )NP )TOP"]])


def random_tree(draw, leaves, label="S"):
    """A tree over some of `leaves`, an iterator, until it is used up."""
    children = []
    for tag in leaves:
        children.append(Tree(tag, ("word",)))
        if draw.random() < 0.4:
            children.append(
                random_tree(draw, leaves, draw.choice(["NP", "VP", "PRT", "ADVP", "TOP"]))
            )
        if label != "S" and draw.random() < 0.4:
            break
    return Tree(label, tuple(children) or (Tree("NN", ("word",)),))


def spans(tree, gold_tags, start=0):
    """The constituents of a tree as sets of the words in them, in plain recursion; and the words
    passed."""
    if tree.is_tag:
        return Counter(), start + 1
    found, place = Counter(), start
    for child in tree.children:
        inside, place = spans(child, gold_tags, place)
        found += inside
    words = tuple(i for i in range(start, place) if gold_tags[i] not in [",", ":", "``", "''", "."])
    if words and tree.label != "TOP":
        found["ADVP" if tree.label == "PRT" else tree.label, words] += 1
    return found, place


def test_another_implementation_agrees():
    draw, matched, total, guesses, golds = random.Random(1), 0, 0, [], []
    while len(golds) < 300:
        tags = draw.choices(["NN", "DT", ",", "."], k=draw.randint(2, 8))
        guess, gold = (random_tree(draw, iter(tags)) for _ in range(2))
        tags = [tag for tag, _ in gold.leaves()]
        if len(tags) != len(list(guess.leaves())):
            continue
        left, right = spans(guess, tags)[0], spans(gold, tags)[0]
        matched, total = matched + (left & right).total(), total + left.total() + right.total()
        guesses.append(linearised(guess))
        golds.append([linearised(gold)])
    assert labelled_f1(guesses, golds).score == pytest.approx(200 * matched / total)
    assert 20 < 200 * matched / total < 90


def test_numbers_before_words_do_not_count():
    plain, numbered = "(S (NP XX )NP , (VP XX )VP . )S", "(S (NP #0XX )NP #1, (VP #2XX )VP #3. )S"
    assert read(plain) == read(numbered)
    assert read("(S #1 )S")[0] == ["#1"]
    assert (
        labelled_f1([numbered], [[plain]]).score
        == labelled_f1([plain], [[numbered]]).score
        == 100.0
    )
