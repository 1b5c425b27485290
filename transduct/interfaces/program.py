"""How the program runs: its arguments, its rank, its standard streams, how an error ends it, and
how it differs from what typer makes of it (commands of other packages, broken pipes, options given
twice, options that commands share).

A file of its own, so that `interfaces/cli.py` is the list of commands.
"""

import errno
import gc
import inspect
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from io import TextIOWrapper
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from transduct.errors import TrainingFailed, TransductError, require, visible, warned_once

UsageError: Any = typer.BadParameter.__bases__[0]  # click's, which typer bundles

LISTS = ("--source", "--target")  # options of `train` and `filter` that take several files
# errors that mean a path cannot be used
UNUSABLE = errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP
# in PyTorch's messages
MEMORY = re.compile("alloc_cpu|not enough memory|out of memory", re.IGNORECASE)
# Commands that come with this repository, and the folder whose installation brings them.
FOLDERS = {"bench": ".", "learn": "course"}


class Program(TyperGroup):
    """Has the commands that other packages add as entry points `transduct.commands`, after its own.
    Exits silently with status 0 if the reader of the output closes the pipe (`| head`), with a
    line on Ctrl-C."""

    def list_commands(self, ctx: Any) -> list[str]:
        from transduct.added import added

        own = super().list_commands(ctx)
        return [*own, *sorted(added("commands").keys() - {*own})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        from transduct.added import added

        if (entry := added("commands").get(cmd_name)) is not None:
            return of_entry(entry)
        if cmd_name in FOLDERS:
            raise UsageError(
                f"'{cmd_name}' is not installed; run, in a clone of transduct: pip install "
                f"--editable {FOLDERS[cmd_name]}"
            )
        return None

    def invoke(self, ctx: Any) -> Any:
        try:
            result = warned_once()(super().invoke)(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise TrainingFailed("interrupted") from None
        except BrokenPipeError:
            # so that Python's final flush succeeds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None


def of_entry(entry: Any) -> Any:
    """The command that an entry point names: a function whose parameters are typer's. One that
    cannot be loaded says so when it is called, so that `--help` still lists the others."""
    try:
        function = entry.load()
    except (ImportError, AttributeError) as error:
        line = f"'{entry.name}' of {entry.value} cannot be loaded ({error}); install it again"

        def function() -> None:
            raise UsageError(line)

        function.__doc__ = line
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(entry.name, cls=Command)(function)
    return typer.main.get_command(app)


class Command(TyperCommand):
    """Refuses an option that is given twice but holds one value, of which the parser would silently
    take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for option in given:
            several = isinstance(option, TyperOption) and (option.multiple or option.is_flag)
            if given.count(option) > 1 and not several:
                raise UsageError(
                    f"{option.opts[0]} is given {given.count(option)} times and takes one value",
                    ctx,
                )
        return super().parse_args(ctx, args)


def with_records(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be records: typer sees the fields of each in its place. So
    options that commands share are declared once."""
    hints = get_type_hints(function, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        record = records.get(name)
        parameters += inspect.signature(record).parameters.values() if record else [parameter]
    types = {**hints}
    for record in records.values():
        types |= get_type_hints(record, include_extras=True)
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[each.name])
        for each in parameters
    ]

    @wraps(function)
    def command(**values: Any) -> None:
        made = {
            name: record(**{each.name: values.pop(each.name) for each in fields(record)})
            for name, record in records.items()
        }
        function(**values, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def set_options(record: Any) -> dict[str, Any]:
    """The options in a record that the call sets: those that differ from their default."""
    values = ((each, getattr(record, each.name)) for each in fields(record))
    return {each.name: value for each, value in values if value != each.default}


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


@contextmanager
def without_collection() -> Iterator[None]:
    """Load a model in this without garbage collection. Importing PyTorch creates half a million
    permanent objects, and scanning them during the import and again at exit takes longer than
    translating a sentence."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def load(*arguments: str) -> Any:
    """`transduct.load`, without garbage collection."""
    with without_collection():
        from transduct.predictors.base import load

        return load(*arguments)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """In place of `warnings.showwarning`: the message in a line, without file and source line."""
    print(f"transduct: warning: {visible(' '.join(str(message).split()))}", file=sys.stderr)


def refuse_launcher(words: Sequence[str]) -> None:
    """Refuse torchrun around another command than `train`: each process would do all of it.

    Raises:
        TransductError: that is so.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    command = next((word for word in words if not word.startswith("-")), "train")
    require(
        count == 1 or "TORCHELASTIC_RUN_ID" not in os.environ or command == "train",
        f"torchrun starts {count} processes, and each would {command} everything; run this "
        f"without torchrun: transduct {shlex.join(words)}",
    )


def run(app: Any) -> None:
    """Run the program with the arguments of this process, and end it: an error that the user can
    fix is one line and exit status 2."""
    from transduct.devices import share_cores

    open_streams()
    words = from_home(sys.argv[1:])
    debug = "--debug" in (words[: words.index("--")] if "--" in words else words)  # at any position
    if debug:
        words.remove("--debug")
    if next((word for word in words if not word.startswith("-")), None) in ("train", "filter"):
        words = repeated(words)
    share_cores()
    warnings.showwarning = show_warning
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C
    try:
        refuse_launcher(words)
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
    finally:
        gc.freeze()  # else Python scans all objects of PyTorch before it ends
