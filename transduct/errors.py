"""The errors a user sees; each message says what was found, what was expected and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class TransductError(Exception):
    """The input or the call is wrong (exit status 2). The message is one line and says how to fix
    it."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


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
