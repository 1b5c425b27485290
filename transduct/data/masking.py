"""Data for masked language modelling: lines or pairs of lines with masked tokens (Devlin et al.
2019, section 3.1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from transduct.data.batching import Indices, philox, random_of
from transduct.data.corpus import Corpus, Ragged, build, inputs_of, ragged, write_rows
from transduct.data.files import DataSection, Notify, Refused, in_words
from transduct.data.sources import TextSource, require_width
from transduct.data.text import in_chunks, texts_of
from transduct.data.text_warnings import UnknownRate
from transduct.data.tokenizer import Tokenizer
from transduct.errors import WrongData
from transduct.records import Range

# shares of the tokens to predict that become the mask, or a random token; the rest stay
HIDDEN, CHANGED = 0.8, 0.1


@dataclass(frozen=True)
class PlainTextConfig(DataSection):
    """The `data` section of a recipe for plain text, given as files of `text` or as one column of
    others.

    Attributes:
        max_length: the maximum number of tokens in a sequence, including its begin and ends; longer
            ones are truncated.
        mask: the share of tokens to predict.
        next_sentence: whether an example is a line and the next one or, half the time, a random
            other line (next sentence prediction); blank lines are skipped.
        broken: `stop` at a row that is wrong, such as a line that is not UTF-8, or `skip` it.
    """

    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    max_length: Annotated[int, Range(5)] = 128
    mask: Annotated[float, Range(above=0, below=1)] = 0.15
    next_sentence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_width(self, 1, "give text, or name one column")

    @property
    def unit(self) -> str:
        """The word for examples in messages."""
        return "pairs" if self.next_sentence else "lines"


@dataclass(frozen=True)
class Masking:
    """Chooses the tokens to predict and masks them, as a function of (seed, epoch, example).

    They are a share of each example, at least one token; 80 % of them become the mask, 10 % a
    random token, and 10 % stay. `size` is that of the tokenizer, and thus the id of the mask.
    """

    share: float
    size: int
    seed: int
    epoch: int

    def hide(
        self, tokens: Sequence[int], offsets: Sequence[int], numbers: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Mask some of the tokens (N,); return all tokens after masking, and the places (K,) of
        those to predict.

        Begin and end are never masked. Example numbers[i] spans offsets[i] to offsets[i + 1].
        """
        hidden, places, ends = list(tokens), [], (Tokenizer.BEGIN, Tokenizer.END)
        for number, (start, stop) in zip(numbers, pairwise(offsets), strict=True):
            random = random_of(self.seed, self.epoch, number)
            text = [place for place in range(start, stop) if tokens[place] not in ends]
            for place in random.sample(text, max(1, round(self.share * len(text)))):
                places.append(place)
                chance = random.random()
                if chance < HIDDEN:
                    hidden[place] = self.size
                elif chance < HIDDEN + CHANGED:
                    hidden[place] = random.randrange(Tokenizer.END + 1, self.size)
        return hidden, places


def second_lines(pairs: int, seed: int, epoch: int) -> Indices:
    """For each first line, the pair whose second line is shown with it: (pairs,); at least 3 pairs.

    For one half, drawn anew each epoch, it is its own pair. For the other half it is a random one,
    except its own and the pair before, whose second line is its own first line.
    """
    random = np.random.Generator(philox(seed, epoch).jumped())  # independent of the draws of `plan`
    numbers, replaced = np.arange(pairs), random.permutation(pairs) < pairs // 2
    others = (numbers + 1 + random.integers(pairs - 2, size=pairs)) % pairs
    return np.where(replaced, others, numbers)


def prepare_plain_text(
    data: PlainTextConfig, tokenizer: Tokenizer, directory: Path, notify: Notify
) -> Corpus:
    """Prepare the training text as a corpus of lines, or of two columns: lines and the lines after
    them.

    `dropped` counts the blank lines, and the examples to be truncated.

    Raises:
        TransductError: a file cannot be read, or there is too little text.
    """
    counts = {"blank_lines": 0, f"ends_of_long_{data.unit}": 0}
    unknown, refused = UnknownRate("lines"), Refused(data.broken)
    capacity = data.max_length - 2 - data.next_sentence

    def encoded(source: TextSource) -> Iterator[list[int]]:
        for chunk in in_chunks(texts_of([source], Path(data.root), refused), len):
            rows = encoded_lines(chunk, tokenizer)
            counts["blank_lines"] += len(chunk) - len(rows)
            unknown.add(rows)
            yield from rows

    def columns(source: TextSource) -> Iterator[list[Ragged]]:
        examples: Iterator[tuple[list[int], ...]] = zip(encoded(source))
        if data.next_sentence:
            examples = pairwise(encoded(source))
        for chunk in in_chunks(examples, lambda example: sum(map(len, example))):
            long = sum(sum(map(len, example)) > capacity for example in chunk)
            counts[f"ends_of_long_{data.unit}"] += long
            yield [ragged(column) for column in zip(*chunk)]

    def fill(folder: Path) -> dict[str, Any]:
        sources = ((source.weight, columns(source)) for source in data.train)
        manifest = write_rows(folder, 1 + data.next_sentence, sources)
        refused.report(notify)
        check_enough(manifest["rows"], data.next_sentence)
        left_out = in_words(counts)
        without = f" (left out: {left_out})" if left_out else ""
        notify(f"corpus prepared: {manifest['rows']:,} {data.unit}{without}{unknown}")
        return manifest | {"dropped": counts}

    return build(directory, inputs_of(data, {"the tokenizer": tokenizer}, ["mask"]), fill, notify)


def encoded_lines(lines: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token ids of the lines that are not blank."""
    return [
        ids
        for line, ids in zip(lines, tokenizer.encode(lines), strict=True)
        if ids and line.strip()
    ]


def check_enough(examples: int, in_pairs: bool) -> None:
    """Raise WrongData if there is too little text to train or evaluate on."""
    least, unit = (3, "pairs of lines") if in_pairs else (1, "lines")
    if examples < least:
        found = f"found {max(0, examples)} {unit} that are not blank"
        raise WrongData(f"{found}, expected at least {least}; give more text")
