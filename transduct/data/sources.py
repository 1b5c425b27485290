"""The records of a recipe that say where text comes from and what is left out of it."""

from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Annotated, Any

from transduct.data.files import DataSection, Weight, corpora
from transduct.data.places import matching
from transduct.data.replacements import Replacement
from transduct.data.samples import Part, TextCorpus, check_generated, find_corpus
from transduct.data.trees import VIEWS
from transduct.errors import require
from transduct.records import Checked, Count, Range, refuse_if

DOCUMENTS = (".tmx", ".xlf", ".xliff", ".po")
# what to do with files of other endings
INSTEAD = {
    ".json": "write JSON lines, one object a line, to a file named .jsonl",
    ".ndjson": "name it .jsonl",
    ".pq": "name it .parquet",
    ".xlsx": "save it as .csv",
    ".txt": "name a table .tsv; give aligned text with --source FILE --target FILE",
}
FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", *DOCUMENTS)
COMPRESSIONS = (".gz", ".xz", ".zst")
# The defaults of translation; models of version 0.1 name a tokenizer of their own.
METRICS, BLEU_TOKENIZER = ("bleu", "chrf", "ter", "exact_match"), "auto"


KINDS = ("source", "target", "pairs", "text", "trees")  # of files of a corpus


@dataclass(frozen=True)
class TextSource(Checked):
    """One corpus, given as exactly one of: aligned files (`source` and `target`), files with a
    whole row on each line (`pairs`), plain `text`, bracketed `trees`, or a generated corpus
    (`generate`).

    Attributes:
        source: files of sentences, one per line; line i is translated by line i of the
            corresponding `target` file. For translation, a name may also be a pattern (`de/*.gz`),
            a folder of files of pairs (`pairs/`), or an address (`https://`, `s3://`, `gs://`,
            `hf://`).
        target: as many files as `source`.
        pairs: TSV, CSV, JSONL, Parquet, TMX, XLIFF or PO files, recognised by their endings.
        text: files with one text per line, for tasks that read one text per row.
        trees: files of bracketed trees, one per line, as in the Penn Treebank.
        columns: the columns to read from `pairs`, the source first. For TSV and CSV: numbers from
            0, or names if the first line is a header. For JSONL and Parquet: keys ("translation.de"
            is the field `de` of `translation`). For TMX: languages. For trees: words, tags or
            brackets. Default: columns 0 and 1; source and target; words and brackets.
        alternatives: whether the TSV columns to the right of the target, save the source, hold more
            references.
        generate: a generated corpus: number_names, copy, reverse, sort, brackets, seen_before,
            spans, or one that another package adds.
        part: the part of a generated corpus; no row is in two of them.
        count: the number of rows to generate.
        weight: how often an epoch shows each row; 1.5 shows every row once and half of the rows
            twice.
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
    count: Count = 0
    weight: Weight = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        sources, targets, pairs = listed(self.source), listed(self.target), listed(self.pairs)
        kinds = {
            "source": sources or targets,
            "pairs": pairs,
            "text": self.text,
            "trees": self.trees,
        }
        present = [name for name, value in {**kinds, "generate": self.generate}.items() if value]
        if len(present) != 1:
            also = f"; found {' and '.join(present)} (source=[] takes one away)" if present else ""
            raise ValueError(
                "give source and target, or pairs, text, trees or generate: exactly one of "
                f"them{also}"
            )
        refuse_if(
            len(sources) != len(targets),
            f"found {len(sources)} source and {len(targets)} target files; give as many of each",
        )
        check_generated(self, TextCorpus, "pairs")
        named = [name for name in pairs if not name.endswith("/")]
        tabular = bool(named) and {ending(name)[0] for name in named} <= {".tsv", ".csv"}
        if self.columns is not None:
            refuse_if(
                not (pairs or self.trees) or not self.columns,
                f"columns is {self.columns}; name those to read, only with pairs or trees",
            )
            refuse_if(
                pairs
                and any(
                    isinstance(column, int) and (column < 0 or not tabular)
                    for column in self.columns
                ),
                f"columns is {self.columns}; numbers count the columns of .tsv and .csv from 0",
            )
            unknown = [f"'{column}'" for column in self.columns if column not in VIEWS]
            refuse_if(
                self.trees and unknown,
                f"columns: trees have no {' and '.join(unknown)}; they have: {', '.join(VIEWS)}",
            )
        refuse_if(
            self.alternatives and not (tabular and self.width == 2),
            "alternatives reads further columns as references, which only .tsv and .csv files have",
        )

    @property
    def width(self) -> int:
        """The number of texts in a row, further references of `alternatives` not counted."""
        if self.generate is not None:
            return find_corpus(self.generate, TextCorpus).width
        return 1 if self.text else len(self.columns or (0, 1))

    def files(self) -> list[str]:
        """The files of the corpus, by their names in the recipe."""
        return [name for kind in KINDS for name in listed(vars(self)[kind])]

    def expanded(self, root: Path) -> "TextSource":
        """The same corpus, with the files that its patterns and folders stand for.

        Raises:
            TransductError: no file matches, or not as many of each side.
        """
        files = {
            kind: [each for name in listed(vars(self)[kind]) for each in _matching(root, name)]
            for kind in KINDS
        }
        if [*chain.from_iterable(files.values())] == self.files():
            return self
        left, right = len(files["source"]), len(files["target"])
        require(
            left == right,
            f"the patterns match {left} source and {right} target files; give as many of each",
            file=", ".join(self.files()),
        )
        changes: dict[str, Any] = files
        return replace(self, **changes)


def _matching(root: Path, name: str) -> list[str]:
    """The files that a name stands for; of a folder, those of pairs."""
    if not name.endswith("/"):
        return matching(root, name)
    return [each for each in matching(root, f"{name}**/*") if is_table(each)]


@dataclass(frozen=True)
class FiltersConfig(Checked):
    """Which pairs of a corpus to leave out; the `data.filters` section.

    All are off by default in a recipe; `transduct filter` turns on those that a recipe leaves off
    if it leaves off all.

    Attributes:
        language: pairs with a text of more than 20 letters in another language than its side's.
        swapped: pairs whose source is in the language of the target, and the other way round.
        script: pairs with a text most of whose letters are of another script.
        length_ratio: pairs with one side so many times longer than the other, in bytes; 0 for no
            bound.
        copied: pairs of two equal texts, up to case and white space.
        untranslated: pairs whose target keeps most words of its source.
        markup: pairs with tags or entities of HTML.
        mojibake: pairs with text that was read in a wrong encoding.
        misaligned: pairs of a run of lines that fit their neighbours better.
        near_duplicates: pairs that are so similar to an earlier one, as a share of what the two
            have in common (Jaccard); 0 for no bound.
        unlikely: pairs whose dual conditional cross-entropy by two `models` is more nats a token
            than this (Junczys-Dowmunt 2018); 0 for no bound.
        models: two translation models for it, from source to target and back.
    """

    language: bool = False
    swapped: bool = False
    script: bool = False
    length_ratio: Annotated[float, Range(1, also=0, why="0 is no bound")] = 0.0
    copied: bool = False
    untranslated: bool = False
    markup: bool = False
    mojibake: bool = False
    misaligned: bool = False
    near_duplicates: Annotated[float, Range(0.5, 1, also=0, why="0 is no bound")] = 0.0
    unlikely: Annotated[float, Range(0, why="0 is no bound")] = 0.0
    models: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            len(self.models) != 2 * bool(self.unlikely),
            f"unlikely is {self.unlikely:g} and models names {len(self.models)}; name two models, "
            "from source to target and back, with a bound such as 5.0, or neither",
        )

    @classmethod
    def all(cls) -> "FiltersConfig":
        """All filters but the models', as `transduct filter` uses them."""
        return cls(*(True,) * 3, 3.0, *(True,) * 5, 0.8)

    @property
    def names(self) -> list[str]:
        """The filters that are on, in the order in which they are asked."""
        return [name for name, value in vars(self).items() if value and name != "models"]

    def check_languages(self, languages: tuple[str, str] | None) -> None:
        """Refuse filters that need languages where these are unknown.

        Raises:
            ValueError: they are.
        """
        asked = [name for name in ("language", "swapped", "script") if getattr(self, name)]
        refuse_if(
            asked and languages is None,
            f"filters.{''.join(asked[:1])} needs to know the languages; set data.source_language "
            "and data.target_language",
        )


@dataclass(frozen=True)
class DataConfig(DataSection):
    """The `data` section of a recipe for parallel text.

    Attributes:
        max_length: the maximum number of tokens of a side, including its end of sentence; longer
            pairs are dropped.
        max_ratio: pairs with one side more than this many times longer than the other are dropped;
            0 for no bound. The default is that of the Moses scripts.
        drop_duplicates: whether only the first of several equal pairs is trained on. Here and in
            `held_out`, texts are equal if they differ only in white space or in their Unicode form.
        replace: changes made to the text as it is read, in this order; the model applies those of
            the source to its inputs too.
        backwards: whether the model writes the target from its last token to its first. In an
            `ensemble`, the first model and those of the same direction search; the others score the
            hypotheses found.
        held_out: the number of pairs, with distinct sources, taken out of `train` for validation.
            Pairs that share a source or a target with one of them are dropped from `train`.
        drop_validation: whether training pairs that share a source or a target with `valid` or
            `test` are dropped too. If not, a line says how many of these are in training.
        filters: further pairs to leave out of `train`.
        metrics: the scores of `evaluate` and, but for ter, of validation. There are bleu, spbleu
            (over the pieces of flores200), chrf, chrf++, ter and exact_match. There are also
            word_error_rate (the share of outputs that equal no reference, as used for
            pronunciations), token_error_rate and f1 (of trees).
        bleu_tokenize: sacrebleu's tokenizer for BLEU, such as 13a, intl, char, zh or ja-mecab. With
            auto it is char for Japanese and Korean references, zh for Chinese ones, else 13a.
        source_language, target_language: the languages of a model of one pair, by any code or name,
            for a server of several models. By default they are the endings of files such as
            `train.en` and `train.de`.
        broken: `stop` at a row that is wrong, such as a line that is not UTF-8, or `skip` it.
        corpus: a folder that `transduct prepare` has made of this recipe, or its address; the files
            of `train` are not read then.
    """

    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    max_length: Annotated[int, Range(2, why="a token and the end")] = 256
    max_ratio: Annotated[float, Range(1, also=0, why="0 is no bound")] = 9.0
    drop_duplicates: bool = True
    replace: list[Replacement] = field(default_factory=list)
    backwards: bool = False
    held_out: Count = 0
    drop_validation: bool = False
    filters: FiltersConfig = field(default_factory=FiltersConfig)
    metrics: list[str] = field(default_factory=lambda: [*METRICS])
    bleu_tokenize: str = BLEU_TOKENIZER
    source_language: str = ""
    target_language: str = ""
    corpus: str | None = None

    @property
    def languages(self) -> tuple[str, str] | None:
        """The two languages, as they are given or as all training files end; None if either is
        unknown."""
        from transduct.data.languages import is_language

        def ending(name: str) -> str:
            """The last ending of a file that names a language; its compression does not."""
            endings = [each[1:] for each in PurePath(name).suffixes if is_language(each[1:])]
            return endings[-1] if endings else ""

        sides = [self.source_language], [self.target_language]
        if not any(map(any, sides)):
            sides = (
                [ending(name) for each in self.train for name in listed(each.source)],
                [ending(name) for each in self.train for name in listed(each.target)],
            )
        found = [{*side} for side in sides]
        if any(len(each) != 1 or not is_language(*each) for each in found):
            return None
        return found[0].pop(), found[1].pop()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_width(self, 2, "source and target")
        refuse_if(
            any(corpus.alternatives for corpus in self.train),
            "alternatives are references to be measured against; in train a row has one target",
        )
        refuse_if(
            self.held_out and self.valid,
            f"held_out is {self.held_out} and valid is given; set one of them",
        )
        if self.filters.names:
            self.filters.check_languages(self.languages)


def require_width(data: Any, width: int, remedy: str) -> None:
    """Check that every corpus of a `data` section has `width` texts a row.

    Raises:
        ValueError: a corpus has fewer or more; `remedy` ends the message.
    """
    for corpus in corpora(data):
        refuse_if(
            corpus.width != width,
            f"a corpus gives {corpus.width} texts a row, must be {width}: {remedy}",
        )


def ending(name: str) -> tuple[str, str]:
    """The format and the compression ("" if none) of a file of pairs, by its endings.

    Raises:
        ValueError: the format is unknown.
    """
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    if not suffixes or suffixes[-1] not in FORMATS:
        further = f"{', '.join(FORMATS)}, or one of these and {', '.join(COMPRESSIONS)}"
        further += "" if suffixes else "; of a folder, name the files"
        better = INSTEAD.get("".join(suffixes[-1:]), f"expected {further}")
        raise ValueError(f"pairs: '{name}' has an unknown ending; {better}")
    return suffixes[-1], compression


def is_table(name: str) -> bool:
    """Whether a file is one of pairs, by its ending."""
    try:
        return bool(ending(name))
    except ValueError:
        return False


def listed(names: str | list[str]) -> list[str]:
    """The names as a list, also if there is only one."""
    return [names] if isinstance(names, str) else names
