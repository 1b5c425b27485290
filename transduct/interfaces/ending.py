"""What the program makes of its words, and how it ends when something goes wrong: one line, and an exit status."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper

from transduct.errors import TrainingFailed, TransductError

LISTS = ("--source", "--target")  # of `train`, which take several files
UNUSABLE = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP)  # paths
MEMORY = re.compile("alloc_cpu|not enough memory|out of memory", re.IGNORECASE)  # as PyTorch says it


def repeated(words: Sequence[str]) -> list[str]:
    """Words in which every file after one of `LISTS` has the option's name before it, as the parser wants it."""
    found: list[str] = []
    option = None
    for word in words:
        first = option is not None and found[-1] == option  # which is a file, though it holds "="
        if word.startswith("-") or ("=" in word and not first):
            name = word.partition("=")[0]
            option = name if name in LISTS else None
        elif option is not None and not first:
            found.append(option)
        found.append(word)
    return found


def rank() -> str:
    """The number of this process among those that torchrun began; 0 if it began alone."""
    return os.environ.get("RANK", "0")


def from_home(words: Sequence[str]) -> list[str]:
    """Words in which the home folder stands for ~ in `--out=~/runs`, which a shell leaves as it is."""
    parts = [word.partition("=") for word in words]
    return [
        f"{name}={os.path.expanduser(value)}"
        if name.startswith("--") and value.startswith("~")
        else name + sign + value
        for name, sign, value in parts
    ]


def open_streams() -> None:
    """Have a place for input and output where whoever began the program has closed them, results in UTF-8 in files and
    pipes whatever the locale says, and bytes that a terminal's encoding lacks in what is read from it; what a terminal
    cannot show it shows as a question mark."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the program ends)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="replace")


def ended(error: Exception, debug: bool) -> tuple[str, int]:
    """What to say of an error, and the exit status: 2 where the input or the call is wrong, 1 where the work failed.

    Args:
        debug: whether to show where it came from.
    """
    if debug:
        traceback.print_exception(error)
    if isinstance(error, TransductError | TrainingFailed):
        return str(error), 2 if isinstance(error, TransductError) else 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at the end
        return f"{error.filename or 'the output'}: the disk is full; free some space and run again", 2
    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename:
        return f"{error.filename}: cannot be used ({error.strerror}); give another path, or the right to it", 2
    line = " ".join(f"{type(error).__name__}: {error}".splitlines())
    if isinstance(error, MemoryError) or MEMORY.search(line):
        return f"out of memory; make the model, batch_tokens or the beam smaller ({line:.80})", 1
    return f"{line} (see it all with: transduct --debug ...)", 1  # a mistake of ours
