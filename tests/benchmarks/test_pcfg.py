"""The grammar benchmark: it gives back what it was taught, and its best tree is the best there
is."""

import json
import math
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.pcfg import Grammar
from transduct.data.trees import Tree

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pcfg.py"
TREES = [
    "(S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT the) (NN man)) (PP (IN of) (NP (DT the) (NN "
    "town))))) (. .))",
    "(S (NP (PRP I)) (VP (VBD saw) (NP (DT the) (NN man)) (PP (IN in) (NP (NN town)))) (. .))",
    "(S (NP (NNP Ann)) (VP (VBD slept)) (. .))",
    "(S (NP (NP (NNP Ann)) (PP (IN of) (NP (NNP Rome)))) (VP (VBD called) (S (VP (VBG "
    "singing)))) (. .))",
]


@pytest.fixture(scope="module")
def grammar():
    return Grammar([Tree.parse(text) for text in TREES])


def untagged(tree):
    return Tree(
        tree.label, tuple(c.children[0] if c.is_tag else untagged(c) for c in tree.children)
    )


@pytest.mark.parametrize("text", TREES)
def test_it_gives_back_the_trees_it_was_taught(grammar, text):
    tree = Tree.parse(text)
    assert grammar.parse([word for _, word in tree.leaves()])[0] == untagged(tree)


def test_words_tell_attachments_apart_and_shapes_stand_for_unknown_words(grammar):
    found, _ = grammar.parse(["Bob", "filled", "the", "hall", "of", "Rome", "."])
    assert str(found) == "(S (NP Bob) (VP filled (NP (NP the hall) (PP of (NP Rome)))) .)"


def test_a_sentence_without_a_tree_is_flat(grammar):
    tree, score = grammar.parse(["."])
    assert (str(tree), score) == ("(S .)", -math.inf)


def likeliest(grammar, words):
    """The log-probability of the likeliest derivation, by its definition."""
    rules = list(
        zip(grammar.made, grammar.first, grammar.second, grammar.log_probability, strict=True)
    )

    @cache
    def best(symbol, start, end):
        if end - start == 1:
            return float(grammar.emissions(words[start])[symbol])
        ways = [
            score + best(first, start, middle) + best(second, middle, end)
            for made, first, second, score in rules
            if made == symbol
            for middle in range(start + 1, end)
        ]
        return max(ways, default=-math.inf)

    return max(best(symbol, 0, len(words)) + score for symbol, score in enumerate(grammar.root))


def test_the_tree_found_is_the_likeliest(grammar):
    draw, found = random.Random(1), []
    for _ in range(30):
        words = draw.choices(sorted(grammar.words), k=draw.randint(2, 6))
        tree, score = grammar.parse(words)
        assert score == pytest.approx(likeliest(grammar, words), abs=1e-3)
        assert [word for _, word in tree.leaves()] == words
        found.append(score)
    assert 0 < sum(map(math.isfinite, found)) < 30


def test_the_program_prints_one_line_of_json(tmp_path):
    (tmp_path / "trees.mrg").write_text("".join(f"({text})\n" for text in TREES))
    call = [
        sys.executable,
        SCRIPT,
        "--train",
        tmp_path / "trees.mrg",
        "--test",
        tmp_path / "trees.mrg",
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=SCRIPT.parents[1])
    found = json.loads(done.stdout)
    assert found | {"seconds": 0} == {"f1": 100.0, "sentences": 4, "seconds": 0}
