"""How the program differs from what typer makes of it: commands of other packages, broken pipes,
Ctrl-C, options given twice, options that commands share.

A file of its own, so that `interfaces/cli.py` is the list of commands.
"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

UsageError: Any = typer.BadParameter.__bases__[0]  # click's, which typer bundles


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
        from transduct.data.text_warnings import warned_once

        try:
            result = warned_once()(super().invoke)(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            from transduct.errors import TrainingFailed

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


def given(record: Any) -> dict[str, Any]:
    """The options in a record that the call sets: those that differ from their default."""
    values = ((each, getattr(record, each.name)) for each in fields(record))
    return {each.name: value for each, value in values if value != each.default}
