"""The one error a user sees: what was found, what was expected, what to do."""


class TransductError(Exception):
    """The input or the call is wrong (exit status 2). The message is one line and names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class TrainingFailed(Exception):
    """The work itself failed: training diverged, or was stopped by a signal (exit status 1)."""


def missing_extra(package: str, extra: str) -> TransductError:
    """The error for an optional dependency that is not installed; it names the line that installs it."""
    return TransductError(f"{package} is not installed; run: pip install 'transduct[{extra}]'")
