"""The `transduct` program. Results go to stdout, the rest to stderr; exit 0 done, 1 failed, 2 wrong
input or call."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from transduct.errors import TransductError, require
from transduct.interfaces import program, terminal
from transduct.interfaces.options import (
    ANY_MACHINE,
    NO_LANGUAGES,
    ONE_FILE,
    USUAL_OPERATION,
    USUAL_SEARCH,
    AsJson,
    Beam,
    Bulk,
    Device,
    Languages,
    Machine,
    Makers,
    Model,
    OnRay,
    Operation,
    Search,
    Settings,
    Workers,
    a_file,
)
from transduct.interfaces.program import (
    Command,
    Program,
    UsageError,
    load,
    set_options,
    with_records,
)

app = typer.Typer(
    cls=Program,
    help=(
        "Train, run and explain models that turn one sequence into another.\n\nExample: transduct "
        "demo"
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _unless_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _options(words: list[str] | None) -> dict[str, Any]:
    """The options of `--set`."""
    from transduct.serving.requests import parsed_options

    return parsed_options(words or [])


def _many(
    verb: str,
    model: str,
    files: list[str] | None,
    bulk: Bulk,
    fields: dict[str, Any],
    options: dict[str, Any],
    alone: dict[str, Any],
    as_json: bool = False,
) -> bool:
    """Do a command over many files, if that is what the call is; `alone` are the options that only
    a call of one file has."""
    if not terminal.of_many_files(set_options(bulk), files or []):
        return False
    if odd := [name for name, value in alone.items() if value]:
        raise UsageError(f"--{odd[0].replace('_', '-')} is for one file; leave it out, or --out")
    from transduct.interfaces.bulk import run

    run(verb, model, files or [], set_options(bulk), fields, options, as_json)
    return True


def command() -> Callable[[Callable[..., None]], object]:
    """Add a command to the program; records among its parameters are groups of options."""
    return lambda function: app.command(cls=Command)(with_records(function))


def _say_version(asked: bool) -> None:
    if asked:
        from transduct import __version__

        print(f"transduct {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """The options of all commands."""


def _say(line: object, stream: TextIO | None = None) -> None:
    """Print to stderr or to `stream`; under torchrun only rank 0 prints."""
    if program.rank() == "0":
        print(line, file=stream or sys.stderr)


def main() -> None:
    """Run the program; an error that the user can fix is one line and exit status 2."""
    program.run(app)


@command()
def demo(out: Annotated[Path, typer.Option(help="Where to train.")] = Path("runs/demo")) -> None:
    """Train the built-in example and show what it does.

    Example: transduct demo
    """
    from transduct.interfaces.demo import run

    run(out)


@command()
def train(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|TABLE|KEY=VALUE",
            help="A recipe, or tables of pairs (TSV, CSV, JSON lines, Parquet, TMX, XLIFF, PO); "
            "overrides (training.steps=2000).",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; else runs/RECIPE or runs/translation.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    profile: Annotated[
        str | None, typer.Option(help="A profile of the recipe, such as quick or cpu.")
    ] = None,
    source: Annotated[
        list[str] | None, a_file(help="Training text, one file or more, instead of a recipe.")
    ] = None,
    target: Annotated[list[str] | None, a_file(help="Its translation, line by line.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="The columns of a table, the source first: de,en.")
    ] = None,
    valid_source: Annotated[
        str | None, a_file(help="Validation text; else 10 %, up to 1,000 pairs.")
    ] = None,
    valid_target: Annotated[str | None, a_file(help="Its translation.")] = None,
    languages: Languages = NO_LANGUAGES,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Train on a cluster of Ray: an address, auto or local."
        ),
    ] = None,
    ranks: Annotated[
        str, typer.Option(help="Processes with --ray, one a GPU; 4:16 for as many as there are.")
    ] = "1",
) -> None:
    """Train a recipe, or a translator from files or tables.

    \b
    Examples:
    transduct train recipes/multi30k_en_de.yaml data.root=DATA --profile cpu --out runs/en-de
    transduct train --source train.de --target train.en --out runs/de-en
    transduct train pairs.tsv --columns de,en --out runs/de-en
    """
    from transduct.config import placed, recipe_words
    from transduct.data.sources import is_table

    paths, overrides = recipe_words(recipe or [], is_table)
    from transduct.inference.batches import watched
    from transduct.interfaces.progress import Watcher
    from transduct.runs.train import chosen_recipe
    from transduct.runs.train import train as train_recipe

    overrides += [f"decoding.{key}={value}" for key, value in set_options(languages).items()]
    directory = out or Path("runs") / (Path(paths[0]).stem if paths else "translation")
    files: dict[str, object] = {"source": source, "target": target}
    files |= {"valid_source": valid_source, "valid_target": valid_target, "columns": columns}
    chosen = chosen_recipe(paths, overrides, profile, directory, resume, files, _say)
    recipe_file = placed(paths[0] if paths else None, overrides, profile)
    if ray is not None:
        from transduct.runs.on_ray import train_on_ray

        _say(f"{directory}: the ranks write what they do to log.jsonl there")
        with recipe_file:
            _say(train_on_ray(chosen, directory, resume, ray, ranks), sys.stdout)
        return
    with Watcher() as watcher, recipe_file, watched(watcher.validating):
        model = train_recipe(chosen, directory, resume, watcher.notify, watcher)
    _say(model, sys.stdout)


@command()
def prepare(
    recipe: Annotated[
        list[str], typer.Argument(metavar="RECIPE|KEY=VALUE", help="A recipe; overrides.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the corpus.")],
    workers: Makers = 1,
    ray: OnRay = None,
    profile: Annotated[str | None, typer.Option(help="A profile of the recipe.")] = None,
) -> None:
    """Prepare the corpus of a recipe once, for any number of runs.

    The same command goes on after a stop, and prepares anew what has changed.

    \b
    Examples:
    transduct prepare recipe.yaml data.root=DATA --out corpus --workers 8
    transduct train recipe.yaml data.corpus=corpus --out runs/de-en
    """
    from transduct.config import load_recipe, placed, recipe_words
    from transduct.data.sources import is_table
    from transduct.runs.prepare import prepare as prepare_corpus
    from transduct.runs.train import refuse_other_files

    paths, overrides = recipe_words(recipe, is_table)
    if not paths:
        raise UsageError("the recipe is missing; name one")
    refuse_other_files(Path(paths[0]))
    chosen = load_recipe(Path(paths[0]), overrides, profile)
    with placed(paths[0], overrides, profile):
        _say(prepare_corpus(chosen, out, workers, ray, _say), sys.stdout)


@command()
def filter(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE|TABLE|KEY=VALUE", help="As for train; overrides."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The new folder of what is kept.")] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the reports, not the pairs.")
    ] = False,
    profile: Annotated[str | None, typer.Option(help="A profile of the recipe.")] = None,
    source: Annotated[list[str] | None, a_file(help="Text, instead of a recipe.")] = None,
    target: Annotated[list[str] | None, a_file(help="Its translation, line by line.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="The columns of a table, the source first: de,en.")
    ] = None,
    workers: Makers = 1,
    ray: OnRay = None,
    languages: Languages = NO_LANGUAGES,
) -> None:
    """Leave out pairs that are no translations, and say why.

    \b
    Examples:
    transduct filter --source train.de --target train.en --from de --to en --out clean
    transduct filter recipe.yaml data.filters.copied=true --out clean --report-only
    """
    from transduct.bulk.cleaning import filter_corpus
    from transduct.config import recipe_words
    from transduct.data.sources import DataConfig, is_table
    from transduct.records import record
    from transduct.runs.train import chosen_recipe
    from transduct.training.log import ignore

    if out is None:
        raise UsageError("--out is missing; name a new folder for what is kept")
    paths, overrides = recipe_words(recipe or [], is_table)
    if not (paths or source or target):
        raise UsageError("nothing to filter; give a recipe, a table, or --source and --target")
    overrides += [f"data.{key}={value}" for key, value in set_options(languages).items()]
    files: dict[str, object] = {"source": source, "target": target, "columns": columns}
    chosen = chosen_recipe(paths, overrides, profile, out, False, files, ignore)
    data = record(DataConfig, chosen.data, "data")
    _say(str(filter_corpus(data, out, report_only, _say, workers, ray)), sys.stdout)


@command()
def translate(
    model: Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]", help="Text or a document; else stdin. With --out many."),
    ] = None,
    n_best: Annotated[
        int, typer.Option(help="Alternatives for each line: LINE, SCORE and TEXT, tab-separated.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Put SCORE and a tab before each line.")
    ] = False,
    search: Search = USUAL_SEARCH,
    languages: Languages = NO_LANGUAGES,
    prefixes: Annotated[
        Path | None, a_file(help="Text: what the translation of each line begins with.")
    ] = None,
    glossary: Annotated[
        Path | None, a_file(help="Lines of a term, a tab, its translation.")
    ] = None,
    attention: Annotated[Path | None, a_file(help="First line's attention: .svg or .png.")] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Read lines of text, whatever the file seems to be.")
    ] = False,
    machine: Machine = ANY_MACHINE,
    bulk: Bulk = ONE_FILE,
) -> None:
    """Translate text, one line out for each line in.

    Documents come back whole: docx, pptx, odt, odp, html, md, srt, vtt, po, xliff, tmx, csv, json.

    \b
    Examples:
    transduct translate runs/de-en input.de > output.en
    transduct translate runs/de-en letter.docx --out letter.en.docx
    transduct translate runs/de-en 'in/*.parquet' --column text --out translated --workers 2
    """
    options = set_options(search) | set_options(languages)
    fields = {"n_best": n_best, "scores": scores, **vars(machine)}
    alone = {"prefixes": prefixes, "attention": attention, "text": text, "glossary": glossary}
    out = bulk.out if terminal.is_one_document(set_options(bulk), files or []) else None
    terminal.check_output(out, files or [])
    if not out and _many("translate", model, files, bulk, fields, options, alone):
        return
    file = terminal.require_text(Path(files[0]) if files else None)
    require(file or str(prefixes) != "-", "stdin holds the text; give the prefixes as a file")
    terminal.require_present(model)
    if attention is not None:
        from transduct.drawing.plots import check_ending, draw_attention

        check_ending(attention)
        terminal.require_folders(attention)
    talking = file is None and prefixes is None and sys.stdin.isatty()
    piped = None if file or talking else terminal.Piped(sys.stdin.buffer)
    of_lines = n_best > 1 or scores or bool(prefixes or attention)
    document = None if text else terminal.document(file, piped, of_lines, out, options)
    options |= terminal.terms(glossary)
    translator = load(model, machine.device, machine.precision, "translate")
    output, shown = sys.stdout.buffer, None
    if document:
        made = document.translated(translator.translate_marked(document.segments, **options))
        terminal.write_document(made, out)
        return
    with terminal.counting(not talking) as done:
        given_lines = terminal.chunks(model, file, prefixes, piped)
        for first, lines, begun in terminal.typed() if talking else given_lines:
            with terminal.naming_lines(prefixes, first):
                translations = translator.translate(lines, n_best, begun, **options)
            shown = shown or (lines[0], translations[0].tokens)
            shown_rows = terminal.rows(translations, first, n_best, scores)
            output.writelines(f"{row}\n".encode() for row in shown_rows)
            output.flush()
            done(len(lines))
    if attention is not None:  # after all is translated, so that an error here loses no line
        if shown is None:
            raise TransductError("found no line to draw the attention of; give one at least")
        draw_attention(
            translator, shown[0], attention, {"target": shown[1], **set_options(languages)}
        )


@command()
def predict(
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Argument(help="Texts (a tab between the two of a pair), or files; - for stdin."),
    ],
    options: Settings = None,
    text: Annotated[
        bool, typer.Option("--text", help="Take inputs for texts, even if files have such names.")
    ] = False,
    attention: Annotated[
        Path | None, a_file(help="Draw the first input's attention: .svg or .png.")
    ] = None,
    languages: Languages = NO_LANGUAGES,
    device: Device = "auto",
    workers: Workers = None,
    bulk: Bulk = ONE_FILE,
    as_json: AsJson = False,
) -> None:
    """Print the model's answer to each input, for any task.

    For a model over text, a file gives its lines. An input that cannot be answered leaves its line
    empty, and the exit status is 1.

    \b
    Examples:
    transduct predict runs/de-en "Ein Haus." "Zwei Hunde."
    transduct predict runs/reviews reviews.txt
    transduct predict runs/shakespeare "ROMEO:" --set length=500
    transduct predict runs/detr street.jpg --out found.png
    transduct predict runs/reviews 'in/*.parquet' --column text --out labelled

    --out is a picture of the answer (boxes, a painted caption), or a folder for many files.
    """
    terminal.require_present(model)
    out, chosen = bulk.out, _options(options) | set_options(languages)
    if set_options(bulk) and not terminal.is_picture(set_options(bulk), inputs):
        chosen |= _unless_none(workers=workers)
        alone = {"attention": attention, "text": text, "json": as_json}
        _many("predict", model, inputs, bulk, {"device": device}, chosen, alone)
        return
    terminal.require_folders(out, attention)
    from transduct.data.images import encode_picture
    from transduct.drawing.plots import check_ending, draw_attention
    from transduct.predictors.base import json_value
    from transduct.storage import write_file

    loaded = load(model, device)
    terminal.check_drawable(loaded, str(model), out, attention)
    check_ending(attention)
    groups, pictures = terminal.inputs_and_places(loaded, inputs, text, out, attention)
    loaded.predict([], **chosen)  # what is wrong with the call is said once
    shown, drawable = terminal.Answers("inputs", "output" if as_json else None), list[Any]()
    for name, asked, output in terminal.answered(
        groups, lambda some: loaded.predict(some, **chosen)
    ):
        # where nothing else was asked for
        if isinstance(output, TransductError) and len(inputs) == 1 and name == "input 1":
            raise output
        if shown.show(name, output, str, json_value):
            drawable = drawable or [asked]
            if out is not None:
                path = pictures[shown.count - 1]
                write_file(path, encode_picture(loaded.picture(asked, output), path))
    if attention is not None and drawable:
        draw_attention(loaded, drawable[0], attention, chosen)
    shown.end()


@command()
def evaluate(
    model: Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]", help="With --out DIR, tables with two columns."),
    ] = None,
    source: Annotated[
        str | None, a_file(help="Text, pictures or sounds; by default the recipe's test set.")
    ] = None,
    reference: Annotated[
        list[str] | None,
        a_file(
            "--reference",
            "--target",
            help="The right answers, such as the translation; may be repeated.",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model, for a paired significance test.")
    ] = None,
    beam: Beam = None,
    settings: Settings = None,
    languages: Languages = NO_LANGUAGES,
    machine: Machine = ANY_MACHINE,
    workers: Workers = None,
    bulk: Bulk = ONE_FILE,
    as_json: AsJson = False,
) -> None:
    """Score a model on a test set.

    Prints the scores of the task with 95 % intervals; for translation, those of sacrebleu with
    their signatures.

    \b
    Examples:
    transduct evaluate runs/de-en --source test.de --reference test.en
    transduct evaluate runs/de-en --set beam=4 --set length_penalty=0.6
    transduct evaluate runs/de-en 'in/*.parquet' --column de,en --out answers

    --out is a file for the model's answers, one per line; with FILE, a folder.
    """
    options = {**_options(settings), **_unless_none(beam=beam), **set_options(languages)}
    if files:
        options |= _unless_none(workers=workers)
        alone = {"source": source, "reference": reference, "against": against}
        if not _many("evaluate", model, files, bulk, vars(machine), options, alone, as_json):
            raise UsageError("give --source and --reference, or tables and --out")
        return
    terminal.check_output(bulk.out, [source, *(reference or [])])
    terminal.require_present(model, against, [source, *(reference or [])])
    from transduct.predictors.base import predictor_class
    from transduct.runs.evaluate import evaluate as evaluate_model

    answers = reference[0] if reference and len(reference) == 1 else reference
    report = evaluate_model(
        model,
        _unless_none(source=source, reference=answers),
        against,
        machine.device,
        machine.precision,
        bulk.skip_errors,
        **options,
    )
    print(*([report.as_json()] if as_json else terminal.table(report)), sep="\n", flush=True)
    if bulk.out is not None:
        outputs = [] if predictor_class(model).paints else report.outputs
        terminal.write_outputs(outputs, bulk.out)


@command()
def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A run, a model directory, a Hugging Face folder or hub name, or a TABLE.yaml."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="A new directory.")],
    to: Annotated[
        str | None, typer.Option("--format", help="Another tool: ctranslate2, huggingface or onnx.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="int8: write a smaller and faster copy.")
    ] = None,
    shortlist: Annotated[
        Path | None, a_file(help="Text like that to be translated: add a lexical shortlist.")
    ] = None,
    others: Annotated[
        list[str] | None, typer.Option("--with", metavar="MODEL", help="Add to an ensemble.")
    ] = None,
) -> None:
    """Convert a model to or from another format.

    Writes a model for another tool, a smaller and faster copy or an ensemble; reads published
    translation models in Hugging Face's format, from a folder or the hub.

    \b
    Examples:
    transduct convert runs/de-en de-en.int8 --precision int8
    transduct convert runs/de-en de-en.fast --precision int8 --shortlist train.de
    transduct convert runs/de-en de-en.ct2 --format ctranslate2
    transduct convert runs/de-en de-en.onnx --format onnx
    transduct convert Helsinki-NLP/opus-mt-de-en de-en
    transduct convert runs/de-en de-en.three --with runs/de-en.2 --with runs/de-en.3
    """
    if not os.path.isfile(model) and os.path.exists(os.path.dirname(model) or "."):
        terminal.require_present(model)
    terminal.require_place(out)
    from transduct.interop.convert import convert as convert_model

    convert_model(model, out, to, precision, shortlist, others or [])
    print(out)


@command()
def describe(
    model: Annotated[
        str | None, typer.Argument(help="A run or a model directory; this machine if none.")
    ] = None,
    out: Annotated[Path | None, a_file(help="Draw the model: .svg or .png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model: its task, settings and parameters by part. Without one, this machine.

    \b
    Examples:
    transduct describe
    transduct describe runs/de-en --out model.svg
    """
    require(model or not out, "--out draws a model; name one")
    if model is not None:
        terminal.require_present(model)
    from transduct.interfaces import describe as shown

    if model is None:
        shown.describe_machine(as_json)
    else:
        shown.describe(model, out, as_json)


@command()
def inspect(
    model: Model,
    text: Annotated[str, typer.Argument(help="One sentence.")],
    out: Annotated[Path, a_file(help="The page: a file that a browser opens, .html.")],
    languages: Languages = NO_LANGUAGES,
    beam: Beam = None,
    machine: Machine = ANY_MACHINE,
) -> None:
    """Show the inside of one sentence as a page.

    It has attention, next words, the beam, positions and the model.

    Example: transduct inspect runs/de-en "Ich habe Hunger." --out inside.html
    """
    terminal.require_present(model)
    from transduct.interfaces.inspect import inspect as write

    write(model, text, out, vars(machine), **set_options(languages), **_unless_none(beam=beam))


@command()
def score(
    model: Model,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]", help="With --out, tables with two columns, as --column."),
    ] = None,
    source: Annotated[Path | None, a_file(help="Text.")] = None,
    target: Annotated[
        Path | None, a_file("--target", "--reference", help="Its translation, line by line.")
    ] = None,
    workers: Workers = None,
    languages: Languages = NO_LANGUAGES,
    machine: Machine = ANY_MACHINE,
    bulk: Bulk = ONE_FILE,
    as_json: AsJson = False,
) -> None:
    """Score given translations (forced decoding).

    Prints the log-probability of each target given its source, one per line. A pair that cannot be
    scored leaves its line empty, and the exit status is 1.

    \b
    Examples:
    transduct score runs/de-en --source test.de --target test.en
    transduct score runs/de-en 'in/*.parquet' --column de,en --out scored
    """
    options = set_options(languages) | _unless_none(workers=workers)
    alone = {"source": source, "target": target, "json": as_json}
    if _many("score", model, files, bulk, vars(machine), options, alone):
        return
    if source is None or target is None:
        raise UsageError("give --source and --target, or tables and --out")
    terminal.require_present(model, None, [str(source), str(target)])
    from transduct.runs.evaluate import scores

    pair = {"source": str(source), "reference": str(target)}
    shown = terminal.Answers("pairs", "score" if as_json else None)
    with terminal.counting() as done:
        for value in scores(model, pair, **vars(machine), **set_options(languages)):
            name = f"{source} and {target}: pair {shown.count + 1}"
            shown.show(name, value, "{:.6f}".format, float)
            done(1)
    shown.end()


@command()
def serve(
    models: Annotated[list[str], typer.Argument(help="Models: MODEL, NAME=MODEL or en-de=MODEL.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any free one.")] = 5000,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all interfaces.")
    ] = "127.0.0.1",
    operation: Operation = USUAL_OPERATION,
    languages: Languages = NO_LANGUAGES,
    machine: Machine = ANY_MACHINE,
) -> None:
    """Serve models over HTTP, with a web page, until Ctrl-C.

    \b
    Example: transduct serve runs/de-en --port 5000
    curl localhost:5000/translate -H 'Content-Type: application/json' -d '{"texts": ["Ein Haus."]}'
    """
    for each in models:
        terminal.require_present(each.rpartition("=")[2])
    from transduct.serving.server import serve as serve_models

    settings = {**vars(operation), **vars(machine)}
    serve_models(models, host, port, **settings, options=set_options(languages))
