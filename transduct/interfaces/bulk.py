"""Commands over many files, into a folder: progress and the end of the job.

A file of its own, so that a command over one text does not read it.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from transduct.errors import require

SECONDS = 1.0  # between two lines on a terminal
LINES = 30.0  # and where stderr is a file


def run(
    verb: Any,
    model: str,
    inputs: Sequence[str],
    given: dict[str, Any],
    fields: dict[str, Any],
    options: dict[str, Any],
    as_json: bool = False,
) -> None:
    """Do a job and show how far it is; exit status 1 if a row failed.

    Args:
        given: the options of `options.Bulk` that the call sets.
        fields: further fields of `Call`.
        options: of the verb; `workers` among them are processes here.
        as_json: how a report is printed.

    Raises:
        TransductError: the call or the input is wrong.
    """
    from transduct.bulk.jobs import Call, Progress, evaluated
    from transduct.bulk.jobs import run as do
    from transduct.interfaces.terminal import table

    workers = options.pop("workers", None)
    if "column" in given:
        fields = fields | {"columns": tuple(given["column"].split(","))}
    skip = given.get("skip_errors", False)
    call = Call(verb, model, skip_errors=skip, options=options, **fields)
    part = _part(given.get("part"))
    begun = shown = time.monotonic()
    pause = SECONDS if sys.stderr.isatty() else LINES
    done = Progress()
    for done in do(call, inputs, given["out"], workers, given.get("ray"), part):
        now = time.monotonic()
        if done.shards and now - shown > pause:
            shown, left = now, (now - begun) / done.shards * (done.of - done.shards)
            rate = f"{done.rows / (now - begun):,.1f} rows a second"
            _say(f"{done.shards:,} of {done.of:,} shards, {rate}, about {left / 60:,.0f} min left")
    _say(f"{given['out']}: {done.rows:,} rows in {done.of:,} shards")
    for name in done.empty:
        _say(f"warning: {name}: nothing in it")
    if verb == "evaluate" and part is None:
        report = evaluated(call, inputs, given["out"])
        print(*([report.as_json()] if as_json else table(report)), sep="\n", flush=True)
    if done.failed:
        first = f", first: {done.error}" if done.error else ""
        _say(f"{done.failed:,} rows failed and are empty{first}")
        raise SystemExit(1)


def _part(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition("/")
    require(
        first.isdecimal() and last.isdecimal(),
        f"--part is '{text}'; give such as 3/64, the third of 64 parts",
    )
    return int(first), int(last)


def _say(line: str) -> None:
    print(f"transduct: {line}", file=sys.stderr, flush=True)
