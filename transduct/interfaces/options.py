"""The options that commands share, and those of a command with many, as records: typer sees the
fields of each in its place (see `program.with_records`)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

a_file = partial(typer.Option, metavar="FILE")
Model = Annotated[str, typer.Argument(help="A run or a model directory.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Beam = Annotated[
    int | None, typer.Option(help="Beam size; 1 is greedy. By default the model's own.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Task option, such as beam=1."),
]
Workers = Annotated[int | None, typer.Option(help="Processes, where many files are done.")]


@dataclass(frozen=True)
class Languages:
    """The languages of a call, for a model that has several."""

    source_language: Annotated[
        str | None, typer.Option("--from", help="Language of the text: ko, Korean ..")
    ] = None
    target_language: Annotated[
        str | None, typer.Option("--to", help="The language to translate into.")
    ] = None


@dataclass(frozen=True)
class Machine:
    """Where a model runs, and in which precision."""

    device: Device = "auto"
    precision: Precision = "float32"


OnRay = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Work on a cluster of Ray: an address, auto or local."),
]
Makers = Annotated[int, typer.Option("--workers", help="Processes, or actors with --ray.")]


@dataclass(frozen=True)
class Search:
    """How `translate` decodes; what is not given stays as the model has it."""

    beam: Beam = None
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours longer output.")] = (
        None
    )
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Translate each sentence of a line by itself.")
    ] = False
    no_repeat: Annotated[
        int | None, typer.Option(help="Forbid any run of so many tokens to come twice.")
    ] = None
    batch_tokens: Annotated[int | None, typer.Option(help="Source tokens decoded together.")] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Batches decoded in parallel, by default one per core; processes for many files."
        ),
    ] = None
    placeholders: Annotated[
        bool, typer.Option("--placeholders", help="Keep %s, {name}, numbers and the like.")
    ] = False
    shortlist: Annotated[
        bool, typer.Option("--shortlist", help="Use the model's shortlist, which is faster.")
    ] = False
    captured: Annotated[
        bool | None,
        typer.Option(
            "--captured/--no-captured", help="On a GPU, replay steps as CUDA graphs, or do not."
        ),
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="Above 0 samples instead of searching.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens of total mass p.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed for sampling.")] = None


@dataclass(frozen=True)
class Bulk:
    """How many files are done, shard by shard, into a folder."""

    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="A folder for many files, or a file for the answers to one."
        ),
    ] = None
    column: Annotated[
        str | None,
        typer.Option(help="The column of tables to read; by default text. Of pairs two: de,en."),
    ] = None
    ray: OnRay = None
    part: Annotated[
        str | None,
        typer.Option(metavar="N/M", help="Do this part of the work alone, such as 3/64."),
    ] = None
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Go on after what is wrong, and count it.")
    ] = False


@dataclass(frozen=True)
class Operation:
    """How `serve` is run for others."""

    waiting: Annotated[
        int, typer.Option(help="Texts or files that may wait; more are turned away.")
    ] = 1000
    keys: Annotated[
        Path | None, a_file(help="API keys, one per line; requests must bring one.")
    ] = None
    memory: Annotated[
        int | None, typer.Option(help="Megabytes of weights to hold; others wait on disk.")
    ] = None
    pivot: Annotated[
        bool, typer.Option("--pivot/--no-pivot", help="Chain two models where none has a pair.")
    ] = True
    grace: Annotated[
        float, typer.Option(help="Seconds from SIGTERM to the end, for a balancer to notice.")
    ] = 0.0
    suggestions: Annotated[
        Path | None, typer.Option(help="A file that takes suggested translations.")
    ] = None
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A folder of translated documents; servers side by side share it."
        ),
    ] = None
    glossary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A glossary that requests may name."),
    ] = None
    prefix: Annotated[str, typer.Option(help="Serve below this path, such as /translate.")] = ""
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Pages of this origin may ask: https://example.org; * for all."),
    ] = None
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which the server may be called.")
    ] = None
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(help="An address or network whose X-Forwarded-For counts.")
    ] = None
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Print a line of JSON for each request.")
    ] = False


NO_LANGUAGES, ANY_MACHINE, USUAL_SEARCH, ONE_FILE = Languages(), Machine(), Search(), Bulk()
USUAL_OPERATION = Operation()
