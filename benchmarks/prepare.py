"""Time and memory of preparing a large corpus, compared with encoding the same texts by the
tokenizers library alone.

python benchmarks/prepare.py --source train.en.gz --target train.de.gz --pairs 1000000

Repeats the sentences of two aligned files, with a number added to each so that none is a duplicate,
learns the vocabulary from a sample, and prepares the corpus. Prints the seconds of both and the
growth of anonymous memory (RssAnon). With --turns, corpus and library take turns, and the ratio of
their medians is printed too.
"""

import argparse
import json
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers

from transduct.data.lines import read_lines
from transduct.data.preparing import prepare
from transduct.data.sources import DataConfig, TextSource
from transduct.data.text import read_pairs
from transduct.data.tokenizer import Tokenizer, TokenizerConfig, train_tokenizers

AT_ONCE = 10_000  # texts per call of the library


def anonymous_bytes() -> int:
    """The anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Watch(threading.Thread):
    """A thread that tracks the peak of anonymous memory, sampled every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.ended = 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes())


@contextmanager
def watched(result: dict[str, Any], name: str, pairs: int) -> Iterator[None]:
    """Context manager that adds the seconds and the memory growth of its block to a result."""
    before, watch, started = anonymous_bytes(), Watch(), time.perf_counter()
    watch.start()
    yield
    seconds = time.perf_counter() - started
    watch.ended.set()
    grown = watch.peak - before
    result[name] = {
        "seconds": round(seconds, 1),
        "memory_grown": grown,
        "bytes_a_pair": round(grown / pairs, 1),
    }


def numbered_pairs(sides: Sequence[Iterable[str]], pairs: int, folder: Path) -> DataConfig:
    """Write this many pairs to files by repeating sentences, each with a number so that none is a
    duplicate."""
    names = [str(folder / name) for name in ("source", "target")]
    for side, name in zip(sides, names, strict=True):
        with Path(name).open("w", encoding="utf-8") as file:
            file.writelines(f"{text} {i}\n" for i, text in enumerate(islice(cycle(side), pairs)))
    return DataConfig(train=[TextSource(source=names[0], target=names[1])])


def prepared(data: DataConfig, tokenizer: Tokenizer, directory: Path) -> float:
    """Seconds to prepare a corpus from files to shards, with a tokenizer whose word cache is
    empty."""
    tokenizer, started = deepcopy(tokenizer), time.perf_counter()
    prepare(data, tokenizer, tokenizer, directory, str)
    return time.perf_counter() - started


def alone(data: DataConfig, folder: Path) -> float:
    """Seconds that the library takes to encode the corpus's texts from memory."""
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [text for name in data.train[0].files() for text in read_lines(Path(name))]
    started = time.perf_counter()
    for first in range(0, len(texts), AT_ONCE):
        library.encode_batch_fast(texts[first : first + AT_ONCE], add_special_tokens=False)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=0)
    arguments = parser.parse_args()
    lines = [list(read_lines(path)) for path in (arguments.source, arguments.target)]
    result: dict[str, Any] = {"machine": platform.platform()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = numbered_pairs(lines, arguments.pairs, folder)
        del lines
        result |= {"pairs": arguments.pairs, "memory_before": anonymous_bytes()}
        with watched(result, "vocabulary", arguments.pairs):
            texts = (pair for chunk in read_pairs(data.train[0], Path()) for pair in chunk)
            tokenizer, _ = train_tokenizers(texts, TokenizerConfig(size=8000))
        with watched(result, "corpus", arguments.pairs):
            prepared(data, tokenizer, folder / "corpus")
        if arguments.turns:
            tokenizer.save(folder / "tokenizer.json")
            turns = range(arguments.turns)
            both = [
                (prepared(data, tokenizer, folder / f"{turn}"), alone(data, folder))
                for turn in turns
            ]
            ours, library = (median(times) for times in zip(*both, strict=True))
            result["turns"] = {
                "ours": round(ours, 2),
                "library": round(library, 2),
                "ratio": round(library / ours, 2),
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
