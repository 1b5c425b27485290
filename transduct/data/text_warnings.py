"""Warnings about the texts that a model reads: what its vocabulary lacks, and text that another
program has cut already. Each is counted and comes once a run.

Apart from the tokenizer, so that the command line can count without importing it.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain

log = logging.getLogger("transduct")
# What other programs have done to a text already: a part of what shows it, which is found faster
# than the pattern; how it is undone; and how many texts are no accident.
DETOKENIZED = "undo it first, with: sacremoses -l LANGUAGE detokenize"
PREPROCESSED = (
    ("@@", "@@( |$)", "cut into subwords", "join it first, with: sed -E 's/@@( |$)//g'", 1),
    ("\u2581", "\u2581", "cut into SentencePiece's pieces", "decode it first, with spm_decode", 1),
    ("&", "&(apos|quot|amp|lt|gt|#124|#91|#93);", "escaped", DETOKENIZED, 1),
    ("@", "@[-,./]@", "cut at hyphens", DETOKENIZED, 1),
    (" .", r" \.$", "cut at full stops", DETOKENIZED, 100),
)
COMMON = 100  # a mark in one of so many texts is reported
UNKNOWN = 0  # the id of the unknown token in every vocabulary of ours
SHOWN = 8  # of what is unknown, the most frequent first


class TextWarnings:
    """What the vocabulary lacks of the texts of a run, and other warnings about them.

    Attributes:
        texts: how many texts hold something unknown.
        lost: characters, or words of a vocabulary of words, and how often each came.
        counts: by message, the numbers in it, and what to report of the first text.
    """

    def __init__(self) -> None:
        self.texts, self.lost = 0, Counter[str]()
        self.counts: dict[str, tuple[list[int], str]] = {}

    def add(self, lost: Sequence[Sequence[str]]) -> None:
        """Count what each text has lost."""
        for each in lost:
            self.texts += bool(each)
            self.lost.update(each)

    def count(self, message: str, numbers: Sequence[int], first: str = "") -> None:
        """Count texts of which a message holds, such as "%d of %d texts are empty"; one that ends
        before the report of the `first` text is for several."""
        before, reported = self.counts.get(message, ([0] * len(numbers), ""))
        self.counts[message] = [a + b for a, b in zip(before, numbers)], reported or first

    def merge(self, other: "TextWarnings") -> None:
        """Count what another has counted."""
        self.texts += other.texts
        self.lost.update(other.lost)
        for message, numbers in other.counts.items():
            self.count(message, *numbers)

    def warn(self, quiet: bool = False) -> None:
        """Log the warnings; if `quiet`, none of what is unknown."""
        for message, (numbers, first) in self.counts.items():
            if first:
                lead = "a text of" if numbers == [1] else message % tuple(numbers)
                log.warning("%s %s", lead, first)
            elif numbers[0]:
                log.warning(message, *numbers)
        if self.lost and not quiet:
            some = [repr(each)[:40] for each, _ in self.lost.most_common(SHOWN)]
            log.warning(
                "%d unknown characters or words in %d texts, which the model cannot read: %s",
                self.lost.total(),
                self.texts,
                " ".join(some + ["..."] * (len(self.lost) > SHOWN)),
            )


class Preprocessed:
    """Counts the texts that are cut or escaped already.

    Args:
        what: what they are called.
    """

    def __init__(self, what: str) -> None:
        self.what, self.read, self.found = what, 0, dict[str, tuple[int, str]]()

    def add(self, texts: Iterable[str]) -> None:
        """Count texts, and keep what shows it in the first."""
        for text in texts:
            self.read += 1
            for hint, pattern, done, *_ in PREPROCESSED:
                if hint in text and (match := re.search(pattern, text)):
                    count, shown = self.found.get(done, (0, match[0].strip()))
                    self.found[done] = count + 1, shown

    def warnings(self) -> Iterator[str]:
        """A line for each kind that is no exception."""
        for *_, done, remedy, least in PREPROCESSED:
            count, shown = self.found.get(done, (0, ""))
            if count >= least and count * COMMON >= self.read:
                yield (
                    f"{count:,} of {self.read:,} {self.what} hold '{shown}': such text is {done} "
                    f"already; {remedy}"
                )


class UnknownRate:
    """The rate of lines with unknown tokens in a corpus, for its report.

    Args:
        lines: what they are called.
    """

    def __init__(self, lines: str) -> None:
        self.lines, self.read, self.found = lines, 0, 0

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Count lines, given as ids."""
        for ids in rows:
            self.read += 1
            self.found += UNKNOWN in ids

    def __str__(self) -> str:
        """The end of the report; nothing if nothing is unknown."""
        percent = 100 * self.found / max(self.read, 1)
        report = f"; unknown tokens in {max(percent, 0.1):.1f} % of {self.lines}"
        return report if self.found else ""


RUN: ContextVar[TextWarnings | None] = ContextVar("RUN", default=None)


@contextmanager
def _counting() -> Iterator[TextWarnings]:
    found = TextWarnings()
    token = RUN.set(found)
    try:
        yield found
    finally:
        RUN.reset(token)


@contextmanager
def warned_once(quiet: bool = False) -> Iterator[TextWarnings]:
    """Within this, texts are counted, and the warnings come at the end; what is unknown unless
    `quiet`."""
    with _counting() as found:
        try:
            yield found
        finally:
            found.warn(quiet)


@contextmanager
def counted_on_success() -> Iterator[TextWarnings]:
    """Within this, texts are counted, unless it raises: then they will be read again."""
    with _counting() as found:
        yield found
    outer = RUN.get()
    if outer is None:
        found.warn()
    else:
        outer.merge(found)


def count_unknown(lost: Sequence[Sequence[str]]) -> None:
    """Count what each text has lost; outside of `warned_once`, warn at once."""
    with counted_on_success() as found:
        found.add(lost)


def count_warning(message: str, *numbers: int, first: str = "") -> None:
    """Count texts of which a message holds; see `TextWarnings.count`."""
    with counted_on_success() as found:
        found.count(message, numbers, first)


def warn_of_preprocessed(sources: Iterable[str], references: Iterable[Iterable[str]]) -> None:
    """Warn of sources and references that are cut or escaped already, whose scores say little."""
    for what, texts in (("sources", sources), ("references", chain.from_iterable(references))):
        preprocessed = Preprocessed(what)
        preprocessed.add(texts)
        for line in preprocessed.warnings():
            log.warning("%s", line)
