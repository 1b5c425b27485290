"""Counts what a vocabulary lacks of the texts that a model reads, and says it in one line a run.

Apart from the tokenizer, so that the command line can count without importing it.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger("transduct")
SHOWN = 8  # of what is unknown, the most frequent first


class Unknown:
    """What the texts of a run held that the vocabulary lacks.

    Attributes:
        texts: how many texts held something unknown.
        lost: characters, or words of a vocabulary of words, and how often each was met.
    """

    def __init__(self) -> None:
        self.texts, self.lost = 0, Counter[str]()

    def add(self, lost: Sequence[Sequence[str]]) -> None:
        """Count what each text has lost."""
        for each in lost:
            self.texts += bool(each)
            self.lost.update(each)

    def warn(self) -> None:
        """Say it, if there is any."""
        if self.lost:
            some = [repr(each)[:40] for each, _ in self.lost.most_common(SHOWN)]
            if len(self.lost) > SHOWN:
                some.append("...")
            log.warning(
                "%d unknown characters or words in %d texts, which the model cannot read: %s",
                self.lost.total(),
                self.texts,
                " ".join(some),
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
    """Within this, what is unknown is counted and said at the end, unless `quiet`."""
    found = Unknown()
    token = RUN.set(found)
    try:
        yield found
    finally:
        RUN.reset(token)
        if not quiet:
            found.warn()


def met(lost: Sequence[Sequence[str]]) -> None:
    """Count what each text has lost; outside of `said_once`, say it at once."""
    if (run := RUN.get()) is not None:
        run.add(lost)
    else:
        found = Unknown()
        found.add(lost)
        found.warn()
