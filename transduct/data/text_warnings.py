"""Warnings about texts: how many a vocabulary does not cover, and text that another program has
already cut."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
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


def warn_of_preprocessed(sources: Iterable[str], references: Iterable[Iterable[str]]) -> None:
    """Warn of sources and references that are cut or escaped already, whose scores say little."""
    for what, texts in (("sources", sources), ("references", chain.from_iterable(references))):
        preprocessed = Preprocessed(what)
        preprocessed.add(texts)
        for line in preprocessed.warnings():
            log.warning("%s", line)
