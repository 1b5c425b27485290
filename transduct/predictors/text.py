"""Shared by all who answer over text: batches of pairs, the input of BERT, attention weights."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
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
from transduct.data.tokenizer import TOKENIZER, Tokenizer, check_sizes
from transduct.errors import TransductError
from transduct.predictors.base import Panel
from transduct.predictors.model_directory import blank_of, read_weights
from transduct.predictors.options import Frame, are_given, check_inputs, data_with_test
from transduct.segments import Axis, Segments, Shape, concatenated

# Token ids of texts end to end, and the lengths of the texts.
Flat = tuple[NDArray[np.int64], NDArray[np.int64]]


def target_ids(
    tokenizer: Tokenizer, targets: Sequence[str | Sequence[int]], what: str
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
    targets = [each.tolist() if hasattr(each, "tolist") else each for each in targets]
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


def read_model(
    build: Callable[[Any], Any],
    kind: Any,
    directory: Path,
    settings: Mapping[str, Any],
    device: torch.device,
    precision: str,
) -> tuple[Any, Tokenizer]:
    """Load the model in a directory, for inference, and its single tokenizer.

    Args:
        build: builds a model from its configuration.
        kind: the configuration record.
        settings: the content of `config.json`.

    Raises:
        TransductError: the model or the tokenizer cannot be read, or they do not belong together.
    """
    model, tokenizer = (
        blank_of(settings, build, kind, directory),
        Tokenizer.load(directory / TOKENIZER).in_use(),
    )
    check_sizes(directory, [tokenizer.size], [model.config.vocabulary_size])
    read_weights(model, directory, device, precision)
    return model, tokenizer


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


@dataclass(frozen=True, eq=False)
class TextAttention(Mapping[str, Tensor]):
    """Every attention weight of a pair of texts by name, computed by the plain formula.

    Attributes:
        source, target: the tokens in readable form; the target's start with the begin token.
        weights: "encoder.0.self", "decoder.0.self", "decoder.0.cross", ...: (H, T, S) each.
    """

    source: list[str]
    target: list[str]
    weights: dict[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def labels(self, name: str) -> tuple[list[str], list[str]]:
        """The tokens along the queries and the keys of a named weight."""
        side, _, kind = name.split(".")
        return (self.source if side == "encoder" else self.target), (
            self.target if kind == "self" and side == "decoder" else self.source
        )

    def panels(self) -> list[Panel]:
        """One panel for each head of each layer, labelled with tokens."""
        return [
            Panel(f"{name} head {head + 1}", matrix, *self.labels(name))
            for name, weights in self.weights.items()
            for head, matrix in enumerate(weights)
        ]

    def alignment(self) -> tuple[list[str], list[str], Tensor]:
        """The target tokens, the source tokens, and the mean over heads of the last cross-attention
        (T, S).

        Row t holds the weights from which the model chose target token t; end tokens are left out.

        Raises:
            TransductError: there is no cross-attention, because the model is an encoder.
        """
        crosses = [name for name in self.weights if name.endswith("cross")]
        if not crosses:
            raise TransductError(
                "there is no cross-attention to align by: this model is an encoder alone"
            )
        name = max(crosses, key=lambda n: int(n.split(".")[1]))
        rows = self.target[1:]
        return (
            rows,
            self.source[:-1],
            self.weights[name].mean(0)[: len(rows), : len(self.source) - 1],
        )
