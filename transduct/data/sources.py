"""What a recipe says of its text: where it is read from, what is changed in it, and how much of it is taken."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from transduct.data.files import check_section, check_weight
from transduct.data.samples import CORPORA, WIDTHS, Pair, Part
from transduct.data.trees import VIEWS

FORMATS = (".tsv", ".jsonl", ".parquet")
COMPRESSIONS = (".gz", ".xz", ".zst")
METRICS, BLEU_TOKENIZER = ("bleu", "chrf", "ter", "exact_match"), "13a"  # that a translator is scored by


@dataclass(frozen=True)
class TextSource:
    """One corpus, by exactly one of: aligned files (`source`, `target`), files whose lines hold all of a row (`pairs`),
    lines of `text`, bracketed `trees`, or a generated one.

    Attributes:
        source: files of sentences, one a line: line i of each is translated by line i of its `target`.
        target: as many files.
        pairs: TSV, JSONL or Parquet files, told by their endings.
        text: files of text alone, for tasks that want one text a row.
        trees: files of trees in brackets, as the Penn Treebank has them.
        columns: what to read from `pairs`, the source first: numbers from 0 or, where the first line is a header, names
            for TSV; keys for JSONL and Parquet ("translation.de" is the field de of translation). Of trees it names
            views: words, tags, brackets. Where it is not given: columns 0 and 1, source and target, words and brackets.
        alternatives: whether every column of a TSV line from the target on, save the source, is a reference.
        generate: a generated corpus: number_names, copy, reverse, sort, brackets, seen_before, spans.
        part: of a generated corpus; no row is in two of them.
        count: how many rows are generated.
        weight: how often an epoch shows each row; 1.5 shows each once, and half of them twice.
    """

    source: str | list[str] = field(default_factory=list)
    target: str | list[str] = field(default_factory=list)
    pairs: str | list[str] = field(default_factory=list)
    text: str | list[str] = field(default_factory=list)
    trees: str | list[str] = field(default_factory=list)
    columns: list[str] | list[int] | None = None
    alternatives: bool = False
    generate: str | None = None
    part: Part = "train"
    count: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        sources, targets, pairs = listed(self.source), listed(self.target), listed(self.pairs)
        kinds = {"source": sources or targets, "pairs": pairs, "text": self.text, "trees": self.trees}
        found = [name for name, given in {**kinds, "generate": self.generate}.items() if given]
        if len(found) != 1:
            also = f"; found {' and '.join(found)} (source=[] takes one away)" if found else ""
            raise ValueError(f"give source and target, or pairs, text, trees or generate: exactly one of them{also}")
        if len(sources) != len(targets):
            raise ValueError(f"found {len(sources)} source and {len(targets)} target files; give as many of each")
        if self.generate is not None and self.generate not in CORPORA:
            raise ValueError(f"generate: no corpus '{self.generate}'; known are: {', '.join(CORPORA)}")
        if (self.generate is not None) != (self.count > 0):
            raise ValueError(f"count is {self.count}; give how many pairs to generate, only with generate")
        if self.part != "train" and self.generate is None:
            raise ValueError(f"part is '{self.part}'; give it only with generate")
        check_weight(self.weight)
        tabular = {ending(name)[0] for name in pairs} == {".tsv"}
        if self.columns is not None:
            if not (pairs or self.trees) or not self.columns:
                raise ValueError(f"columns is {self.columns}; name those to read, only with pairs or trees")
            if pairs and any(isinstance(column, int) and (column < 0 or not tabular) for column in self.columns):
                raise ValueError(f"columns is {self.columns}; numbers count the columns of .tsv files from 0")
            if self.trees and (unknown := [column for column in self.columns if column not in VIEWS]):
                raise ValueError(f"columns: trees have no '{unknown[0]}'; they have: {', '.join(VIEWS)}")
        if self.alternatives and not (tabular and self.width == 2):
            raise ValueError("alternatives reads further columns as references, which only .tsv files have")

    @property
    def width(self) -> int:
        """How many texts a row has; with `alternatives` it may have more."""
        if self.generate is not None:
            return WIDTHS.get(self.generate, 2)
        return 1 if self.text else len(self.columns or (0, 1))

    def files(self) -> list[str]:
        """The files the corpus is read from, as the recipe names them."""
        named = (self.source, self.target, self.pairs, self.text, self.trees)
        return [name for names in named for name in listed(names)]


@dataclass(frozen=True)
class Replacement:
    """A regular expression and what takes the place of its matches, in each text of a side as it is read.

    Attributes:
        side: whose texts are changed.
        pattern: a regular expression of Python's.
        by: what takes the place of each match; "\\1" is its first group.
        cycle: if not 0, "{n}" in `by` is the number of the match in its text, from 0 and modulo `cycle`.
    """

    side: Literal["source", "target", "both"]
    pattern: str
    by: str = ""
    cycle: int = 0

    def __post_init__(self) -> None:
        if self.cycle < 0:
            raise ValueError(f"cycle is {self.cycle}; give at least 1, or 0 to count nothing")
        try:
            (self.pattern + self.by).encode()
            pattern = re.compile(self.pattern)
            for template in self._templates:
                pattern.sub(template, "")  # where nothing matches too, a mistake in it is found
        except (re.error, IndexError, OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise ValueError(f"cannot replace '{self.pattern}' by '{self.by}': {error}") from error

    @property
    def function(self) -> Callable[[str], str]:
        """The replacement as a function of a text."""
        pattern, templates = re.compile(self.pattern), self._templates
        if not self.cycle:
            return partial(pattern.sub, self.by)

        def numbered(text: str) -> str:
            numbers = count()
            return pattern.sub(lambda match: str(next(numbers) % self.cycle).join(map(match.expand, templates)), text)

        return numbered

    @property
    def _templates(self) -> list[str]:
        """The parts of `by` around the numbers: a number right after "\\1" is no part of the group's."""
        return self.by.split("{n}") if self.cycle else [self.by]


@dataclass(frozen=True)
class DataConfig:
    """The `data` section of a recipe for parallel text.

    Attributes:
        max_length: the most tokens of a side, its end of sentence counted; longer pairs are left out.
        max_ratio: how many times longer one side may be (0: no bound; 9 is the bound of the Moses scripts).
        drop_duplicates: whether of equal pairs only the first is trained on.
        replace: changes of the text as it is read, in this order; a model keeps those of the source for its inputs.
        backwards: whether the target is written from its last token to its first; where such a model and others decide
            together (`ensemble`), the first and those that write as it does search, and the rest score what was found.
        held_out: takes that many pairs, each with a source of its own, out of `train` to validate on, and leaves out of
            it every pair that shares a source or a target with one of them.
        metrics: what `evaluate` scores: bleu, chrf, ter, exact_match, word_error_rate (outputs that equal no reference,
            as of pronunciations), token_error_rate, f1 (of trees).
        bleu_tokenize: sacrebleu's tokenizer for BLEU, such as 13a, intl, char, zh, ja-mecab.
    """

    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    root: str = "."
    max_length: int = 256
    max_ratio: float = 9.0
    drop_duplicates: bool = True
    replace: list[Replacement] = field(default_factory=list)
    backwards: bool = False
    held_out: int = 0
    workers: int = 1
    metrics: list[str] = field(default_factory=lambda: [*METRICS])
    bleu_tokenize: str = BLEU_TOKENIZER

    def __post_init__(self) -> None:
        check_section(self)
        corpora = [*self.train, *filter(None, (self.valid, self.test))]
        if wrong := [corpus for corpus in corpora if corpus.width != 2]:
            raise ValueError(f"a corpus gives {wrong[0].width} texts a row; a translation has 2: source and target")
        if any(corpus.alternatives for corpus in self.train):
            raise ValueError("alternatives are references to be measured against; in train a row has one target")
        if self.max_length < 2:
            raise ValueError(f"max_length is {self.max_length}; give at least 2, for a token and the end")
        if self.max_ratio != 0 and not self.max_ratio >= 1:
            raise ValueError(f"max_ratio is {self.max_ratio}; give at least 1, or 0 for no bound")
        if self.held_out < 0 or (self.held_out and self.valid):
            raise ValueError(f"held_out is {self.held_out}; give at least 0, and 0 where valid is given")


def changed(pairs: list[Pair], replace: Sequence[Replacement]) -> list[Pair]:
    """The pairs with all replacements made."""
    if not replace:
        return pairs
    source, target = changes_of("source", replace), changes_of("target", replace)
    return [(source(text), target(translation)) for text, translation in pairs]


def changes_of(side: str, replace: Sequence[Replacement]) -> Callable[[str], str]:
    """All replacements of one side as one function."""
    changes = [each.function for each in replace if each.side in (side, "both")]

    def change(text: str) -> str:
        for function in changes:
            text = function(text)
        return text

    return change


def ending(name: str) -> tuple[str, str]:
    """The format and the compression (or nothing) that a file's name ends in."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    if not suffixes or suffixes[-1] not in FORMATS:
        further = f"{', '.join(FORMATS)}, or one of these and {', '.join(COMPRESSIONS)}"
        raise ValueError(f"pairs: '{name}' has an unknown ending; expected {further}")
    return suffixes[-1], compression


def listed(names: str | list[str]) -> list[str]:
    """One name, or several, as a list."""
    return [names] if isinstance(names, str) else names
