"""`transduct bench`: our speed compared with a peer's, each in a process of its own, taking
turns."""

import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

from transduct.devices import cores, processor
from transduct.errors import TransductError
from transduct_bench import peers
from transduct_bench.timing import Row, Side, measure

DECODING_PEERS, TRAINING_PEERS = ("ctranslate2", "transformers"), ("transformers", "torch")
# Log-normal sentence lengths: mean and standard deviation of the logarithm, shortest, longest.
CAPTIONS, NEWS = (2.65, 0.3, 5, 40), (3.0, 0.6, 3, 100)
LONGER = 1.13  # the length of a translation over that of its source
SIZE, VOCABULARY = "base", 32_000  # of random weights, by default
BATCH_TOKENS, BATCHES = 4096, 3  # of `bench train`
LARGEST = 1 << 24  # the largest number of sentences, threads, rounds or tokens


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and the workload, and the device."""

    size: str
    vocabulary: int
    sentences: int
    threads: int
    device: str


def asked(
    what: str,
    size: str,
    vocabulary: int,
    sentences: int | None,
    threads: int | None,
    device: str,
    model: str | None,
    text: Path | None,
) -> tuple[Sizes, tuple[str, Path] | None]:
    """The sizes that the options of the command line ask for, and the trained model and text given
    with them.

    Raises:
        TransductError: if the options of a model do not go together, or with those of a benchmark
            without one.
    """
    if (model is None) != (text is None):
        raise TransductError("--model and --text belong together; give both or neither")
    if model is not None and what != "decode":
        raise TransductError("--model and --text are for decoding; leave them out")
    if model is not None and (size, vocabulary) != (SIZE, VOCABULARY):
        raise TransductError(
            "--size and --vocabulary describe random weights; a model has its own: leave them out"
        )
    many = sentences if sentences is not None else 512 if what == "decode" else 4000
    sizes = Sizes(size, vocabulary, many, cores() if threads is None else threads, device)
    return sizes, None if model is None or text is None else (model, text)


def shown(row: dict[str, Any], against: str | None) -> str:
    """A row as a line of text."""
    ratio = (
        "" if row["ratio"] is None else f"  {against} {row['peer']:,.0f}  ratio {row['ratio']:.2f}"
    )
    used = "/".join(dict.fromkeys(filter(None, row["kernels"].values()))) or "no kernels"
    return f"{row['name']:48} {row['ours']:,.0f} tokens/s{ratio}  {row['processor']}, {used}"


def decoding_rows(
    sizes: Sizes, against: str | None, folder: Path, given: tuple[str, Path] | None
) -> list[Row]:
    """The rows of `bench decode`: random weights and forced lengths, or a given model and text.

    Args:
        folder: where to write the converted models.
        given: a trained model and a text to translate.
    """
    from transduct.interop import ctranslate2, int8
    from transduct.predictors.base import model_directory
    from transduct_bench.ours import decoding, read_sentences, untrained

    if given is None:
        untrained(folder / "float32", sizes.size, sizes.vocabulary)
    elif against == "transformers":
        raise TransductError(
            "transformers does not take our models; compare with ctranslate2, or leave --model out"
        )
    model = folder / "float32" if given is None else model_directory(given[0])
    int8.convert(model, folder / "int8")
    if against == "ctranslate2":
        ctranslate2.convert(model, folder / "ctranslate2")
    trained = None if given is None else sorted(read_sentences(str(model), given[1]), key=len)
    many = sizes.sentences
    plans = [
        ("greedy, int8, captions, batches of 128", CAPTIONS, many, 1, "int8", 128),
        ("greedy, int8, news, batches of 64", NEWS, many // 2, 1, "int8", 64),
        ("beam 4, int8, captions, batches of 32", CAPTIONS, many // 2, 4, "int8", 32),
        ("greedy, float32, captions, batches of 128", CAPTIONS, many, 1, "float32", 128),
        ("greedy, bfloat16, captions, batches of 128", CAPTIONS, many, 1, "bfloat16", 128),
        ("greedy, int8, one sentence", CAPTIONS, 1, 1, "int8", 1),
        ("beam 4, int8, one sentence", CAPTIONS, 1, 4, "int8", 1),
    ]
    if sizes.device.startswith("cuda"):
        plans = [plan for plan in plans if plan[4] != "int8"]
    if trained is not None:
        plans = [
            (plan[0].replace("captions", "a text"), *plan[1:])
            for plan in plans
            if plan[1] is not NEWS
        ]
    rows = []
    for name, kind, count, beam, precision, batch in plans:
        sources, lengths = drawn(kind, max(count, 1), sizes.vocabulary, batch)
        if trained is not None:
            sources = trained if batch > 1 else [trained[len(trained) // 2]]
        work = {
            "sources": sources,
            "lengths": None if trained else lengths,
            "beam": beam,
            "precision": precision,
        }
        ours = {
            **work,
            "model": str(folder / "int8" if precision == "int8" else model),
            "device": sizes.device,
        }
        others = _decoding_peers(against, work, folder, sizes, batch)
        for suffix, switch in _variants(sizes, "captured"):
            if others or against is None:
                arguments = {**ours, "threads": sizes.threads, **switch}
                rows.append(Row(name + suffix, Side("transduct", decoding, arguments), others))
    return rows


def _variants(sizes: Sizes, *switches: str) -> list[tuple[str, dict[str, bool]]]:
    """Our variants of a row, (suffix of its name, switch): the default and, on a GPU, one with each
    switch on."""
    on_gpu = sizes.device.startswith("cuda")
    return [("", {}), *((f", {switch}", {switch: True}) for switch in switches if on_gpu)]


def _decoding_peers(
    against: str | None, work: dict[str, Any], folder: Path, sizes: Sizes, batch: int
) -> list[Side]:
    """The peer with each setting to try; empty if it cannot do this work."""
    on_gpu = sizes.device.startswith("cuda")
    if against == "ctranslate2" and (work["precision"] != "bfloat16" or on_gpu):
        settings = dict.fromkeys(
            [(1, sizes.threads), (sizes.threads, 1), (1, 1)][: 3 if batch == 1 else 2]
        )
        if on_gpu:
            settings = {(1, sizes.threads): None}
        common = {
            **work,
            "model": str(folder / "ctranslate2"),
            "batch": batch,
            "device": sizes.device,
        }
        return [
            Side(
                f"{w} workers, {t} threads",
                peers.ctranslate2_decoding,
                {**common, "workers": w, "threads": t},
            )
            for w, t in settings
        ]
    if against == "transformers" and work["precision"] != "int8":
        arguments = {
            **work,
            "shape": _shape(sizes),
            "batch": batch,
            "threads": sizes.threads,
            "device": sizes.device,
        }
        return [Side("generate", peers.transformers_decoding, arguments)]
    return []


def training_rows(sizes: Sizes, against: str | None) -> list[Row]:
    """The rows of `bench train`."""
    from transduct_bench.ours import training, training_batches

    kind = CAPTIONS if sizes.size in ("tiny", "small") else NEWS
    sources, lengths = drawn(kind, sizes.sentences, sizes.vocabulary, 1)
    batches = training_batches(sources, lengths, sizes.vocabulary, BATCH_TOKENS, BATCHES)
    rows = []
    for precision in ("float32", "bfloat16"):
        work = {
            "batches": batches,
            "precision": precision,
            "device": sizes.device,
            "threads": sizes.threads,
        }
        ours = {**work, "size": sizes.size, "vocabulary": sizes.vocabulary}
        theirs = {**work, "shape": _shape(sizes)}
        others = (
            []
            if against is None
            else [Side(against, getattr(peers, f"{against}_training"), theirs)]
        )
        name = f"training, {sizes.size}, {precision}, batches of {BATCH_TOKENS} tokens"
        for suffix, switch in _variants(sizes, "captured", "compiled"):
            rows.append(Row(name + suffix, Side("transduct", training, {**ours, **switch}), others))
    return rows


def _shape(sizes: Sizes) -> dict[str, Any]:
    from transduct.predictors.translation import FAMILIES

    known = FAMILIES["transformer"]
    return {"dropout": 0.1, "vocabulary": sizes.vocabulary, **known.sizes[sizes.size]}


def drawn(
    kind: tuple[float, float, int, int], count: int, vocabulary: int, batch: int
) -> tuple[list[list[int]], list[int]]:
    """Random sentences sorted by length, and the lengths of their translations, which are equal
    within a batch."""
    mean, spread, shortest, longest = kind
    random = Random(1)
    sizes = sorted(
        min(max(round(random.lognormvariate(mean, spread)), shortest), longest)
        for _ in range(count)
    )
    if count == 1:  # the median sentence
        sizes = [round(math.exp(mean))]
    sources = [[random.randrange(3, vocabulary) for _ in range(size)] for size in sizes]
    lengths: list[int] = []
    for start in range(0, count, batch):
        group = sizes[start : start + batch]
        lengths += [round(LONGER * sum(group) / len(group)) + 1] * len(group)
    return sources, lengths


def about() -> dict[str, Any]:
    """The machine and the software versions, to report with the numbers."""
    versions = {}
    for package in ("transduct", "torch", "ctranslate2", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "machine": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def _check(sizes: Sizes, rounds: int) -> None:
    from transduct.predictors.translation import FAMILIES

    known = FAMILIES["transformer"].sizes
    if sizes.size not in known:
        raise TransductError(f"unknown size '{sizes.size}'; known are: {', '.join(known)}")
    counts = {
        "sentences": sizes.sentences,
        "threads": sizes.threads,
        "rounds": rounds,
        "vocabulary": sizes.vocabulary,
    }
    for name, count in counts.items():
        least = 4 if name == "vocabulary" else 1  # one word besides the three special tokens
        if not least <= count <= LARGEST:
            raise TransductError(f"{name} is {count}, must be from {least} to {LARGEST}")


def run(
    what: str,
    against: str | None,
    sizes: Sizes,
    rounds: int,
    only: str,
    given: tuple[str, Path] | None,
) -> Iterator[dict[str, Any]]:
    """Run a benchmark, yielding its rows as they are measured.

    Args:
        only: measure only rows whose names contain this.
        given: a trained model and a text to translate.

    Raises:
        TransductError: if the peer is unknown or not installed, a size is out of range, or no row's
            name contains `only`.
    """
    import torch

    from transduct.devices import has_bfloat16, pick_device
    from transduct.kernels.cpu import report

    known = {"decode": DECODING_PEERS, "train": TRAINING_PEERS}
    if what not in known:
        raise TransductError(f"unknown benchmark '{what}'; known are: {', '.join(known)}")
    if against is not None and against not in known[what]:
        raise TransductError(
            f"no '{against}' to {what} against; known are: {', '.join(known[what])}"
        )
    _check(sizes, rounds)
    sizes = replace(sizes, device=str(pick_device(sizes.device)))
    with tempfile.TemporaryDirectory(prefix="transduct-bench-") as folder:
        if what == "decode":
            rows = decoding_rows(sizes, against, Path(folder), given)
        else:
            rows = training_rows(sizes, against)
        chosen = [row for row in rows if only in row.name]
        if not chosen:
            raise TransductError(
                f"nothing is called '{only}'; there are: {'; '.join(row.name for row in rows)}"
            )
        imitated = not has_bfloat16(torch.device(sizes.device))
        for row in chosen:
            if imitated and "bfloat16" in row.name:
                print(
                    f"left out: {row.name}: this processor has no instruction for bfloat16",
                    file=sys.stderr,
                )
                continue
            print(f"measuring: {row.name}", file=sys.stderr)
            kernels = {kernel.name: kernel.used for kernel in report()}
            yield {**measure(row, rounds), "processor": processor(), "kernels": kernels}
