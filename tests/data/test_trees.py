"""Treebank trees: what is read is written back, cleaning keeps to its conventions, brackets never
fail."""

import random
import re

import pytest

from tests.refusals import refusal
from transduct.data.trees import VIEWS, Tree, bracketed, cleaned, linearised, read_tree

TREEBANK = (
    "((S (NP-SBJ-1 (NP (DT The) (NNS prices)) (, ,)"
    " (VP (VBN set) (NP (-NONE- *)) (PP=2 (IN by) (NP (PRP$ its) (NN rival)))) (, ,))"
    " (VP (VBD were) (VP (VBN cut) (NP-1 (-NONE- *-1)) (PRT|ADVP (RP back))"
    " (-LRB- -LRB-) (NP-TMP (NN today)) (-RRB- -RRB-))) (. .)))"
)
VIEWED = {
    "words": "The prices , set by its rival , were cut back -LRB- today -RRB- .",
    "tags": "DT NNS , VBN IN PRP$ NN , VBD VBN RP -LRB- NN -RRB- .",
    "brackets": "(S (NP (NP XX XX )NP , (VP XX (PP XX (NP XX XX )NP )PP )VP , )NP"
    " (VP XX (VP XX (PRT XX )PRT XX (NP XX )NP XX )VP )VP . )S",
}


def read(*lines, views=tuple(VIEWS)):
    return [read_tree(line, views) for line in lines]


def random_tree(draw, depth=4):
    """A clean tree: constituents over constituents and tags."""
    children = []
    for _ in range(draw.randint(1, 3)):
        if depth and draw.random() < 0.5:
            children.append(random_tree(draw, depth - 1))
        else:
            children.append(Tree(draw.choice(["NN", "DT", ",", "."]), (draw.choice("abc,."),)))
    return Tree(draw.choice(["S", "NP", "VP"]), tuple(children))


def test_the_views_of_a_tree():
    assert read(TREEBANK) == [list(VIEWED.values())]
    assert (
        read(TREEBANK, TREEBANK, views=["tags", "words"]) == [[VIEWED["tags"], VIEWED["words"]]] * 2
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("((S (NP (NN a))))", "(S (NP (NN a)))"),
        ("(S (NP (NN a)))", "(S (NP (NN a)))"),
        ("( (S (NN a)) (. .) )", "(TOP (S (NN a)) (. .))"),  # two under the root
        ("((NN a))", "(TOP (NN a))"),  # a word is not yet a constituent
        ("(NN a)", "(TOP (NN a))"),
        (
            "((S (NP-SBJ (-NONE- *)) (VP (VB go) (S (NP (-NONE- *)) (VP (-NONE- *))))))",
            "(S (VP (VB go)))",
        ),
        ("((S (NP (-NONE- 0))))", None),
        ("(-NONE- 0)", None),
        ("((-NONE- 0))", None),
        ("((X-1 (SYM *-1)))", "(X (SYM *-1))"),
        (
            "((PRN (-LRB- -LCB-) (WP$ whose) (-RRB- -RCB-)))",
            "(PRN (-LRB- -LCB-) (WP$ whose) (-RRB- -RCB-))",
        ),
        ("((-X- (NN a)))", "(-X- (NN a))"),  # no label is cut away altogether
    ],
)
def test_cleaning(text, expected):
    tree = cleaned(Tree.parse(text))
    assert (None if tree is None else str(tree)) == expected
    if tree is not None:
        assert cleaned(tree) == tree


def test_a_tree_of_nothing_but_traces_gives_empty_texts():
    assert read("((S (-NONE- *)))") == [["", "", ""]]


def test_trees_are_written_as_they_are_read():
    draw = random.Random(1)
    for _ in range(200):
        tree = random_tree(draw)
        assert Tree.parse(str(tree)) == cleaned(tree) == tree
        # more blanks than there must be
        assert Tree.parse(re.sub(r"([()])", r" \1", str(tree))) == tree


def test_a_linearised_tree_with_its_words_is_the_tree_again():
    draw = random.Random(2)
    for _ in range(200):
        tree = random_tree(draw)
        words = [word for _, word in tree.leaves()]
        assert bracketed(linearised(tree), words) == str(untagged(tree))


def untagged(tree):
    return Tree(
        tree.label, tuple(c.children[0] if c.is_tag else untagged(c) for c in tree.children)
    )


@pytest.mark.parametrize(
    "linear, words, expected",
    [
        ("(S (NP XX XX )NP (VP XX )VP . )S", "The cat sat .", "(S (NP The cat) (VP sat) .)"),
        (
            "(S (NP XX XX )NP (VP XX )VP . )S",
            "The cat sat",
            "(S (NP The cat) (VP sat))",
        ),  # a word too few
        ("(S (NP XX XX )NP (VP XX )VP . )S", "It is", "(S (NP It is))"),
        ("(S (NP XX )NP (VP XX )VP )S", "It is so .", "(S (NP It) (VP is) so .)"),  # words too many
        ("(S (NP XX (VP XX", "It is", "(S (NP It (VP is)))"),  # never closed
        (")S (S XX )NP )VP", "It is", "(S It is)"),  # nothing to close
        ("(S XX )S (NP XX )NP", "It is so", "(TOP (S It) (NP is) so)"),  # trees beside each other
        ("(S (NP )NP XX )S", "It", "(S It)"),  # an empty constituent
        ("", "It is", "(TOP It is)"),
        ("", "", ""),
        ("(S XX )S", "", ""),
        (
            " ".join(["(S"] * 5000 + ["XX"]),
            "It",
            "(S " * 5000 + "It" + ")" * 5000,
        ),  # as deep as may be
        ("(S XX XX )S", ":-( f(x)", "(S :--LRB- f-LRB-x-RRB-)"),
    ],
)
def test_brackets_around_words(linear, words, expected):
    assert bracketed(linear, words.split()) == expected


def test_brackets_hold_all_words_in_order_whatever_the_tokens_say():
    draw = random.Random(3)
    for _ in range(2000):
        tokens = draw.choices(
            ["(S", ")S", "(NP", ")NP", "XX", ".", "(", ")", "<unk>"], k=draw.randint(0, 12)
        )
        words = [str(number) for number in range(draw.randint(1, 6))]
        tree = Tree.parse(bracketed(" ".join(tokens), words))
        assert [word for _, word in tree.leaves()] == words


@pytest.mark.parametrize(
    "line, found",
    [
        ("((S (NN a))", "found 1 brackets that are not closed"),
        ("((S (NN a))))", "found a closing bracket too many"),
        ("((S (NP ) (NN a)))", r"found the empty bracket '\(NP\)'"),
        ("((S (NN a))) ((S (NN b)))", "found 2 words or trees beside each other"),
        ("", "found 0 words or trees beside each other"),
        ("word", "found 1 words or trees beside each other"),
        ("((S (NP a (NN b))))", "found the word 'a' without a tag of its own"),
        ("((S (NN a b)))", "found the word 'a' without a tag of its own"),
        ("(() (NN a))", r"found the empty bracket '\(\)'"),
        ("(S " * 5000 + "(NN a)" + ")" * 5000, "brackets too deep"),
    ],
    ids=lambda given: given[:50],
)
def test_a_line_that_is_no_tree_is_refused(line, found):
    with refusal(f"^{found}, expected one tree a line"):
        read(TREEBANK, line)
