"""Made-up corpora by name: packages add them as entry points `transduct.corpora`. Those of the
recipes are in `transduct_corpora`, which is installed with this package.

A hash of the source text decides which part of a corpus it belongs to, so no source of `valid` or
`test` is ever in `train`. `valid` and `test` hold each source once; `train` repeats sources as they
are drawn, so that short ones, which are few (there are ten numbers of one digit), are seen often.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np

from transduct.added import added
from transduct.errors import TransductError, require
from transduct.records import refuse_if

Part = Literal["train", "valid", "test"]
Pair = tuple[str, str]
Texts = tuple[str, ...]  # a row: a pair in most corpora
Kind = TypeVar("Kind")

MOST = 1_000_000  # every part of every corpus has more sources, so drawing distinct ones ends


@dataclass(frozen=True)
class TextCorpus:
    """Rows of texts.

    Attributes:
        draw: makes a row, by these random numbers alone.
        width: the number of texts in a row.
    """

    draw: Callable[[Random], Texts]
    width: int = 2


@dataclass(frozen=True)
class PictureCorpus:
    """Pictures with captions.

    Attributes:
        generate: the first pictures of a part, with their captions: their number, the part and
            their side in pixels -> captions and pictures (side, side, 3).
        scores: the score `attributes_right` of pictures made for captions: the percentage of those
            that show just what their captions say.
        require: raises MissingExtra where a library that `scores` needs is not installed.
    """

    generate: Callable[[int, Part, int], Iterator[tuple[str, np.ndarray]]]
    scores: Callable[[Any, Any], Any]
    require: Callable[[], object]


def find_corpus(name: str, kind: type[Kind]) -> Kind:
    """The corpus of this name that a package has added.

    Raises:
        TransductError: there is none of this kind.
    """
    entries = added("corpora")
    found = entries[name].load() if name in entries else None
    if isinstance(found, kind):
        return found
    known = ", ".join(each for each in entries if isinstance(entries[each].load(), kind))
    remedy = f"known are: {known}" if known else "run pip install --editable . to install some"
    raise TransductError(f"no generated corpus is called '{name}'; {remedy}")


def generate(name: str, count: int, part: Part = "train") -> Iterator[Texts]:
    """Generate the first `count` rows of a part of a corpus, by its name.

    Raises:
        TransductError: the name is unknown, or `count` is larger than any part is sure to hold.
    """
    made = find_corpus(name, TextCorpus)
    require(count <= MOST, f"cannot generate {count:,} pairs of '{name}'; ask for at most {MOST:,}")
    return islice(_sampled(made.draw, part, Random(f"{name} {part}")), count)


def check_generated(source: Any, kind: type[Any], what: str) -> None:
    """Check `generate` of a corpus in a recipe, and `count` and `part`, which go with it.

    Raises:
        ValueError: there is no such corpus, one of them is given without it, or `count` is missing;
            `what` it counts is named.
    """
    if source.generate is not None:
        try:
            find_corpus(source.generate, kind)
        except TransductError as error:
            raise ValueError(f"generate: {error}") from error
    refuse_if(
        (source.generate is not None) != (source.count > 0),
        f"count is {source.count}; give how many {what} to generate, only with generate",
    )
    refuse_if(
        source.part != "train" and source.generate is None,
        f"part is '{source.part}'; give it only with generate",
    )


def _sampled(draw: Callable[[Random], Texts], part: Part, random: Random) -> Iterator[Texts]:
    seen: set[str] = set()
    while True:
        row = draw(random)
        source = "\t".join(row[:-1])
        if source not in seen and part_of(source) == part:
            if part != "train":
                seen.add(source)
            yield row


def part_of(source: str) -> Part:
    """The part that a source text belongs to: one in twenty is for validation, another for
    testing."""
    parts: dict[int, Part] = {0: "valid", 1: "test"}
    return parts.get(crc32(source.encode()) % 20, "train")
