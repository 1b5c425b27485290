"""The one error a user sees: what was found, what was expected, what to do."""


class TransductError(Exception):
    """The input or the call is wrong (exit status 2). The message is one line and names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class NotFinite(TransductError):
    """A model's outputs are NaN or infinite; while training, the trainer catches this and goes back."""

    def __init__(self) -> None:
        super().__init__("the model's numbers are not finite (NaN or infinite); train it again, at a lower rate")

    def __reduce__(self) -> tuple[type["NotFinite"], tuple[()]]:  # between processes, where the message is given anew
        return NotFinite, ()


class WrongData(TransductError):
    """Data are wrong, found where the names of their files are not known; `tasks.base.naming_files` adds them."""


class TrainingFailed(Exception):
    """The work itself failed: training diverged, or was stopped by a signal (exit status 1)."""


class MissingExtra(TransductError):
    """A library that an extra brings is not installed, whatever the data are."""


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an optional dependency that is not installed; it names the line that installs it."""
    return MissingExtra(f"{package} is not installed; run: pip install 'transduct[{extra}]'")
