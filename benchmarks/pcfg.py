"""A treebank grammar as the baseline for recipes/wsj_parsing.yaml, trained on the same trees.

python benchmarks/pcfg.py --train train.mrg.xz --test test.mrg.xz

A probabilistic context-free grammar with parent annotation and horizontal Markovisation (Klein and
Manning 2003). Words are generated from their tags, rare ones by their shape; CKY finds the
likeliest tree. Unary chains are collapsed into one symbol, "S+VP", so that every rule is binary.
Prints one line of JSON.
"""

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from transduct.data.lines import read_lines
from transduct.data.trees import ROOT, Tree, cleaned, linearised
from transduct.evaluation.text import labelled_f1

SIBLINGS = 1  # preceding siblings in an intermediate symbol (horizontal Markovisation)
RARE = 2  # words seen at most this often train the model of unknown words
STRENGTH = 2.0  # the weight of a prior distribution, as a number of observations
FLAT = "S"  # the label of the flat tree of a sentence that cannot be parsed


class Grammar:
    """A grammar counted from trees, with a CKY parser.

    A symbol is a chain of labels, "VP^S+NP", the first annotated with its parent, or an
    intermediate symbol of the binarisation of a constituent, "@VP^S|NP".
    """

    def __init__(self, trees: list[Tree]) -> None:
        self.roots: Counter[str] = Counter()
        self.rules: Counter[tuple[str, str, str]] = Counter()
        self.seen: Counter[tuple[str, str]] = Counter()  # (word, symbol) pairs
        for tree in trees:
            self.roots[self._count(tree, ROOT)] += 1
        self._index()
        self._learn_words()

    def _count(self, tree: Tree, parent: str) -> str:
        """Count the rules and words in a tree. Returns its symbol."""
        chain = [f"{tree.label}^{parent}"]
        while len(tree.children) == 1 and not tree.is_tag:
            parent, [tree] = tree.label, tree.constituents()
            chain.append(f"{tree.label}^{parent}")
        symbol = "+".join(chain)
        if tree.is_tag:
            self.seen[str(tree.children[0]), symbol] += 1
            return symbol
        children = [self._count(child, tree.label) for child in tree.constituents()]
        labels = [child.label for child in tree.constituents()]
        left = symbol
        for place, child in enumerate(children[:-2], 1):
            inner = "|".join([f"@{chain[-1]}", *labels[max(0, place - SIBLINGS) : place]])
            self.rules[left, child, inner] += 1
            left = inner
        self.rules[left, children[-2], children[-1]] += 1
        return symbol

    def _index(self) -> None:
        """Number the symbols and put the rules into arrays, sorted by their left-hand sides."""
        symbols = {symbol for rule in self.rules for symbol in rule} | {
            symbol for _, symbol in self.seen
        }
        self.symbols = sorted(symbols)
        self.number = {symbol: number for number, symbol in enumerate(self.symbols)}
        totals: Counter[str] = Counter()
        for (left, _, _), count in self.rules.items():
            totals[left] += count
        rules = sorted(
            (*(self.number[s] for s in rule), np.log(n / totals[rule[0]]))
            for rule, n in self.rules.items()
        )
        self.made, self.first, self.second = np.array([rule[:3] for rule in rules]).T
        self.log_probability = np.array([rule[3] for rule in rules], np.float32)
        self.root = np.full(len(self.symbols), -np.inf, np.float32)
        for symbol, count in self.roots.items():
            self.root[self.number[symbol]] = np.log(count / self.roots.total())

    def _learn_words(self) -> None:
        """Estimate P(symbol | word), smoothed by P(symbol | tag) P(tag | word), where P(tag | word)
        is smoothed by P(tag | shape)."""
        self.words: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.shapes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.counts: Counter[str] = Counter()
        for (word, symbol), count in self.seen.items():
            self.words[word][symbol] += count
            self.counts[symbol] += count
        self.tags = _by_tag(self.counts)
        for word, symbols in self.words.items():
            if symbols.total() <= RARE:
                for name in shapes(word):
                    self.shapes[name].update(_by_tag(symbols))

    def emissions(self, word: str) -> np.ndarray:
        """log P(word | symbol) for each symbol, up to a constant that depends on the word."""
        tags = {tag: count / self.tags.total() for tag, count in self.tags.items()}
        for name in reversed(shapes(word)):  # from the coarsest shape to the word itself
            if name in self.shapes:
                tags = _filled(self.shapes[name], tags, 1.0)
        seen = self.words[word] if word in self.words else Counter()
        tags = _filled(_by_tag(seen), tags, STRENGTH)
        scores = np.full(len(self.symbols), -np.inf, np.float32)
        for symbol, count in self.counts.items():
            tag = _tag(symbol)
            share = (seen[symbol] + STRENGTH * tags[tag] * count / self.tags[tag]) / (
                seen.total() + STRENGTH
            )
            scores[self.number[symbol]] = np.log(share / count)
        return scores

    def parse(self, words: list[str]) -> tuple[Tree, float]:
        """The likeliest tree (CKY), or a flat one if there is none, and its log-probability up to a
        constant that depends on the words."""
        length = len(words)
        chart = np.full((length, length + 1, len(self.symbols)), -np.inf, np.float32)
        for place, word in enumerate(words):
            chart[place, place + 1] = self.emissions(word)
        for width in range(2, length + 1):
            for start in range(length - width + 1):
                self._fill(chart, start, start + width)
        scores = chart[0, length] + self.root
        symbol = int(scores.argmax())
        if scores[symbol] == -np.inf:
            return Tree(FLAT, tuple(words)), -np.inf
        [tree] = self._tree(chart, words, symbol, 0, length)
        assert isinstance(tree, Tree)
        return tree, float(scores[symbol])

    def _fill(self, chart: np.ndarray, start: int, end: int) -> None:
        # (splits, symbols)
        left, right = (chart[start, start + 1 : end], chart[start + 1 : end, end])
        possible = np.flatnonzero(
            (left.max(0) > -np.inf)[self.first] & (right.max(0) > -np.inf)[self.second]
        )
        if len(possible):
            made = self.made[possible]
            scores = (left[:, self.first[possible]] + right[:, self.second[possible]]).max(0)
            places = np.flatnonzero(np.diff(made, prepend=-1))
            chart[start, end, made[places]] = np.maximum.reduceat(
                scores + self.log_probability[possible], places
            )

    def _tree(
        self, chart: np.ndarray, words: list[str], symbol: int, start: int, end: int
    ) -> list[Tree | str]:
        """The subtrees of the best derivation of a symbol over a span, as children of the enclosing
        constituent."""
        labels = [label.split("^")[0] for label in self.symbols[symbol].split("+")]
        if end - start == 1:
            children: list[Tree | str] = [words[start]]
            labels.pop()  # the tag
        else:
            rules = np.flatnonzero(self.made == symbol)
            left, right = chart[start, start + 1 : end], chart[start + 1 : end, end]
            scores = (
                left[:, self.first[rules]]
                + right[:, self.second[rules]]
                + self.log_probability[rules]
            )
            split, place = divmod(int(scores.argmax()), len(rules))
            middle, rule = start + 1 + split, rules[place]
            children = self._tree(chart, words, int(self.first[rule]), start, middle)
            children += self._tree(chart, words, int(self.second[rule]), middle, end)
        for label in reversed(labels):
            if not label.startswith("@"):  # an intermediate symbol is not a constituent
                children = [Tree(label, tuple(children))]
        return children


def _tag(symbol: str) -> str:
    return symbol.split("+")[-1].split("^")[0]


def _by_tag(symbols: Counter[str]) -> Counter[str]:
    tags: Counter[str] = Counter()
    for symbol, count in symbols.items():
        tags[_tag(symbol)] += count
    return tags


def _filled(counts: Counter[str], prior: dict[str, float], strength: float) -> dict[str, float]:
    """Relative frequencies smoothed by a prior that counts as `strength` observations."""
    return {
        name: (counts[name] + strength * share) / (counts.total() + strength)
        for name, share in prior.items()
    }


def shapes(word: str) -> list[str]:
    """Shapes for an unknown word, the most specific first."""
    shape = "".join(
        kind
        for kind, _ in groupby(
            re.sub("[0-9]", "0", re.sub("[a-z]", "x", re.sub("[A-Z]", "X", word)))
        )
    )
    return [f"{shape}/{word[-count:].lower()}" for count in (3, 2, 1)] + [shape]


def trees_of(path: Path) -> Iterator[Tree]:
    return filter(None, (cleaned(Tree.parse(line)) for line in read_lines(path)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    arguments = parser.parse_args()
    started = time.perf_counter()
    grammar = Grammar(list(trees_of(arguments.train)))
    trees = list(trees_of(arguments.test))
    guesses = [str(grammar.parse([word for _, word in tree.leaves()])[0]) for tree in trees]
    f1 = labelled_f1(guesses, [[linearised(tree)] for tree in trees]).score
    seconds = time.perf_counter() - started
    print(json.dumps({"f1": round(f1, 2), "sentences": len(trees), "seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main()
