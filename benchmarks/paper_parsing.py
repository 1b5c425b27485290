"""Table 4 of "Attention Is All You Need" on your own treebank: a run that translates words to
trees, and a grammar.

Both use the training and test trees of the run's recipe and are scored by the same rules.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pcfg import Grammar, trees_of

import transduct
from transduct.config import Recipe
from transduct.data.sources import DataConfig, TextSource, listed
from transduct.data.trees import Tree
from transduct.errors import TransductError
from transduct.evaluation.text import labelled_f1
from transduct.predictors.translation import Translator
from transduct.records import record

# Table 4 as published: labelled F1 on section 23 of the Wall Street Journal.
PUBLISHED: list[tuple[str, str, float]] = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    ("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    ("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    ("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    ("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer (4 layers)", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]
VIEWS = ["words", "brackets"]  # a parser's input and output


@dataclass(frozen=True)
class Treebank:
    """The training trees, and the sentences to parse with their reference trees; none is empty."""

    train: list[Tree]
    sentences: list[str]
    references: list[list[str]]


@dataclass(frozen=True)
class Parsed:
    """A parser's trees, and the seconds it took."""

    parser: str
    trees: list[str] = field(repr=False)
    seconds: float


def treebank(run: Path, recipe: Recipe) -> Treebank:
    """The trees that a run's recipe names.

    Raises:
        TransductError: if it is not a parsing run, or its test trees cannot be read.
    """
    if recipe.task != "translation":
        raise TransductError(
            f"{run}: its task is {recipe.task}; give a run that translates words to trees"
        )
    data = record(DataConfig, recipe.data, "data")
    if data.test is None or not all(map(_is_of_trees, [*data.train, data.test])):
        raise TransductError(
            f"{run}: trained or tested on something else than words and brackets of trees; "
            "give a run such as recipes/wsj_parsing.yaml makes"
        )
    sentences, references = Translator.test_set({}, recipe)
    # an empty tree has no words
    tested = [number for number, sentence in enumerate(sentences) if sentence.strip()]
    paths = [Path(data.root) / name for source in data.train for name in listed(source.trees)]
    train = [tree for path in paths for tree in trees_of(path)]
    return Treebank(train, [sentences[i] for i in tested], [references[i] for i in tested])


def _is_of_trees(source: TextSource) -> bool:
    return bool(source.trees) and (source.columns or VIEWS) == VIEWS


def by_translation(run: Path, trees: Treebank) -> Parsed:
    """Parse the sentences with the run's model, decoding as its recipe says."""
    translator = transduct.load(run)
    started = time.perf_counter()
    found = translator.predict(trees.sentences)
    return Parsed("translation", found, time.perf_counter() - started)


def by_grammar(trees: Treebank) -> Parsed:
    """Parse the sentences with a grammar read off the training trees."""
    grammar = Grammar(trees.train)
    started = time.perf_counter()
    found = [str(grammar.parse(sentence.split())[0]) for sentence in trees.sentences]
    return Parsed("PCFG", found, time.perf_counter() - started)


def f1_of_groups(
    parsed: Parsed, references: Sequence[Sequence[str]], groups: Mapping[str, Sequence[int]]
) -> dict[str, float | None]:
    """Labelled F1 of each group of sentences; None if its references have no constituent."""
    return {
        name: _f1([parsed.trees[i] for i in chosen], [references[i] for i in chosen])
        for name, chosen in groups.items()
    }


def _f1(found: Sequence[str], references: Sequence[Sequence[str]]) -> float | None:
    try:
        return labelled_f1(found, references).score
    except TransductError:
        return None
