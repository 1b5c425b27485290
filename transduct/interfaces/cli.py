"""The one program, `transduct`. Results go to stdout, progress and errors to stderr; exit 0 done, 1 failed, 2 wrong."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup


class _Program(TyperGroup):
    """Ends in silence, with 0, when whoever reads its output has had enough (`| head`), with a line if interrupted."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            from transduct.errors import TrainingFailed

            raise TrainingFailed("interrupted") from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at the end
            raise SystemExit(0) from None


app = typer.Typer(
    cls=_Program,
    help="Train, run and explain models that turn one sequence into another.\n\nExample: transduct demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Model = Annotated[str, typer.Argument(help="A run or a model directory.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UsageError: Any = typer.BadParameter.__bases__[0]  # click's, which typer brings along


def _say_version(asked: bool) -> None:
    if asked:
        from transduct import __version__

        print(f"transduct {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


def _say(line: object, stream: TextIO | None = None) -> None:
    """Print to stderr, or to `stream`; of the processes that torchrun began only rank 0 prints."""
    from transduct.interfaces.ending import rank

    if rank() == "0":
        print(line, file=stream or sys.stderr)


def main() -> None:
    """Run the program; an error a user can mend is one line and exit status 2."""
    from transduct import share_cores
    from transduct.interfaces.ending import ended, from_home, open_streams, rank, repeated

    open_streams()
    words = from_home(sys.argv[1:])
    debug = "--debug" in (words[: words.index("--")] if "--" in words else words)  # wherever it stands
    if debug:
        words.remove("--debug")
    if next((word for word in words if not word.startswith("-")), None) == "train":
        words = repeated(words)
    share_cores()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which is Ctrl-C's
    try:
        raise SystemExit(app(words or ["--help"], standalone_mode=False))
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "transduct"
        print(f"transduct: {error.format_message()} (see: {command} --help)", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:  # noqa: BLE001 (whatever it is, it is said in one line)
        line, status = ended(error, debug)
        print(f"transduct: {'' if rank() == '0' else f'rank {rank()}: '}{line}", file=sys.stderr)
        raise SystemExit(status) from None


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Where to train.")] = Path("runs/demo")) -> None:
    """Train the built-in example, show it work.

    Example: transduct demo
    """
    from transduct.interfaces.demo import run

    run(out)


@app.command()
def train(
    recipe: Annotated[
        list[str] | None, typer.Argument(help="A recipe, and overrides such as training.steps=2000.", metavar="RECIPE")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; else runs/RECIPE or runs/translation.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    profile: Annotated[str | None, typer.Option(help="A profile of the recipe, such as quick or cpu.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Training text, a file or more, no recipe.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="Its translation, line by line.")] = None,
    valid_source: Annotated[
        str | None, typer.Option(help="Text to validate on; if not given, a tenth is held out, at most 1,000 pairs.")
    ] = None,
    valid_target: Annotated[str | None, typer.Option(help="Its translation.")] = None,
) -> None:
    """Train a recipe, or a translator from two files.

    \b
    Examples:
    transduct train recipes/multi30k_en_de.yaml data.root=DATA/multi30k --profile cpu --out runs/en-de
    transduct train --source train.de --target train.en --out runs/de-en
    """
    from transduct.config import placed
    from transduct.interfaces.progress import Watcher
    from transduct.tasks.runs import chosen_recipe
    from transduct.tasks.runs import train as train_recipe

    paths = [word for word in recipe or [] if "=" not in word or (word.endswith(".yaml") and os.path.isfile(word))]
    overrides = [word for word in recipe or [] if word not in paths]
    directory = out or Path("runs") / (Path(paths[0]).stem if paths else "translation")
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    chosen = chosen_recipe(paths, overrides, profile, directory, resume, files, _say)
    with Watcher() as watcher, placed(paths[0] if paths else None, overrides, profile):
        model = train_recipe(chosen, directory, resume, watcher.notify, watcher)
    _say(model, sys.stdout)


@app.command()
def translate(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text, one sentence a line; stdin if not given.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses searched; 1 is greedy.")] = None,
    n_best: Annotated[int, typer.Option(help="Alternatives a line: LINE, SCORE and TEXT, with tabs.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="SCORE and a tab before each line.")] = False,
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours longer output.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Source tokens decoded together.")] = None,
    workers: Annotated[int | None, typer.Option(help="Batches decoded side by side; one a core if not given.")] = None,
    shortlist: Annotated[bool, typer.Option("--shortlist", help="Use the shortlist of the model: faster.")] = False,
    captured: Annotated[bool, typer.Option("--captured", help="On a GPU, replay steps as graphs.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Above 0 samples instead of searching.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of mass p.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random samples.")] = None,
    prefixes: Annotated[Path | None, typer.Option(help="Text: what each line's translation begins with.")] = None,
    attention: Annotated[Path | None, typer.Option(help="Picture of the first line's attention: .svg or .png.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Translate text, one line out for each line in.

    Example: transduct translate runs/de-en input.de > output.en
    """
    from transduct.errors import TransductError
    from transduct.interfaces.lines import chunks, naming_lines, require_text, typed
    from transduct.interfaces.start import load

    named = {
        "beam": beam, "length_penalty": length_penalty, "batch_tokens": batch_tokens, "workers": workers,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
        "shortlist": shortlist or None, "captured": captured or None,
    }  # fmt: skip
    options = {name: value for name, value in named.items() if value is not None}
    require_text(file)
    if attention is not None:
        from transduct.interfaces.pictures import check_ending, draw_attention, require_folders

        check_ending(attention)
        require_folders(attention)
    translator = load(model, device, precision, "translate")
    output, shown = sys.stdout.buffer, None
    talking = file is None and prefixes is None and sys.stdin.isatty()
    for first, lines, begun in typed() if talking else chunks(model, file, prefixes):
        with naming_lines(prefixes, first):
            translations = translator.translate(lines, n_best, begun, **options)
        shown = shown or (lines[0], translations[0].tokens)
        for number, found in enumerate(translations, first + 1):
            if n_best > 1:
                rows = [f"{number}\t{t.score:.6f}\t{t.text}" for t in found.alternatives]
            else:
                rows = [f"{found.score:.6f}\t{found.text}" if scores else found.text]
            output.writelines(f"{row}\n".encode() for row in rows)
        output.flush()
    if attention is not None:  # once all is translated: what cannot be drawn loses no line
        if shown is None:
            raise TransductError("found no line to draw the attention of; give one at least")
        draw_attention(translator, shown[0], attention, {"target": shown[1]})


@app.command()
def predict(
    model: Model,
    inputs: Annotated[
        list[str], typer.Argument(help="What the task takes: texts (a tab between the two of a pair), or files.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of the task; once for each: --set length=500 --set beam=1."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to draw the answer, .png or .jpg: boxes, a painted caption.")
    ] = None,
    attention: Annotated[
        Path | None, typer.Option(help="Where to draw what the model looks at in the first input: .svg or .png.")
    ] = None,
    device: Device = "auto",
) -> None:
    """The model's answer to each input, for any task.

    \b
    Examples:
    transduct predict runs/de-en "Ein Haus." "Zwei Hunde."
    transduct predict runs/shakespeare "ROMEO:" --set length=500
    transduct predict runs/detr street.jpg --out found.png
    """
    from transduct.interfaces.pictures import check_ending, draw_attention, require_folders
    from transduct.interfaces.requests import options_said
    from transduct.interfaces.start import load
    from transduct.tasks.showing import check_drawable, draw, places, read_once

    chosen = options_said(options or [])
    loaded = load(model, device)
    check_drawable(loaded, str(model), out, attention)
    check_ending(attention)
    require_folders(out, attention)
    drawn = places(loaded, inputs, out, attention)
    inputs = [read_once(loaded, given) for given in inputs]
    for number, (given, output) in enumerate(zip(inputs, loaded.predict(inputs, **chosen), strict=True)):
        print(output)
        if out is not None:
            draw(loaded, given, output, drawn[number])
    if attention is not None:
        draw_attention(loaded, inputs[0], attention, chosen)


@app.command()
def evaluate(
    model: Model,
    source: Annotated[
        str | None, typer.Option(help="A text, pictures or sounds; the recipe's test set if not given.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="What is right for it, such as its translation.")] = None,
    against: Annotated[str | None, typer.Option(help="Another model, for a paired significance test.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses searched; 1 is greedy.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a model as its task is scored, with 95 % intervals: a translator by sacrebleu, with signatures.

    Example: transduct evaluate runs/de-en --source test.de --reference test.en
    """
    from transduct.interfaces.lines import table
    from transduct.tasks.base import evaluate as evaluate_model

    files = {name: value for name, value in (("source", source), ("reference", reference)) if value is not None}
    options = {} if beam is None else {"beam": beam}
    report = evaluate_model(model, files, against, device, **options)
    if as_json:
        print(report.as_json())
        return
    print(*table(report), sep="\n")


@app.command()
def convert(
    model: Annotated[str, typer.Argument(help="A run, a model directory, or a folder of Hugging Face's Marian.")],
    out: Annotated[Path, typer.Argument(help="A new directory.")],
    to: Annotated[str | None, typer.Option("--format", help="ctranslate2, huggingface or onnx.")] = None,
    precision: Annotated[str | None, typer.Option(help="int8: write an 8-bit copy.")] = None,
    shortlist: Annotated[
        Path | None, typer.Option(help="Text like that to be translated, for a shortlist of a model of ours.")
    ] = None,
    others: Annotated[list[str] | None, typer.Option("--with", help="A model to decide together with.")] = None,
) -> None:
    """Write a model for another tool, a smaller and faster one, or several as one; Hugging Face's Marian becomes ours.

    \b
    Examples:
    transduct convert runs/de-en de-en.int8 --precision int8
    transduct convert runs/de-en de-en.fast --precision int8 --shortlist train.de
    transduct convert runs/de-en de-en.ct2 --format ctranslate2
    transduct convert runs/de-en de-en.onnx --format onnx
    transduct convert opus-mt-de-en de-en
    transduct convert runs/de-en de-en.three --with runs/de-en.2 --with runs/de-en.3
    """
    from transduct.errors import TransductError
    from transduct.interop import ctranslate2, huggingface, int8, onnx
    from transduct.tasks.base import configuration, copy_model, load, model_directory
    from transduct.tasks.ensemble import combine

    formats = {"ctranslate2": ctranslate2.convert, "huggingface": huggingface.convert, "onnx": onnx.convert}
    for name, known in ((to, [*formats]), (precision, ["int8"])):
        if name is not None and name not in known:
            raise TransductError(f"unknown '{name}'; known are: {', '.join(known)}")
    if others:
        if to or precision or shortlist:
            raise TransductError("--with puts models of ours together as they are; make a directory of them first")
        combine([model_directory(each) for each in (model, *others)], out)
    elif huggingface.found_in(Path(model)):
        if to or precision or shortlist:
            raise TransductError(
                f"{model}: is Hugging Face's; make it a model of ours first: transduct convert {model} OUT"
            )
        huggingface.read(model_directory(model), out)
    else:
        directory = model_directory(model)
        configuration(directory)  # what is no model of ours is said first
        if (to is None) == (precision is None and shortlist is None):
            raise TransductError("give --format, for another tool, or --precision and --shortlist, for a model of ours")
        if to:
            formats[to](directory, out)
        else:
            beside = dict if shortlist is None else lambda: load(model, verb="shortlist_of").shortlist_of(shortlist)
            (int8.convert if precision else copy_model)(directory, out, beside)
    print(out)


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="decode or train.")],
    against: Annotated[
        str | None, typer.Option(help="A peer: ctranslate2 or transformers to decode, transformers or torch to train.")
    ] = None,
    size: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "base",
    vocabulary: Annotated[int, typer.Option(help="How many tokens the model knows.")] = 32_000,
    sentences: Annotated[int | None, typer.Option(help="How many; 512 to decode, 192 to train on.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of each side; all cores if not given.")] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side; the median counts.")] = 3,
    only: Annotated[str, typer.Option(help="Rows whose name holds this.")] = "",
    model: Annotated[str | None, typer.Option(help="A trained model to decode with, instead of drawn weights.")] = None,
    text: Annotated[Path | None, typer.Option(help="What it is to translate.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Tokens a second, ours beside a peer's: the same sentences, model size, precision and threads, turn by turn.

    \b
    Examples:
    transduct bench decode --against ctranslate2
    transduct bench train --against transformers --size small --vocabulary 8000
    """
    import json

    from transduct.errors import TransductError
    from transduct.interfaces.bench import Sizes, about, run

    if (model is None) != (text is None):
        raise TransductError("--model and --text belong together; give both or neither")
    if model is not None and what != "decode":
        raise TransductError("--model and --text are for decoding; leave them out")
    if model is not None and (size, vocabulary) != ("base", 32_000):
        raise TransductError("--size and --vocabulary are of drawn weights, the model has its own; leave them out")
    given = None if model is None or text is None else (model, text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    many = sentences if sentences is not None else 512 if what == "decode" else 192
    sizes = Sizes(size, vocabulary, many, (cores or 1) if threads is None else threads, device)
    rows = []
    for row in run(what, against, sizes, rounds, only, given):
        rows.append(row)
        if not as_json:
            ratio = "" if row["ratio"] is None else f"  {against} {row['peer']:,.0f}  ratio {row['ratio']:.2f}"
            print(f"{row['name']:48} {row['ours']:,.0f} tokens/s{ratio}", flush=True)
    if as_json:
        print(json.dumps({"rows": rows, "about": about()}))


@app.command()
def score(
    model: Model,
    source: Annotated[Path, typer.Option(help="Text.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    device: Device = "auto",
) -> None:
    """Forced decoding: the log-probability of each target given its source, one a line.

    Example: transduct score runs/de-en --source test.de --target test.en
    """
    from transduct.tasks.base import scores

    for value in scores(model, {"source": str(source), "reference": str(target)}, device):
        print(f"{value:.6f}", flush=True)


@app.command()
def serve(
    model: Model,
    port: Annotated[int, typer.Option(help="Where to listen; 0 for any that is free.")] = 5000,
    host: Annotated[str, typer.Option(help="Of this machine alone, or 0.0.0.0 for all that reach it.")] = "127.0.0.1",
    waiting: Annotated[int, typer.Option(help="Texts or files that may wait; more are turned away.")] = 1000,
    keys: Annotated[Path | None, typer.Option(help="A file of keys, one a line; requests must bring one.")] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Serve a model over HTTP, with a page to try it, until Ctrl-C.

    \b
    Example: transduct serve runs/de-en --port 5000
    curl localhost:5000/translate -H 'Content-Type: application/json' -d '{"texts": ["Ein Haus."]}'
    """
    from transduct.interfaces.server import serve as serve_model

    serve_model(model, host, port, waiting, keys, device, precision)
