"""The program as a process: its arguments, its rank, its standard streams, and how an error ends
it."""

import errno
import gc
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from transduct.errors import TrainingFailed, TransductError, visible

LISTS = ("--source", "--target")  # options of `train` that take several files
# errors that mean a path cannot be used
UNUSABLE = errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP
# in PyTorch's messages
MEMORY = re.compile("alloc_cpu|not enough memory|out of memory", re.IGNORECASE)


def repeated(words: Sequence[str]) -> list[str]:
    """Repeat the option's name before every further file of the options in `LISTS`, as the parser
    requires."""
    from transduct.config import is_key

    result: list[str] = []
    option = None
    for word in words:
        first = option is not None and result[-1] == option  # a file, even if its name contains "="
        if (word.startswith("-") and word != "-") or (not first and ("=" in word or is_key(word))):
            name = word.partition("=")[0]
            option = name if name in LISTS else None
        elif option is not None and not first:
            result.append(option)
        result.append(word)
    return result


def rank() -> str:
    """The rank of this process as torchrun sets it; "0" without torchrun."""
    return os.environ.get("RANK", "0")


def from_home(words: Sequence[str]) -> list[str]:
    """Expand ~ in arguments such as `--out=~/runs`, where the shell does not."""
    parts = [word.partition("=") for word in words]
    return [
        f"{name}={os.path.expanduser(value)}"
        if name.startswith("--") and value.startswith("~")
        else name + sign + value
        for name, sign, value in parts
    ]


def open_streams() -> None:
    """Make the standard streams usable: replace closed ones by the null device, write UTF-8 to
    files and pipes whatever the locale, keep undecodable input bytes as surrogates, and print "?"
    for what a terminal cannot show."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open until the program ends
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="replace")


def ended(error: Exception, debug: bool) -> tuple[str, int]:
    """The message for an error and the exit status: 2 if the input or the call is wrong, 1 if the
    work failed.

    Args:
        debug: whether to print the traceback.
    """
    if debug:
        traceback.print_exception(error)
    if isinstance(error, TransductError | TrainingFailed):
        return str(error), 2 if isinstance(error, TransductError) else 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        # so that Python's final flush succeeds
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        name = visible(error.filename or "the output")
        return f"{name}: the disk is full; free some space and run again", 2
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
        return (
            f"{visible(error.filename)}: cannot be used ({error.strerror}); give another path, or "
            "the right to it",
            2,
        )
    line = visible(" ".join(f"{type(error).__name__}: {error}".splitlines()))
    if isinstance(error, MemoryError) or MEMORY.search(line):
        return f"out of memory; make the model, batch_tokens or the beam smaller ({line:.80})", 1
    return f"{line} (see it all with: transduct --debug ...)", 1  # a bug in transduct


def load(*arguments: str) -> Any:
    """`transduct.load` without garbage collection. Importing PyTorch creates half a million
    permanent objects, and scanning them during the import and again at exit takes longer than
    translating a sentence."""
    gc.disable()
    try:
        from transduct.predictors.base import load

        return load(*arguments)
    finally:
        gc.enable()
        gc.freeze()


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """In place of `warnings.showwarning`: the message in a line, without file and source line."""
    print(f"transduct: warning: {visible(' '.join(str(message).split()))}", file=sys.stderr)


def run(app: Any) -> None:
    """Run the program with the arguments of this process, and end it: an error that the user can
    fix is one line and exit status 2."""
    from transduct.devices import share_cores
    from transduct.interfaces.program import UsageError

    open_streams()
    words = from_home(sys.argv[1:])
    debug = "--debug" in (words[: words.index("--")] if "--" in words else words)  # at any position
    if debug:
        words.remove("--debug")
    if next((word for word in words if not word.startswith("-")), None) == "train":
        words = repeated(words)
    share_cores()
    warnings.showwarning = show_warning
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    try:
        raise SystemExit(app(words or ["--help"], prog_name="transduct", standalone_mode=False))
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "transduct"
        message = visible(" ".join(error.format_message().splitlines()))
        print(f"transduct: {message} (see: {command} --help)", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:  # noqa: BLE001 (any error is reported in one line)
        line, status = ended(error, debug)
        print(f"transduct: {'' if rank() == '0' else f'rank {rank()}: '}{line}", file=sys.stderr)
        raise SystemExit(status) from None
