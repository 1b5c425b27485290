"""The errors a user sees; each message says what was found, what was expected and what to do."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

# Characters that a terminal obeys instead of showing: control characters, save the tab and the line
# feed, and those that change the direction of the text behind them.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: object) -> str:
    """A text as it may be shown on a terminal: what a terminal would obey is spelled out, such as
    `\\x1b`. Names come from files that others wrote."""
    return OBEYED.sub(lambda found: ascii(found[0])[1:-1], str(text))


def _visible_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage()), ()
    return True


logging.getLogger("transduct").addFilter(_visible_record)  # the one logger of the package


class TransductError(Exception):
    """The input or the call is wrong (exit status 2). The message is one line and says how to fix
    it."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(" ".join(message.splitlines())))


class NotFinite(TransductError):
    """A model's outputs are NaN or infinite. During training the trainer catches this and rolls
    back."""

    def __init__(self) -> None:
        super().__init__(
            "the model's numbers are not finite (NaN or infinite); train it again, at a lower rate"
        )

    def __reduce__(
        self,
    ) -> tuple[type["NotFinite"], tuple[()]]:  # pickling would pass the message to `__init__`
        return NotFinite, ()


class WrongData(TransductError):
    """The data are wrong, raised where the file names are unknown; `predictors.base.naming_files`
    adds them."""


class Broken(TransductError):
    """One item of many cannot be used, and the others could: those who measure may go on."""


class TrainingFailed(Exception):
    """The work itself failed: training diverged or was stopped by a signal (exit status 1)."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(" ".join(message.splitlines())))


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
