"""Shared by all who answer over text: batches of pairs, the input of BERT, lines of a test set."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduct import segments
from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.sources import TextSource
from transduct.data.text import texts_of
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.predictors.languages import Frame
from transduct.predictors.options import are_given, check_inputs, data_with_test
from transduct.segments import Axis, Segments, Shape, concatenated

# Token ids of texts end to end, and the lengths of the texts.
Flat = tuple[NDArray[np.int64], NDArray[np.int64]]


def target_ids(
    tokenizer: Tokenizer,
    targets: Sequence[str | Sequence[int] | NDArray[np.int64] | Tensor],
    what: str,
) -> list[list[int]]:
    """Encode targets that are texts, and check those that are token ids.

    Args:
        what: names one of them in errors.

    Raises:
        TransductError: they are no list, or one is neither a text nor ids of the vocabulary.
    """
    if not isinstance(targets, Collection) or isinstance(targets, Mapping | Set):
        raise TransductError(f"found {targets!r:.60}, expected a list with one for each text")
    check_inputs(
        targets if isinstance(targets, str) else [each for each in targets if isinstance(each, str)]
    )
    # arrays of ids
    targets = [each.tolist() if isinstance(each, np.ndarray | Tensor) else each for each in targets]
    size = tokenizer.size

    def known(ids: object) -> bool:
        return isinstance(ids, list | tuple) and all(
            isinstance(i, int | np.integer) and 0 <= i < size for i in ids
        )

    for number, target in enumerate(targets):
        if not isinstance(target, str) and not known(target):
            found = f"found {target!r:.60}, expected a text, or ids from 0 to {size - 1} in a list"
            raise TransductError(found, input=number, unit=what)
    coded = iter(tokenizer.encode([target for target in targets if isinstance(target, str)]))
    return [next(coded) if isinstance(target, str) else [*map(int, target)] for target in targets]


@dataclass(frozen=True)
class Batch(segments.Batch):
    """Pairs of source and target texts.

    Attributes:
        source: (N,) source tokens, with end tokens.
        inputs, outputs: (M,) target tokens with begin tokens before them, and with end tokens after
            them.
        counted: (M,) 1.0 for a target token and 0.0 for filler; None without filler.
    """

    unit, terms = "targets", {"tokens": "targets"}
    source: Annotated[Tensor, Axis("sources", Tokenizer.END)]
    source_segments: Annotated[Segments, Axis("sources")]
    inputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    outputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    target_segments: Annotated[Segments, Axis("targets")]
    counted: Annotated[Tensor | None, Axis("targets", marks=True)] = None


def make_batch(
    sources: Sequence[Any],
    targets: Sequence[Any],
    shape: Shape | None = None,
    frame: Frame | None = None,
) -> Batch:
    """Make a batch of lists of ids without special tokens; with a shape, both sides are filled up
    to it. See `make_flat_batch` for the frame.

    Raises:
        ValueError: they do not fit into the shape.
    """
    return make_flat_batch(end_to_end(sources), end_to_end(targets), shape, frame)


def end_to_end(rows: Sequence[Any]) -> Flat:
    """Concatenate lists of ids; returns the ids and the lengths of the lists."""
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *rows]).astype(np.int64), np.array(
        [len(row) for row in rows], np.int64
    )


def make_flat_batch(
    source: Flat, target: Flat, shape: Shape | None = None, frame: Frame | None = None
) -> Batch:
    """Like `make_batch`, for ids that already lie end to end.

    Args:
        frame: what stands around each source, and with what each target begins.
    """
    (ids, lengths), (target_ids, target_lengths) = source, target
    if frame is not None:
        ids, lengths = _with(source, frame.before, after=False)
        target_ids, target_lengths = _with(target, frame.begin, after=False)
    last = (Tokenizer.END, *(frame.after if frame else ()))
    ends = np.cumsum(target_lengths)
    batch = Batch(
        torch.from_numpy(_with((ids, lengths), last, after=True)[0]),
        Segments.of((lengths + len(last)).tolist()),
        torch.from_numpy(np.insert(target_ids, ends - target_lengths, Tokenizer.BEGIN)),
        torch.from_numpy(np.insert(target_ids, ends, Tokenizer.END)),
        Segments.of((target_lengths + 1).tolist()),
    )
    return batch if shape is None else batch.filled(sources=shape, targets=shape)


def _with(flat: Flat, tokens: Sequence[int], after: bool) -> Flat:
    """Put tokens before or after each sequence."""
    ids, lengths = flat
    ends = np.cumsum(lengths)
    places = (ends if after else ends - lengths).repeat(len(tokens))
    added = np.tile(np.array(tokens, np.int64), len(ends))
    return np.insert(ids, places, added), lengths + len(tokens)


def encoder_input(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]] | None, max_length: int
) -> tuple[Tensor, Tensor, Segments, int]:
    """The input of BERT: BEGIN text END, or BEGIN first END second END, for each example, end to
    end.

    In an example longer than `max_length`, the longer text is truncated token by token (Devlin et
    al. 2019).

    Returns:
        The tokens (N,); their types (N,), 1 from the second text on; the segments; how many
        examples were truncated.
    """
    room = max_length - (2 if second is None else 3)
    parts: list[Sequence[int]] = []
    sizes, cut = [], 0  # tokens of type 0 and of type 1 in each example
    for number, one in enumerate(first):
        two = [] if second is None else second[number]
        kept_two = min(len(two), max(room // 2, room - len(one)))
        kept_one = min(len(one), room - kept_two)
        cut += kept_one + kept_two < len(one) + len(two)
        parts += [[Tokenizer.BEGIN], one[:kept_one], [Tokenizer.END]]
        if second is not None:
            parts += [two[:kept_two], [Tokenizer.END]]
        sizes.append((kept_one + 2, 0 if second is None else kept_two + 1))
    tokens = concatenated(parts)
    types = torch.arange(2).repeat(len(sizes)).repeat_interleave(torch.tensor(sizes).flatten())
    return tokens, types, Segments.of([sum(pair) for pair in sizes]), cut


def test_lines(
    kind: Any,
    files_given: Mapping[str, str],
    recipe: Recipe | None,
    refused: Refused | None,
) -> list[str]:
    """The lines of the file `source`, or of the recipe's test set.

    Args:
        kind: the record of the `data` section.
        refused: as for `read_rows`.
    """
    if are_given(files_given, "source"):
        return list(texts_of([TextSource(text=files_given["source"])], Path(), refused))
    data = data_with_test(kind, recipe, "--source")
    return list(texts_of([data.test], Path(data.root), refused))
