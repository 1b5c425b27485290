"""The errors a user sees; each message says what was found, what was expected and what to do. And
the warnings about the texts of a run, which are counted and come once."""

import errno
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

# Characters that a terminal obeys instead of showing: control characters, save the tab and the line
# feed, and those that change the direction of the text behind them.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# what a write says when a file system went away, or its folder
LOST = (errno.ENOENT, errno.EIO, errno.ESTALE, errno.ENOTCONN)
SHOWN = 8  # of what is unknown, the most frequent first
log = logging.getLogger("transduct")  # the one logger of the package


def visible(text: object) -> str:
    """A text as it may be shown on a terminal: what a terminal would obey is spelled out, such as
    `\\x1b`. Names come from files that others wrote."""
    return OBEYED.sub(lambda found: ascii(found[0])[1:-1], str(text))


def _visible_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage()), ()
    return True


log.addFilter(_visible_record)


def _line(text: str) -> str:
    """A text as one line for a terminal."""
    return visible(" ".join(text.splitlines()))


class TransductError(Exception):
    """The input or the call is wrong (exit status 2). `str(error)` is one line, made of the facts
    and the message. Who knows more about an error raises it again with more facts; nobody reads
    its text.

    Attributes:
        message: what is wrong, then what to do; `{key}` in it stands for the key.
        input: the place of the one input that is wrong, from 0.
        unit: what that is: an input, a pair or a prefix.
        key: the dotted key of a recipe, or of what `file` names.
        file: where it stands: a file, or such as "options"; of a key without one, the recipe.
        line: the line of the file.
        skippable: whether it is about one item of many, and the others could be used.
    """

    skippable = False

    def __init__(
        self,
        message: str,
        /,
        *,
        input: int | None = None,
        unit: str = "input",
        key: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message, self.input, self.unit = message, input, unit
        self.key, self.file, self.line = key, file, line

    def __str__(self) -> str:
        file = "recipe" if self.file is None and self.key is not None else self.file
        places = [
            "" if file is None else file if self.line is None else f"{file}:{self.line}",
            "" if self.input is None else f"{self.unit} {self.input + 1}",
        ]
        return _line(": ".join([*filter(None, places), self.problem]))

    @property
    def problem(self) -> str:
        """What is wrong, without its place."""
        return self.message.replace("{key}", self.key or "the recipe")

    def at(self, **facts: Any) -> Self:
        """The same error with these facts."""
        error = copy(self)
        vars(error).update(facts)
        return error

    def within(self, key: str) -> Self:
        """The same error, of a part that stands in a recipe at this key."""
        return self.at(key=".".join(filter(None, (key, self.key))))

    def adding(self, advice: str) -> Self:
        """The same error with more to do about it."""
        return self.at(message=self.message + advice)


def require(right: object, message: str, kind: type[Exception] | None = None, **facts: Any) -> None:
    """Raise an error with the message and these facts unless what is given is true: a
    TransductError, or one of this kind."""
    if not right:
        raise (kind or TransductError)(message, **facts)


@contextmanager
def rewording(
    kinds: type[Exception] | tuple[type[Exception], ...], message: str, **facts: Any
) -> Iterator[None]:
    """Within this, an error of a library becomes a TransductError; `{error}` in the message is what
    the library says, without the number and the path of the operating system."""
    try:
        yield
    except kinds as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise TransductError(message.replace("{error}", reason), **facts) from error


@contextmanager
def placing(file: str, line: int | None = None) -> Iterator[None]:
    """Within this, an error that names no file gets this one, and its line."""
    try:
        yield
    except TransductError as error:
        if error.file is not None:
            raise
        raise error.at(file=file, line=line) from error


class NotFinite(TransductError):
    """A model's outputs are NaN or infinite. During training the trainer catches this and rolls
    back."""

    def __init__(self) -> None:
        super().__init__(
            "the model's numbers are not finite (NaN or infinite); train it again, at a lower rate"
        )


class UnknownKey(TransductError):
    """A recipe has a key that nothing reads."""


class WrongData(TransductError):
    """The data are wrong, raised where the file names are unknown; `predictors.base.naming_files`
    adds them."""


class TrainingFailed(Exception):
    """The work itself failed: training diverged or was stopped by a signal (exit status 1).

    Attributes:
        message: what has happened, then what to do; `{resume}` in it stands for the next.
        resume: how to go on with the run.
    """

    def __init__(self, message: str, /, resume: str = "--resume") -> None:
        super().__init__(message)
        self.message, self.resume = message, resume

    def __str__(self) -> str:
        return _line(self.message.replace("{resume}", self.resume))


class MissingExtra(TransductError):
    """An optional dependency is not installed or broken: no fault of the data or the request."""


@contextmanager
def needing(extra: str, package: str | None = None) -> Iterator[None]:
    """Within this, optional dependencies are imported; one that is missing or broken raises
    MissingExtra.

    Args:
        extra: the extra of ours that installs them.
        package: the name in the message; the module's by default.
    """
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        found = "is not installed" if missing else f"cannot be imported ({error})"
        name = package or error.name or extra
        raise MissingExtra(f"{name} {found}; run: pip install 'transduct[{extra}]'") from error


def no_model(directory: Path) -> TransductError:
    """What to say where a model should be and there is nothing, or a file."""
    remedy = "give a run or a model directory"
    if directory.exists():
        found = "a file" if directory.is_file() else "no folder"
        return TransductError(f"{directory}: {found}; {remedy}")
    if not directory.parent.is_dir():
        if len(directory.parts) == 2:
            remedy += f", or make a model of Hugging Face's hub: transduct convert {directory} OUT"
    elif near := get_close_matches(
        directory.name, [p.name for p in directory.parent.iterdir() if p.is_dir()]
    ):
        remedy = f"did you mean {directory.with_name(near[0])}?"
    return TransductError(f"{directory}: no such folder; {remedy}")


def disk_error(path: Path, error: OSError) -> TransductError:
    """The error for a failed write; the old contents are still in place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransductError(
            f"{path}: the disk is full; nothing was changed there: free some space and run again"
        )
    remedy = "choose another place"
    if error.errno in LOST:
        remedy = f"see that its disk and its folder are there, then run again, or {remedy}"
    return TransductError(f"{path}: cannot be written ({error.strerror or error}); {remedy}")


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
