"""Pairs of texts as a corpus: read, encoded and filtered, with some of them held out for
validation."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transduct.data.corpus import RETIRED, Corpus, Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import Notify, counted, names_of
from transduct.data.filters import Filters, hold_out
from transduct.data.sources import DataConfig, TextSource
from transduct.data.text import read_pairs
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError

HELD_OUT = "held_out.jsonl"  # beside the shards of the corpus
PROGRESS = 1_000_000  # pairs read between two progress messages


def prepare(
    data: DataConfig,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    directory: Path,
    notify: Notify,
) -> Corpus:
    """Prepare the training pairs as a corpus of two columns: read, encode and filter them, unless
    nothing has changed.

    Raises:
        TransductError: a file cannot be read, no pair is left, or as in `corpus.build`.
    """
    tokenizers = (source_tokenizer, target_tokenizer)

    def fill(folder: Path) -> dict[str, Any]:
        held_out = hold_out(data)
        if held_out:
            lines = (
                json.dumps({"source": source, "target": target}) + "\n"
                for source, target in held_out
            )
            (folder / HELD_OUT).write_text("".join(lines), encoding="utf-8")
        filters = Filters(data, held_out)
        manifest = write_rows(folder, 2, _kept_columns(data, tokenizers, filters, notify))
        counts = counted(filters.dropped)
        left_out = f" (left out: {counts})" if counts else ""
        if not manifest["rows"]:
            remedy = f"check {', '.join(names_of(data.train)) or 'data.train'} and the filters"
            if 2 * filters.dropped["held_out"] > sum(
                filters.dropped.values()
            ):  # most share a text with one of them
                remedy = "set data.held_out to 0, and validate on files of their own or on nothing"
            raise TransductError(f"no pair is left to train on{left_out}; {remedy}")
        notify(f"corpus prepared: {manifest['rows']:,} pairs{left_out}")
        return manifest | {"dropped": filters.dropped}

    named = {f"the {side} tokenizer": each for side, each in zip(("source", "target"), tokenizers)}
    inputs = inputs_of(data, named, apart=tuple(RETIRED))
    return build(directory, inputs, fill, notify)


def held_out_of(corpus: Corpus) -> TextSource | None:
    """The pairs held out for validation, unchanged from the files, as a source for
    `read_examples`."""
    path = corpus.directory / HELD_OUT
    return TextSource(pairs=str(path)) if path.exists() else None


def _kept_columns(
    data: DataConfig, tokenizers: Sequence[Tokenizer], filters: Filters, notify: Notify
) -> Iterator[tuple[float, Iterator[list[Ragged]]]]:
    """The weight of each source and its encoded pairs that pass the filters, in chunks."""
    read = 0

    def chunks(source: TextSource) -> Iterator[list[Ragged]]:
        nonlocal read
        for pairs in read_pairs(source, Path(data.root), data.replace):
            columns = [
                ragged(tokenizer.encode(texts)) for texts, tokenizer in zip(zip(*pairs), tokenizers)
            ]
            keep = filters.keep(pairs, *(lengths for _, lengths in columns))
            if keep.any():
                yield [(flat[np.repeat(keep, lengths)], lengths[keep]) for flat, lengths in columns]
            read += len(pairs)
            if read // PROGRESS > (read - len(pairs)) // PROGRESS:
                notify(f"preparing the corpus: {read:,} pairs read")

    for source in data.train:
        yield source.weight, chunks(source)
