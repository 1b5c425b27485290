"""The errors a user sees; each message says what was found, what was expected and what to do."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

# Characters that a terminal obeys instead of showing: control characters, save the tab and the
# line feed, and those that change the direction of the text behind them.
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
    """The data are wrong, raised where the file names are unknown; `tasks.base.naming_files` adds
    them."""


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
