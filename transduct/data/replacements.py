"""Changes that a recipe makes to texts as they are read, and placeholders for what they hide."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Annotated, Any, Literal

import regex

from transduct.data.samples import Pair
from transduct.errors import TransductError, rewording
from transduct.records import Checked, Range, refuse_if

LONGEST_RULE = 1_000  # characters of a pattern or of a replacement
SECONDS, LEAST = 2.0, 0.001  # patterns that together take longer in one text are refused
GROWTH, ROOM = 20, 1_000  # a text of n characters may become GROWTH * n + ROOM long

Replaced = tuple[tuple[str, str], ...]  # placeholders in a text, and what each stands for
Change = Callable[..., str]  # see `Replacement.function`


@dataclass(frozen=True)
class Replacement(Checked):
    """A regular expression and the replacement for its matches, applied to each text as it is read.

    Attributes:
        side: the side whose texts are changed.
        pattern: a regular expression in Python's syntax.
        by: the replacement; "\\1" stands for the first group.
        cycle: if not 0, "{n}" in `by` becomes the number of the match in its text, from 0 and
            modulo `cycle`. Unless "\\g<0>", the match, is in `by` too, this is a placeholder: what
            it stands for in the source is put back into the translation.
    """

    side: Literal["source", "target", "both"]
    pattern: str
    by: str = ""
    cycle: Annotated[int, Range(0, why="0 counts nothing")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pattern", "by"):
            refuse_if(
                (length := len(getattr(self, name))) > LONGEST_RULE,
                f"{name} has {length:,} characters; give at most {LONGEST_RULE}",
            )
        try:
            (self.pattern + self.by).encode()
            # In Python's syntax: that of `regex` has recursion too, whose memory is not bounded.
            for pattern in (re.compile(self.pattern), regex.compile(self.pattern)):
                for template in self._templates:
                    pattern.sub(template, "")  # parses the template, even though nothing matches
        except (
            re.error,
            regex.error,
            IndexError,
            OverflowError,
            RecursionError,
            UnicodeEncodeError,
        ) as error:
            raise ValueError(f"cannot replace '{self.pattern}' by '{self.by}': {error}") from error

    @property
    def hides(self) -> bool:
        """Whether a numbered placeholder stands for what was matched, which is not beside it."""
        return bool(self.cycle) and r"\g<0>" not in self.by

    @property
    def function(self) -> Change:
        """The replacement as a function of a text, of the most characters that it may become, and
        of the time, by `monotonic`, at which finding matches ends; and of a list, if there is one,
        to which each placeholder is added with what it stands for.

        Raises:
            TransductError: it would become longer, or finding the matches takes too long.
        """
        # Its matches are those of Python's `re`, but it can be told when to stop.
        pattern, templates = regex.compile(self.pattern), self._templates
        literal = not any("\\" in template for template in templates)

        def change(
            text: str, most: int, ends: float, replaced: list[tuple[str, str]] | None = None
        ) -> str:
            numbers, left = count(), most

            def put(match: Any) -> str:
                nonlocal left
                number = str(next(numbers) % self.cycle) if self.cycle else ""
                new = number.join(templates if literal else map(match.expand, templates))
                if replaced is not None:
                    replaced.append((new, match[0]))
                left -= len(new)
                if left < 0:
                    raise TransductError(
                        f"replacing '{self.pattern}' by '{self.by}' lengthens a text to more than "
                        f"{most:,} characters; write a shorter replacement"
                    )
                return new

            with rewording(
                TimeoutError,
                f"replacing '{self.pattern}' takes longer than {SECONDS:g} s in a text of "
                f"{len(text):,} characters; write a simpler pattern",
            ):
                return str(pattern.sub(put, text, timeout=max(ends - monotonic(), LEAST)))

        return change

    @property
    def _templates(self) -> list[str]:
        """The parts of `by` around "{n}", expanded one by one so that a digit after "\\1" does not
        extend the group."""
        return self.by.split("{n}") if self.cycle else [self.by]


def changed(pairs: list[Pair], replace: Sequence[Replacement]) -> list[Pair]:
    """Apply all replacements to the pairs."""
    if not replace:
        return pairs
    source, target = changes_of("source", replace), changes_of("target", replace)
    return [(source(text), target(translation)) for text, translation in pairs]


def changes_of(side: str, replace: Sequence[Replacement]) -> Callable[[str], str]:
    """All replacements of one side, composed into one function."""
    change = changes_with_placeholders(side, replace)
    return lambda text: change(text)[0]


def changes_with_placeholders(
    side: str, replace: Sequence[Replacement]
) -> Callable[[str], tuple[str, Replaced]]:
    """Like `changes_of`, but also gives what each placeholder stands for, for `restored`."""
    rules = [(each, each.function) for each in replace if each.side in (side, "both")]

    def change(text: str) -> tuple[str, Replaced]:
        replaced: list[tuple[str, str]] = []
        most, ends = GROWTH * len(text) + ROOM, monotonic() + SECONDS
        for rule, function in rules:
            text = function(text, most, ends, replaced if rule.hides else None)
        return text, tuple(replaced)

    return change


def restored(text: str, replaced: Replaced) -> str:
    """Put back what placeholders stand for: of several with the same number the first, then the
    second, and the last for any more."""
    waiting = _by_name(replaced)

    def original(match: re.Match[str]) -> str:
        left = waiting[match[0]]
        return left.popleft() if len(left) > 1 else left[0]

    found = _placeholders(replaced)
    return found.sub(original, text) if found else text


def placeholders_of_parts(parts: Sequence[str], replaced: Replaced) -> list[Replaced]:
    """What the placeholders in each part of a text stand for, given what those in all of it do."""
    found, waiting = _placeholders(replaced), _by_name(replaced)
    return [
        tuple(
            (name, waiting[name].popleft())
            for name in (found.findall(part) if found else [])
            if waiting[name]
        )
        for part in parts
    ]


def _by_name(replaced: Replaced) -> dict[str, deque[str]]:
    waiting: dict[str, deque[str]] = {}
    for placeholder, matched in replaced:
        waiting.setdefault(placeholder, deque()).append(matched)
    return waiting


def _placeholders(replaced: Replaced) -> re.Pattern[str] | None:
    """The pattern of these placeholders; None if there is none."""
    names = sorted({name for name, _ in replaced if name}, key=len, reverse=True)
    # NUM1 is no part of NUM12
    each = [re.escape(name) + (r"(?!\d)" if name[-1].isdigit() else "") for name in names]
    return re.compile("|".join(each)) if each else None


def of_references(replace: Sequence[Replacement]) -> list[Replacement]:
    """The changes made to references: all but placeholders that translations have no more, since
    what the source's stand for is put back."""
    put_back = {(rule.by, rule.cycle) for rule in replace if rule.hides and rule.side != "target"}
    return [rule for rule in replace if not rule.hides or (rule.by, rule.cycle) not in put_back]
