"""Tables 1 to 4 of "Attention Is All You Need" (Vaswani et al. 2017) as commands, and BLEU by
sentence length.

python benchmarks/paper_tables.py complexity --out DIR [--quick]
python benchmarks/paper_tables.py translation --out DIR [--run RUN ...]
python benchmarks/paper_tables.py variations --out DIR --root DATA/multi30k [--seeds 1,2] [--resume]
python benchmarks/paper_tables.py parsing RUN --out DIR [--root DATA/wsj_treebank_sample]
python benchmarks/paper_tables.py lengths RUN ... --out DIR [--labels a,b,c]

Each writes `table.md`, its numbers as JSON and its pictures as SVG; docs/paper_tables.md explains
them.
"""

import argparse
import json
import math
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import paper_layers as layers
import paper_parsing as parsers
import paper_variations as variations
import torch
from paper_layers import KINDS, Cost, TrainingRate
from paper_pictures import cost_and_score, strip
from paper_variations import BASE, Result

import transduct
from transduct.config import Recipe, load_recipe, stages_of
from transduct.drawing.plots import curves, save
from transduct.drawing.svg import Picture
from transduct.errors import TrainingFailed, TransductError
from transduct.evaluation.text import corpus_scores
from transduct.models.transformer import SIZES, Config
from transduct.predictors.translation import DERIVED, FAMILIES, Translator
from transduct.runs import evaluate
from transduct.storage import write_file
from transduct.tasks.sections import ModelSection

RECIPES = Path(__file__).parents[1] / "recipes"

# Table 2 as published: BLEU on newstest2014, to German and to French, training costs in FLOPs;
# parameters from table 3.
PUBLISHED: list[tuple[str, float | None, float | None, float | None, float | None, int | None]] = [
    ("ByteNet", 23.75, None, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20, None),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20, None),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20, None),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20, None),
    ("Deep-Att + PosUnk, ensemble", None, 40.4, None, 8.0e20, None),
    ("GNMT + RL, ensemble", 26.30, 41.16, 1.8e20, 1.1e21, None),
    ("ConvS2S, ensemble", 26.36, 41.29, 7.7e19, 1.2e21, None),
    ("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18, 65_000_000),
    ("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19, 213_000_000),
]
TEST_SET = "newstest2014"
COMMANDS = ("complexity", "translation", "variations", "parsing", "lengths")
SENTENCE = 25  # tokens of a sentence when counting the cost of attention, which is 1 % of the total


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; None becomes an empty cell, and numbers are rounded for reading."""
    lines = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return (
            f"{value:.1e}" if value >= 1e7 else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
        )
    return str(value).replace("|", "\\|")


def write(out: Path, parts: Sequence[str], results: Any = None, **pictures: Picture) -> None:
    """Write paragraphs and tables to `table.md`, their data to `results.json`, and the pictures by
    name."""
    out.mkdir(parents=True, exist_ok=True)
    machine = (
        f"{platform.machine()}, {platform.system()}, PyTorch {torch.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    write_file(out / "table.md", "\n".join([*parts, f"{machine}\n"]).encode())
    if results is not None:
        write_file(
            out / "results.json", json.dumps({"machine": machine, **results}, indent=1).encode()
        )
    for name, picture in pictures.items():
        save(picture, out / f"{name}.svg")


# table 1


def complexity(out: Path, lengths: Sequence[int], d_model: int, size: str, seconds: float) -> None:
    """Table 1: the layers' formulas with their time and memory, and training speeds of Transformer
    and RNN."""
    costs = list(layers.costs(lengths, d_model, seconds))
    sentences = [length for length in (8, 32, 128, 512) if length <= lengths[-1]]
    rates = list(layers.training_rates(sentences, 8 * sentences[-1], 8000, size, seconds))
    formulas = [(k.name, k.complexity, k.sequential, k.path, _growth(costs, k.name)) for k in KINDS]
    operations = [[n, *(k.multiply_adds(n, d_model) / 1e9 for k in KINDS)] for n in lengths]
    names = [kind.name for kind in KINDS]
    parts = [
        f"One layer of width d = {d_model}, a sequence of n tokens, r = "
        f"{layers.NEIGHBOURHOOD}, k = {layers.KERNEL}.\n",
        markdown(
            ["layer", "complexity", "sequential operations", "longest path", "time grows as"],
            formulas,
        ),
        "Billions of multiply-adds of a forward pass, projections counted:\n",
        markdown(["n", *names], operations),
        "Forward, milliseconds:\n",
        _by_length(costs, "forward_ms"),
        "Forward and backward, milliseconds:\n",
        _by_length(costs, "training_ms"),
        "Forward and backward, MiB held at once beyond weights and input:\n",
        _by_length(costs, "memory_mib"),
        f"Training, size {size}, {8 * sentences[-1]:,} tokens a side: target tokens a second "
        "by sentence length\n",
        _rates(rates),
    ]
    results = {
        "layers": [asdict(cost) for cost in costs],
        "training": [asdict(rate) for rate in rates],
    }
    time = _costs_picture(costs, "training_ms", "milliseconds", "Forward and backward of one layer")
    memory = _costs_picture(
        costs, "memory_mib", "MiB", "Memory of forward and backward of one layer"
    )
    write(out, parts, results, plot=time, memory=memory)


def _growth(costs: Sequence[Cost], kind: str) -> str:
    """The exponent of n in the training time over the last doubling."""
    before, last = [cost for cost in costs if cost.kind == kind][-2:]
    slope = math.log(last.training_ms / before.training_ms) / math.log(last.length / before.length)
    return f"n^{slope:.2f}"


def _by_length(costs: Sequence[Cost], quantity: str) -> str:
    """A row for each length, a column for each layer type."""
    found = {(cost.kind, cost.length): getattr(cost, quantity) for cost in costs}
    lengths = sorted({cost.length for cost in costs})
    return markdown(
        ["n", *(k.name for k in KINDS)], [[n, *(found[k.name, n] for k in KINDS)] for n in lengths]
    )


def _costs_picture(costs: Sequence[Cost], quantity: str, unit: str, title: str) -> Picture:
    """A log-log plot of a quantity against the length; values that are not positive leave a gap."""
    lengths = sorted({cost.length for cost in costs})
    lines = {
        kind.name: [
            math.log10(value) if (value := getattr(cost, quantity) or 0.0) > 0.0 else math.nan
            for cost in costs
            if cost.kind == kind.name
        ]
        for kind in KINDS
    }
    return curves([math.log2(n) for n in lengths], lines, title, "log2 n", f"log10 {unit}")


def _rates(rates: Sequence[TrainingRate]) -> str:
    """A row for each model, a column for each sentence length."""
    found = {(rate.model, rate.length): rate.tokens_per_second for rate in rates}
    lengths = sorted({rate.length for rate in rates})
    models = {rate.model: rate.parameters for rate in rates}
    rows = [[model, count, *(found[model, n] for n in lengths)] for model, count in models.items()]
    return markdown(["model", "parameters", *map(str, lengths)], rows)


# table 2


def translation(out: Path, runs: Sequence[Path]) -> None:
    """Table 2: the published rows, and ours with parameters, training cost and the scores of given
    runs."""
    ours: dict[str, float | None] = dict.fromkeys(("base", "big"))
    found = []
    for run in runs:
        report, recipe = evaluate.evaluate(run), _recipe_of(run)
        test = _test_name(recipe)
        found.append((run.name, test, report.scores["bleu"], report.details["bleu"]["signature"]))
        if TEST_SET in test and _languages(recipe) == (".en", ".de"):
            ours |= {
                size: report.scores["bleu"]
                for size in ours
                if SIZES[size].items() <= recipe.model.items()
            }
    sizes = {size: our_size(size) for size in ours}
    rows: list[Sequence[object]] = [*PUBLISHED]
    for size, (parameters, flops) in sizes.items():
        bleu = "not run here" if ours[size] is None else f"{ours[size]:.2f}"
        rows.append([f"transduct, Transformer ({size})", bleu, None, flops, None, parameters])
    header = ["model", "EN-DE", "EN-FR", "FLOPs EN-DE", "FLOPs EN-FR", "parameters"]
    parts = [
        f"BLEU on {TEST_SET} and training cost: as published, and ours.\n",
        markdown(header, rows),
    ]
    if found:
        parts += ["Runs given:\n", markdown(["run", "test set", "BLEU", "signature"], found)]
    published = {
        name: (flops, bleu) for name, bleu, _, flops, *_ in PUBLISHED if bleu is not None and flops
    }
    measured = {
        f"transduct ({size})": (sizes[size][1], bleu)
        for size, bleu in ours.items()
        if bleu is not None
    }
    write(out, parts, {"runs": found, "sizes": sizes}, plot=cost_and_score(published, measured))


def _recipe_of(run: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run, or of its last stage."""
    return stages_of(load_recipe(run / "recipe.yaml", overrides))[-1]


def _test_name(recipe: Recipe) -> str:
    """The name of a recipe's test set."""
    test = recipe.data["test"]
    return Path(str(test.get("source") or test.get("pairs") or test.get("generate"))).name


def _languages(recipe: Recipe) -> tuple[str, ...]:
    """The languages of the test set, from its file extensions."""
    return tuple(Path(str(recipe.data["test"].get(side))).suffix for side in ("source", "target"))


def our_size(size: str) -> tuple[int, float]:
    """The parameters of our model, and the FLOPs of training it by recipes/wmt14_en_de.yaml."""
    recipe = load_recipe(RECIPES / "wmt14_en_de.yaml", profile=size)
    vocabulary, training = recipe.tokenizer["size"], recipe.training
    derived = {
        "source_size": vocabulary,
        "target_size": vocabulary,
        "max_length": recipe.data["max_length"],
    }
    section = ModelSection(recipe.model, FAMILIES, DERIVED)
    config = section.config(**derived)
    with torch.device("meta"):
        parameters = sum(p.numel() for p in section.family.build(config).parameters())
    return parameters, 6.0 * training["steps"] * training["batch_tokens"] * multiply_adds(
        config, SENTENCE
    )


def multiply_adds(config: Config, length: int) -> int:
    """Multiply-adds of the forward pass for one source and one target token, in sentences of
    `length` tokens.

    A training step takes 2 FLOPs for each in the forward pass and 4 in the backward pass, where
    both factors of a product get a gradient.
    """
    d, both = config.d_model, 2 * length * config.d_model  # QK^T, and weights times values
    feed_forward = 2 * d * config.d_ff
    encoder = 4 * d * d + both + feed_forward
    decoder = 4 * d * d + both + 4 * d * d + both + feed_forward
    return (
        config.encoder_layers * encoder + config.decoder_layers * decoder + config.target_size * d
    )


# table 3


def table_of_variations(
    out: Path, recipe: Recipe, rows: variations.Rows, seeds: Sequence[int], resume: bool
) -> None:
    """Table 3: run all unfinished trainings, rewriting the table after each."""
    chosen = [(BASE, ""), *((row, value) for row in rows for value in rows[row])]

    def show(results: Sequence[Result], times: Mapping[tuple[str, str], float]) -> None:
        groups = {
            key: [r for r in results if (r.row, r.value) == key and r.seed in seeds]
            for key in chosen
        }
        header = [
            "row",
            "value",
            "parameters",
            "dev perplexity",
            "dev BLEU",
            "seconds",
            "ms a step",
            "seeds",
        ]
        table = markdown(
            header,
            [_variation(*key, group, times.get(key)) for key, group in groups.items() if group],
        )
        note = (
            "Mean ± standard deviation over seeds; the final weights on the validation set, "
            "greedy.\n"
        )
        write(out, [note, table], plot=strip(groups))

    for results in variations.run_variations(recipe, rows, seeds, out, resume):
        if results:
            show(results, {})
            print(f"{len(results)} of {len(chosen) * len(seeds)}: {results[-1]}", file=sys.stderr)
    show(results, variations.step_times(recipe, rows, out))


def _variation(
    row: str, value: str, group: Sequence[Result], milliseconds: float | None
) -> list[object]:
    """A row of the table."""
    scored = [result for result in group if result.bleu is not None]
    count = (
        f"{len(group)}"
        if len(scored) == len(group)
        else f"{len(group)}, {len(group) - len(scored)} diverged"
    )
    parameters = scored[0].parameters if scored else None
    columns = [
        [getattr(result, name) for result in scored] for name in ("perplexity", "bleu", "seconds")
    ]
    step = None if milliseconds is None else f"{milliseconds:.0f}"
    return [row, value, parameters, *map(_mean_and_spread, columns), step, count]


def _mean_and_spread(values: Sequence[float]) -> str | None:
    if not values:
        return None
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


# table 4


def parsing(out: Path, run: Path, root: str | None, edges: Sequence[int]) -> None:
    """Table 4: labelled F1 of a run that translates words to trees, and of a grammar read off the
    same trees."""
    trees = parsers.treebank(run, _recipe_of(run, [] if root is None else [f"data.root={root}"]))
    words = [len(sentence.split()) for sentence in trees.sentences]
    groups = _by_words(words, edges)
    found = [parsers.by_translation(run, trees), parsers.by_grammar(trees)]
    f1 = {each.parser: parsers.f1_of_groups(each, trees.references, groups) for each in found}
    totals = [[each.parser, f1[each.parser]["all"], each.seconds] for each in found]
    rows = [
        [name, len(chosen), *(scores[name] for scores in f1.values())]
        for name, chosen in groups.items()
    ]
    parts = [
        f"Labelled F1 by evalb's rules on {len(words):,} test trees: the run {run.name}, which "
        "translates words to "
        f"trees, beside a PCFG read off the {len(trees.train):,} trees of its training data.\n",
        markdown(["parser", "F1", "seconds to parse"], totals),
        "The same by length:\n",
        markdown(["words in the sentence", "sentences", *f1], rows),
        "As published, on section 23 of the whole treebank:\n",
        markdown(["parser", "training", "F1"], parsers.PUBLISHED),
    ]
    picture = _lines_by_words(
        words, groups, f1, "Labelled F1 by the length of the sentence", "sentence", "F1"
    )
    seconds = {each.parser: each.seconds for each in found}
    counts = {name: len(chosen) for name, chosen in groups.items()}
    write(
        out,
        parts,
        {"run": str(run), "sentences": counts, "f1": f1, "seconds": seconds},
        plot=picture,
    )


# BLEU by length


def by_length(
    out: Path, runs: Sequence[Path], labels: Sequence[str], root: str | None, edges: Sequence[int]
) -> None:
    """Corpus BLEU of several runs on their test set, by the number of words in the source."""
    if not len(set(labels)) == len(labels) == len(runs):
        raise TransductError(
            f"found {len(runs)} runs, labelled {', '.join(labels)}; give each a label of its own"
        )
    tests = [
        Translator.test_set({}, _recipe_of(run, [] if root is None else [f"data.root={root}"]))
        for run in runs
    ]
    for run, test in zip(runs, tests, strict=True):
        if test != tests[0]:
            raise TransductError(
                f"{run}: its test set is not that of {runs[0]}; give runs of one test set"
            )
    sources, references = tests[0]
    words = [len(source.split()) for source in sources]
    groups = _by_words(words, edges)
    scores = {
        label: _scores(run, sources, references, groups)
        for label, run in zip(labels, runs, strict=True)
    }
    header = ["words in the source", "sentences", *labels]
    rows = [
        [name, len(chosen), *(scores[label][name] for label in labels)]
        for name, chosen in groups.items()
    ]
    parts = ["Corpus BLEU of the sentences of each length.\n", markdown(header, rows)]
    picture = _lines_by_words(
        words, groups, scores, "BLEU by the length of the source", "source", "BLEU"
    )
    write(
        out,
        parts,
        {"sentences": {name: len(chosen) for name, chosen in groups.items()}, "bleu": scores},
        plot=picture,
    )


def _lines_by_words(
    words: Sequence[int],
    groups: Mapping[str, Sequence[int]],
    scores: Mapping[str, Mapping[str, float | None]],
    title: str,
    what: str,
    unit: str,
) -> Picture:
    """A line chart of scores by sentence length; missing scores leave a gap."""
    *names, _ = groups  # the last group has all sentences
    places = [statistics.mean(words[i] for i in groups[name]) for name in names]
    lines = {
        label: [math.nan if (score := found[name]) is None else score for name in names]
        for label, found in scores.items()
    }
    return curves(places, lines, title, f"words in the {what} (mean)", unit)


def _by_words(words: Sequence[int], edges: Sequence[int]) -> dict[str, list[int]]:
    """The indices of the sentences by range of length, without empty ranges, and finally those of
    all sentences."""
    bounds = [0, *edges, max([*words, *edges])]
    groups = {
        f"{a + 1} to {b}": [i for i, n in enumerate(words) if a < n <= b]
        for a, b in pairwise(bounds)
    }
    return {name: chosen for name, chosen in groups.items() if chosen} | {
        "all": list(range(len(words)))
    }


def _scores(
    run: Path,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    groups: Mapping[str, Sequence[int]],
) -> dict[str, float]:
    """The corpus BLEU of a run's translations of each group of sentences."""
    translator = transduct.load(run)
    outputs = [found.text for found in translator.translate(sources)]
    scores = {}
    for name, chosen in groups.items():
        pairs = [outputs[i] for i in chosen], [references[i] for i in chosen]
        scores[name] = corpus_scores(
            *pairs, ("bleu",), translator.bleu_tokenize, intervals=False
        ).scores["bleu"]
    return scores


# the command


def numbers(text: str) -> list[int]:
    """1,2 -> [1, 2]."""
    return [int(part) for part in text.split(",")]


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True)
    each = {name: tables.add_parser(name) for name in COMMANDS}
    for one in each.values():
        one.add_argument(
            "--out",
            type=Path,
            required=True,
            help="folder for the table, the numbers and the pictures",
        )
    each["complexity"].add_argument("--width", type=int, default=256, help="d")
    each["complexity"].add_argument(
        "--quick", action="store_true", help="lengths up to 256, in seconds"
    )
    each["translation"].add_argument(
        "--run", type=Path, action="append", default=[], help="a run to be scored"
    )
    varied = each["variations"]
    varied.add_argument(
        "--recipe",
        type=Path,
        default=RECIPES / "multi30k_en_de.yaml",
        help="the base; its profile cpu",
    )
    varied.add_argument("--root", help="folder of the recipe's data")
    varied.add_argument("--steps", type=int, help="of each training; the recipe's if not given")
    varied.add_argument("--seeds", type=numbers, default=[1, 2], help="such as 1,2")
    varied.add_argument(
        "--rows", type=lambda text: text.split(","), help=f"of {','.join(variations.VARIATIONS)}"
    )
    varied.add_argument("--resume", action="store_true", help="go on with what --out holds")
    parsed = each["parsing"]
    parsed.add_argument(
        "run", type=Path, metavar="RUN", help="a run such as recipes/wsj_parsing.yaml makes"
    )
    parsed.add_argument("--root", help="folder of the trees, if it has moved")
    parsed.add_argument(
        "--edges", type=numbers, default=[10, 20, 30, 40], help="longest of each but the last"
    )
    each["lengths"].add_argument("runs", type=Path, nargs="+", metavar="RUN")
    each["lengths"].add_argument(
        "--labels", type=lambda text: text.split(","), help="such as a,b,c; the runs' names"
    )
    each["lengths"].add_argument("--root", help="folder of the test set's files, if it has moved")
    each["lengths"].add_argument(
        "--edges", type=numbers, default=[8, 10, 12, 14, 17], help="longest of each but the last"
    )
    return parser.parse_args(words)


def run(a: argparse.Namespace) -> None:
    """Make the requested table."""
    if a.table == "complexity":
        if a.width < 1 or a.width % layers.HEAD_WIDTH:
            raise TransductError(
                f"--width is {a.width}, must be a multiple of {layers.HEAD_WIDTH}, the width "
                "of a head"
            )
        lengths = [2**power for power in range(5, 9 if a.quick else 15)]
        complexity(a.out, lengths, a.width, "tiny", 0.1 if a.quick else 1.0)
    elif a.table == "translation":
        translation(a.out, a.run)
    elif a.table == "variations":
        recipe = variations.base_recipe(a.recipe, a.root, a.steps)
        table_of_variations(a.out, recipe, variations.chosen_rows(a.rows), a.seeds, a.resume)
    elif a.table == "parsing":
        parsing(a.out, a.run, a.root, a.edges)
    else:
        by_length(a.out, a.runs, a.labels or [run.name for run in a.runs], a.root, a.edges)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; an error that the user can fix is one line and exit status 2."""
    a = arguments(words)
    try:
        run(a)
    except (TransductError, TrainingFailed) as error:
        print(f"paper_tables: {error}", file=sys.stderr)
        return 2 if isinstance(error, TransductError) else 1
    print((a.out / "table.md").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
