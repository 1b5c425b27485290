"""Time and memory of preparing a large corpus.

python benchmarks/prepare.py --source train.en.gz --target train.de.gz --pairs 1000000

Repeats the sentences of two aligned files, a number added to each so that none is a duplicate, trains the
tokenizer, prepares the corpus, and prints seconds and how far anonymous memory (RssAnon) grew meanwhile.
"""

import argparse
import json
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from transduct.data.corpus import prepare
from transduct.data.text import DataConfig, TextSource, read_lines
from transduct.data.tokenizer import Tokenizer


def anonymous_bytes() -> int:
    """Anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Watch(threading.Thread):
    """The highest anonymous memory while it runs, looked at every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.ended = 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes())


def numbered_pairs(sides: Sequence[Iterable[str]], pairs: int, folder: Path) -> DataConfig:
    """Files of so many pairs: the sentences again and again, a number added to each so that none is a duplicate."""
    names = [str(folder / name) for name in ("source", "target")]
    for side, name in zip(sides, names, strict=True):
        with Path(name).open("w", encoding="utf-8") as file:
            file.writelines(f"{text} {i}\n" for i, text in enumerate(islice(cycle(side), pairs)))
    return DataConfig(train=[TextSource(source=names[0], target=names[1])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    arguments = parser.parse_args()
    lines = [list(read_lines(path)) for path in (arguments.source, arguments.target)]
    tokenizer = Tokenizer.train((text for side in lines for text in side), "bpe", 8000)
    with TemporaryDirectory() as folder:
        data = numbered_pairs(lines, arguments.pairs, Path(folder))
        del lines
        before, watch, started = anonymous_bytes(), Watch(), time.perf_counter()
        watch.start()
        corpus = prepare(data, tokenizer, tokenizer, Path(folder) / "corpus", print)
        seconds = time.perf_counter() - started
        watch.ended.set()
        grown = watch.peak - before
        print(
            json.dumps(
                {
                    "pairs": len(corpus),
                    "seconds": round(seconds, 1),
                    "memory_before": before,
                    "memory_grown": grown,
                    "bytes_a_pair": round(grown / len(corpus), 1),
                    "machine": platform.platform(),
                }
            )
        )


if __name__ == "__main__":
    main()
