"""Options given twice are refused, and Ctrl-C is a line."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from transduct.errors import TrainingFailed
from transduct.interfaces.program import Command, Program, UsageError, given, with_records

app = typer.Typer(cls=Program)


@app.callback()
def main():
    """Makes the commands a group."""


@app.command(cls=Command)
def once(number: int = 0, name: list[str] = typer.Option([])):  # noqa: B008 (typer's way)
    if number == 7:
        raise KeyboardInterrupt


def run(*words):
    return app(list(words), standalone_mode=False)


def test_an_option_of_one_value_is_given_once():
    assert run("once", "--number", "1", "--name", "a", "--name", "b") is None
    with pytest.raises(UsageError) as found:
        run("once", "--number", "1", "--number", "2")
    assert found.value.format_message() == "--number is given 2 times and takes one value"


def test_an_interrupt_is_a_failure_of_one_line():
    with pytest.raises(TrainingFailed, match=r"^interrupted$"):
        run("once", "--number", "7")


@dataclass(frozen=True)
class Shared:
    """Options of several commands."""

    width: Annotated[int | None, typer.Option("--wide", help="How wide.")] = None
    fast: bool = False


@app.command(cls=Command)
@with_records
def shared(name: str, group: Shared, count: int = 1):
    """Show what was given."""
    raise UsageError(f"{name} {group} {count} {given(group)}")


def test_the_fields_of_a_record_are_options_of_the_command():
    for words, line in (
        (["a"], "a Shared(width=None, fast=False) 1 {}"),
        (["a", "--wide", "3", "--count", "2"], "a Shared(width=3, fast=False) 2 {'width': 3}"),
        (["a", "--fast"], "a Shared(width=None, fast=True) 1 {'fast': True}"),
    ):
        with pytest.raises(UsageError) as found:
            run("shared", *words)
        assert found.value.format_message() == line
