"""Decoding on a GPU: our search, captured search, and Hugging Face's `generate`, taking turns in
one process.

python benchmarks/gpu_decoding.py --out results/gpu_decoding [--data DATA/multi30k] [--rounds 5]
[--seconds 170] [--only greedy] [--profile]

python benchmarks/gpu_decoding.py --out /tmp/miniature --miniature

A base Transformer with random weights in bfloat16; 32 tokens in, the end included, and exactly 32
tokens out. In a turn a contender decodes one batch repeatedly for half a second; a row gives the
medians of its turns. Memory is a contender's peak above what was allocated before it. To finish
within four minutes no row starts after `--seconds`; later rows are listed as not measured.

With `--data` a model that Hugging Face can read is first trained for half a minute. Both then
translate the test file with the same weights, from text to text, sorted by length here, in batches
there. The table says how many translations are the same. Writes gpu_decoding.json and
gpu_decoding.md after every row, and prints the table last. `--miniature` runs the same code on a
CPU with a model too small to measure.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from transduct.interop import huggingface
from transduct.models.transformer import SIZES
from transduct.predictors.base import load
from transduct_bench.ours import decoding, untrained
from transduct_bench.peers import transformers_decoding
from transduct_bench.rows import about

Run = Callable[[], int]
CONTENDERS = ("search", "captured", "transformers")


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long."""

    size: str
    vocabulary: int
    tokens: int
    batches: tuple[tuple[int, int], ...]  # beam, sentences
    device: str
    turn: float  # seconds
    rounds: int


FULL = Plan(
    "base", 32_000, 32, ((1, 1), (1, 64), (1, 512), (1, 2048), (4, 1), (4, 512)), "cuda", 0.5, 5
)
MINIATURE = Plan("tiny", 100, 8, ((1, 1), (1, 5), (3, 2)), "cpu", 0.0, 2)


def contenders(
    plan: Plan, folder: Path, beam: int, sentences: int
) -> Iterator[tuple[str, Callable[[], Run]]]:
    """The name of each contender, and a function that prepares its work."""
    random = Random(1)
    sources = [
        [random.randrange(3, plan.vocabulary) for _ in range(plan.tokens - 1)]
        for _ in range(sentences)
    ]
    lengths, budget = [plan.tokens] * sentences, plan.tokens * max(16, sentences)
    work: dict[str, Any] = {
        "sources": sources,
        "lengths": lengths,
        "beam": beam,
        "precision": "bfloat16",
    }
    for name, captured in (("search", False), ("captured", True)):
        settings = {"device": plan.device, "captured": captured, "batch_tokens": budget}
        yield name, partial(decoding, str(folder), **work, **settings)
    shape = {"dropout": 0.1, "vocabulary": plan.vocabulary, **SIZES[plan.size]}
    threads = torch.get_num_threads()
    yield (
        "transformers",
        lambda: transformers_decoding(
            shape, **work, batch=sentences, threads=threads, device=plan.device
        ),
    )


def trained(plan: Plan, data: Path, folder: Path) -> tuple[Path, list[str]]:
    """A trained model that Hugging Face can read, and the sentences of the test set."""
    from transduct.config import Recipe, load_recipe, merge
    from transduct.data.lines import read_lines
    from transduct.runs.train import train

    sections: dict[str, Any] = {
        "data": {"replace": [], "valid": None},
        "model": {"norm": "post", "positions": "sinusoidal_concatenated"},
        "training": {"validate_every": 0, "best": None, "steps": 1500, "average": 1},
    }
    if plan.device == "cpu":
        tiny = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
        recipe = Recipe(
            "translation",
            data={"train": [{"generate": "reverse", "count": 120}], "max_length": 40, "workers": 0},
            tokenizer={"kind": "bpe", "size": 60},
            model={**tiny, **sections["model"]},
            training={"steps": 4, "batch_tokens": 200, "warmup": 2, "device": "cpu"},
        )
        return train(recipe, folder / "run", notify=quiet), ["a b c", "c a b", "b b a", "a c b"]
    recipe = load_recipe(
        Path(__file__).parents[1] / "recipes" / "multi30k_en_de.yaml",
        [f"data.root={data.resolve()}"],
        "cpu",
    )
    changed = {name: merge(getattr(recipe, name), part) for name, part in sections.items()}
    recipe = replace(recipe, **changed)
    return train(recipe, folder / "run", notify=quiet), read_lines(data / "test_2016_flickr.en.gz")


def quiet(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def translating(
    plan: Plan, model: Path, folder: Path, texts: list[str], beam: int
) -> Iterator[tuple[str, Callable[[], Callable[[], list[str]]]]]:
    """The name of each contender, and a function that prepares its translation of the texts."""
    precision = "bfloat16" if plan.device == "cuda" else "float32"

    def ours(captured: bool) -> Callable[[], list[str]]:
        translator = load(str(model), plan.device, precision, "translate")
        return lambda: [
            each.text
            for each in translator.translate(
                texts, beam=beam, length_penalty=0.0, captured=captured
            )
        ]

    def theirs() -> Callable[[], list[str]]:
        from transformers import AutoTokenizer, MarianMTModel

        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        marian: Any = MarianMTModel.from_pretrained(str(folder))
        marian = marian.to(plan.device, getattr(torch, precision)).eval()
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i].split()))
        batch = 512 // beam

        def run() -> list[str]:
            outputs = [""] * len(texts)
            for start in range(0, len(texts), batch):
                chosen = order[start : start + batch]
                rows = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True).to(
                    plan.device
                )
                longest = 2 * rows["input_ids"].shape[1] + 21  # the begin token counts
                found = marian.generate(
                    input_ids=rows["input_ids"],
                    attention_mask=rows["attention_mask"],
                    num_beams=beam,
                    do_sample=False,
                    length_penalty=0.0,
                    max_length=longest,
                )
                lines = tokenizer.batch_decode(found, skip_special_tokens=True)
                for number, line in zip(chosen, lines, strict=True):
                    outputs[number] = line.strip()
            return outputs

        return run

    yield "search", lambda: ours(False)
    yield "captured", lambda: ours(True)
    yield "transformers", theirs


def measure_text(
    plan: Plan, model: Path, folder: Path, texts: list[str], beam: int
) -> dict[str, Any]:
    """The sentences a second of each contender on the same file, and how many translations are the
    same as those of our plain search."""
    row: dict[str, Any] = {"beam": beam, "sentences": len(texts), "failed": {}, "same": {}}
    expected: list[str] = []
    for name, prepare in translating(plan, model, folder, texts, beam):
        with noted(name, row):
            run = prepare()
            started = time.perf_counter()
            outputs = run()
            row[f"{name}_first_seconds"] = round(time.perf_counter() - started, 3)
            expected = expected or outputs
            row["same"][name] = sum(map(str.__eq__, outputs, expected))
            speeds = []
            for _ in range(min(plan.rounds, 3)):
                started = time.perf_counter()
                run()
                speeds.append(len(texts) / (time.perf_counter() - started))
            row[name] = round(statistics.median(speeds), 1)
    captured, theirs = row.get("captured"), row.get("transformers")
    row["ratio"] = captured and theirs and round(captured / theirs, 2)
    return row


def measure(plan: Plan, folder: Path, beam: int, sentences: int) -> dict[str, Any]:
    """The medians of one row."""
    runs: dict[str, Run] = {}
    row: dict[str, Any] = {"beam": beam, "sentences": sentences, "failed": {}}
    for name, prepare in contenders(plan, folder, beam, sentences):
        before = on_gpu("memory_allocated", plan) or 0
        on_gpu("reset_peak_memory_stats", plan)
        with noted(name, row):
            run = prepare()
            started = time.perf_counter()
            run()
            row[f"{name}_first_seconds"] = round(time.perf_counter() - started, 3)
            run()
            row[f"{name}_memory_mb"] = round(
                ((on_gpu("max_memory_allocated", plan) or 0) - before) / 2**20
            )
            runs[name] = run
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(plan.rounds):
        for name, run in runs.items():
            if name not in row["failed"]:
                with noted(name, row):
                    speeds[name].append(turn(plan, run))
    for name, each in speeds.items():
        if name not in row["failed"]:
            row[name] = round(statistics.median(each), 1)
            row[f"{name}_range"] = [round(min(each), 1), round(max(each), 1)]
    captured, theirs = row.get("captured"), row.get("transformers")
    row["milliseconds_a_step"] = captured and round(1000 * sentences / captured, 4)
    row["ratio"] = captured and theirs and round(captured / theirs, 2)
    return row


@contextmanager
def noted(name: str, row: dict[str, Any]) -> Iterator[None]:
    """Context manager that records any error of a contender, so that the others are still
    measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (drivers and libraries raise anything)
        row["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{name}: {row['failed'][name]}", file=sys.stderr)


def turn(plan: Plan, run: Run) -> float:
    """The speed in one turn, in tokens per second."""
    started, tokens = time.perf_counter(), 0
    while True:
        tokens += run()
        on_gpu("synchronize", plan)
        if (seconds := time.perf_counter() - started) > plan.turn:
            return tokens / seconds


def on_gpu(name: str, plan: Plan) -> Any:
    """Call a function of torch.cuda if there is a GPU."""
    return getattr(torch.cuda, name)() if plan.device == "cuda" else None


def profile(plan: Plan, folder: Path, beam: int, sentences: int) -> str:
    """Profile a captured search: a table of its kernels."""
    run = dict(contenders(plan, folder, beam, sentences))["captured"]()
    run()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if plan.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds, acc_events=True) as found:
        run()
        on_gpu("synchronize", plan)
    order = "self_cuda_time_total" if plan.device == "cuda" else "self_cpu_time_total"
    return found.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=90)


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Decoding on a GPU",
        "",
        f"{found['device']}, torch {found['about'].get('torch')}, transformers "
        f"{found['about'].get('transformers')}, "
        f"{found['plan']['size']} model of drawn weights, bfloat16, {found['plan']['tokens']} "
        "tokens in and out. "
        f"Command: `{found['command']}`. Tokens a second, medians of {found['plan']['rounds']} "
        "turns; memory in MB.",
        "",
        "| | search | captured | transformers | captured / transformers | ms a captured step | "
        "memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        speeds = [f"{row[name]:,.0f}" if name in row else "not measured" for name in CONTENDERS]
        memory = " / ".join(str(row.get(f"{name}_memory_mb", "-")) for name in CONTENDERS)
        ratio = "not measured" if row["ratio"] is None else f"{row['ratio']:.2f}"
        kind = "greedy" if row["beam"] == 1 else f"beam {row['beam']}"
        step = (
            "not measured"
            if row["milliseconds_a_step"] is None
            else f"{row['milliseconds_a_step']:.3f}"
        )
        cells = [f"{kind}, batch {row['sentences']}", *speeds, ratio, step, memory]
        lines.append(f"| {' | '.join(cells)} |")
    for row in found.get("text", ()):
        speeds = [f"{row[name]:,.0f}" if name in row else "not measured" for name in CONTENDERS]
        ratio = "not measured" if row["ratio"] is None else f"{row['ratio']:.2f}"
        same = " / ".join(str(row["same"].get(name, "-")) for name in CONTENDERS)
        kind = "greedy" if row["beam"] == 1 else f"beam {row['beam']}"
        lines.append(
            f"| test file, {kind}, sentences/s | {' | '.join(speeds)} | {ratio} | "
            f"same: {same} of {row['sentences']} | - |"
        )
    for row in [*found["rows"], *found.get("text", ())]:
        for name, reason in row["failed"].items():
            lines.append(
                f"\nFailed: {name}, beam {row['beam']}, batch {row['sentences']}: {reason}."
            )
    for beam, sentences in found["not_measured"]:
        lines.append(f"\nNot measured, for want of time: beam {beam}, batch {sentences}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="a folder of Multi30k, for real text")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=170.0, help="no row is begun after these")
    parser.add_argument("--only", choices=("greedy", "beam"))
    parser.add_argument(
        "--profile", action="store_true", help="kernels of a captured search, instead of speeds"
    )
    parser.add_argument("--miniature", action="store_true")
    arguments = parser.parse_args()
    plan = MINIATURE if arguments.miniature else FULL
    plan = replace(plan, rounds=arguments.rounds or plan.rounds)
    chosen = [
        pair
        for pair in plan.batches
        if arguments.only in (None, "greedy" if pair[0] == 1 else "beam")
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if plan.device == "cuda" else platform.machine()
    found: dict[str, Any] = {
        "device": device,
        "about": about(),
        "command": " ".join(sys.argv),
        "plan": asdict(plan),
        "rows": [],
    }
    started = time.perf_counter()

    def write() -> None:
        (arguments.out / "gpu_decoding.json").write_text(
            json.dumps(found, indent=1), encoding="utf-8"
        )
        (arguments.out / "gpu_decoding.md").write_text(table(found), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        if (arguments.data or arguments.miniature) and not arguments.profile:
            model, texts = trained(plan, arguments.data, Path(folder))
            huggingface.convert(model, Path(folder) / "theirs")
            found["text"] = []
            for beam in (1, 4):
                given = (plan, model, Path(folder) / "theirs", texts, beam)
                found["text"].append(measure_text(*given))
                print(json.dumps(found["text"][-1]), flush=True)
        untrained(Path(folder) / "model", plan.size, plan.vocabulary)
        for number, pair in enumerate(chosen):
            if arguments.profile:
                text = profile(plan, Path(folder) / "model", *pair)
                (arguments.out / f"profile_beam{pair[0]}_batch{pair[1]}.txt").write_text(
                    text, encoding="utf-8"
                )
                continue
            if time.perf_counter() - started > arguments.seconds:
                break
            found["rows"].append(measure(plan, Path(folder) / "model", *pair))
            found["not_measured"] = chosen[number + 1 :]
            print(json.dumps(found["rows"][-1]), flush=True)
            write()
    if found["rows"]:
        print(table(found))


if __name__ == "__main__":
    main()
