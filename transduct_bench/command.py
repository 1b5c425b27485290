"""The command `transduct bench`; its package is imported when it runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from transduct.interfaces.options import AsJson, Device


def bench(
    what: Annotated[str, typer.Argument(help="decode or train.")],
    against: Annotated[
        str | None,
        typer.Option(
            help="A peer: ctranslate2 or transformers to decode, transformers or torch to train."
        ),
    ] = None,
    size: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "base",
    vocabulary: Annotated[int, typer.Option(help="The size of the vocabulary.")] = 32_000,
    sentences: Annotated[
        int | None, typer.Option(help="By default 512 to decode, 4000 to train on.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each side; by default all cores.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side; the median counts.")] = 3,
    only: Annotated[str, typer.Option(help="Measure only rows whose names contain this.")] = "",
    model: Annotated[
        str | None, typer.Option(help="A trained model to decode with; else random weights.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The text it translates.")
    ] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure speed, also against other tools.

    Prints tokens per second. The sides take turns, with the same sentences, model size, precision
    and threads.

    \b
    Examples:
    transduct bench decode --against ctranslate2
    transduct bench train --against transformers --size small --vocabulary 8000
    """
    from transduct_bench.rows import about, asked, run, shown

    sizes, given = asked(what, size, vocabulary, sentences, threads, device, model, text)
    rows = []
    for row in run(what, against, sizes, rounds, only, given):
        rows.append(row)
        if not as_json:
            print(shown(row, against), flush=True)
    if as_json:
        print(json.dumps({"rows": rows, "about": about()}))
