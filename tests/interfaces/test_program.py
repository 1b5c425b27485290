"""Options given twice are refused, and Ctrl-C is a line."""

import pytest
import typer

from transduct.errors import TrainingFailed
from transduct.interfaces.program import Command, Program, UsageError

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
