"""How the program differs from what typer makes of it: broken pipes, Ctrl-C, options given twice.

A file of its own, so that `interfaces/cli.py` is the list of commands.
"""

import os
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

UsageError: Any = typer.BadParameter.__bases__[0]  # click's, which typer bundles


class Program(TyperGroup):
    """Exits silently with status 0 if the reader of the output closes the pipe (`| head`), with a
    line on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        from transduct.data.unknown import said_once

        try:
            result = said_once()(super().invoke)(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            from transduct.errors import TrainingFailed

            raise TrainingFailed("interrupted") from None
        except BrokenPipeError:
            # so that Python's final flush succeeds
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None


class Command(TyperCommand):
    """Refuses an option that is given twice but holds one value, of which the parser would silently
    take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for option in given:
            if (
                given.count(option) > 1
                and not option.multiple
                and not getattr(option, "is_flag", False)
            ):
                raise UsageError(
                    f"{option.opts[0]} is given {given.count(option)} times and takes one value",
                    ctx,
                )
        return super().parse_args(ctx, args)
