"""Counts what is wrong with the texts that a model reads, such as what a vocabulary lacks of them,
and says it in one line a run.

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
TREATED = (
    ("@@", "@@( |$)", "cut into subwords", "join it first, with: sed -E 's/@@( |$)//g'", 1),
    ("\u2581", "\u2581", "cut into SentencePiece's pieces", "decode it first, with spm_decode", 1),
    ("&", "&(apos|quot|amp|lt|gt|#124|#91|#93);", "escaped", DETOKENIZED, 1),
    ("@", "@[-,./]@", "cut at hyphens", DETOKENIZED, 1),
    (" .", r" \.$", "cut at full stops", DETOKENIZED, 100),
)
TELLING = 100  # a share of one in so many texts is told
SHOWN = 8  # of what is unknown, the most frequent first


class Unknown:
    """What the texts of a run held that the vocabulary lacks, and what else is to be said of them.

    Attributes:
        texts: how many texts held something unknown.
        lost: characters, or words of a vocabulary of words, and how often each was met.
        counts: by message, the numbers in it, and what is said of the first text.
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
        before what is said of the `first` text is for several."""
        before, held = self.counts.get(message, ([0] * len(numbers), ""))
        self.counts[message] = [a + b for a, b in zip(before, numbers)], held or first

    def take(self, other: "Unknown") -> None:
        """Count what another has counted."""
        self.texts += other.texts
        self.lost.update(other.lost)
        for message, held in other.counts.items():
            self.count(message, *held)

    def warn(self, quiet: bool = False) -> None:
        """Say it, if there is any; if `quiet`, nothing of what is unknown."""
        for message, (numbers, first) in self.counts.items():
            if first:
                lead = "a text of" if numbers == [1] else message % tuple(numbers)
                log.warning("%s %s", lead, first)
            elif numbers[0]:
                log.warning(message, *numbers)
        if self.lost and not quiet:
            some = [repr(each)[:40] for each, _ in self.lost.most_common(SHOWN)]
            if len(self.lost) > SHOWN:
                some.append("...")
            log.warning(
                "%d unknown characters or words in %d texts, which the model cannot read: %s",
                self.lost.total(),
                self.texts,
                " ".join(some),
            )


class Treated:
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
            for hint, pattern, done, *_ in TREATED:
                if hint in text and (match := re.search(pattern, text)):
                    count, shown = self.found.get(done, (0, match[0].strip()))
                    self.found[done] = count + 1, shown

    def said(self) -> Iterator[str]:
        """What to say, a line for each kind that is no exception."""
        for *_, done, remedy, least in TREATED:
            count, shown = self.found.get(done, (0, ""))
            if count >= least and count * TELLING >= self.read:
                yield (
                    f"{count:,} of {self.read:,} {self.what} hold '{shown}': such text is {done} "
                    f"already; {remedy}"
                )


class Share:
    """The share of the lines of a corpus that hold unknown tokens, for its report.

    Args:
        lines: what they are called.
        unknown: the id of the unknown token.
    """

    def __init__(self, lines: str, unknown: int = 0) -> None:
        self.lines, self.unknown = lines, unknown
        self.read = self.held = 0

    def add(self, rows: Iterable[Sequence[int]]) -> None:
        """Count lines, given as ids."""
        found = [self.unknown in ids for ids in rows]
        self.read, self.held = self.read + len(found), self.held + sum(found)

    def __str__(self) -> str:
        """What to say, after what else is said of a corpus; nothing if nothing is unknown."""
        if not self.held:
            return ""
        percent = 100 * self.held / self.read
        return f"; unknown tokens in {max(percent, 0.1):.1f} % of {self.lines}"


RUN: ContextVar[Unknown | None] = ContextVar("RUN", default=None)


@contextmanager
def said_once(quiet: bool = False) -> Iterator[Unknown]:
    """Within this, what is to be said of texts is counted and said at the end; what is unknown
    unless `quiet`."""
    found = Unknown()
    token = RUN.set(found)
    try:
        yield found
    finally:
        RUN.reset(token)
        found.warn(quiet)


@contextmanager
def counted_if_done() -> Iterator[Unknown]:
    """Within this, texts are counted, unless it raises: then they will be read again."""
    outer, found = RUN.get(), Unknown()
    token = RUN.set(found)
    try:
        yield found
    finally:
        RUN.reset(token)
    if outer is not None:
        outer.take(found)
    else:
        found.warn()


def met(lost: Sequence[Sequence[str]]) -> None:
    """Count what each text has lost; outside of `said_once`, say it at once."""
    with counted_if_done() as found:
        found.add(lost)


def counted(message: str, *numbers: int, first: str = "") -> None:
    """Count texts of which a message holds; see `Unknown.count`."""
    with counted_if_done() as found:
        found.count(message, numbers, first)


def tell_treated(sources: Iterable[str], references: Iterable[Iterable[str]]) -> None:
    """Warn of sources and references that are cut or escaped already, whose scores say little."""
    for what, texts in (("sources", sources), ("references", chain.from_iterable(references))):
        treated = Treated(what)
        treated.add(texts)
        for said in treated.said():
            log.warning("%s", said)
