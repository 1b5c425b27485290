"""Shared by all who answer over text: ids of targets, the input of BERT, lines of a test set."""

from collections.abc import Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.sources import TextSource
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.inference.batches import answered, device_of
from transduct.predictors.options import are_given, check_inputs, check_lengths, data_with_test
from transduct.segments import Segments, concatenated

EMBEDDED = 4096  # tokens whose vectors are computed together


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
    free = max_length - (2 if second is None else 3)
    parts: list[Sequence[int]] = []
    sizes, cut = [], 0  # tokens of type 0 and of type 1 in each example
    for number, one in enumerate(first):
        two = [] if second is None else second[number]
        kept_two = min(len(two), max(free // 2, free - len(one)))
        kept_one = min(len(one), free - kept_two)
        cut += kept_one + kept_two < len(one) + len(two)
        parts += [[Tokenizer.BEGIN], one[:kept_one], [Tokenizer.END]]
        if second is not None:
            parts += [two[:kept_two], [Tokenizer.END]]
        sizes.append((kept_one + 2, 0 if second is None else kept_two + 1))
    tokens = concatenated(parts)
    types = torch.arange(2).repeat(len(sizes)).repeat_interleave(torch.tensor(sizes).flatten())
    return tokens, types, Segments.of([sum(pair) for pair in sizes]), cut


@torch.inference_mode()
def embed(predictor: Any, texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text: the mean of what the last layer of an encoder has for its tokens.
    A method of the predictors that have an encoder.

    Raises:
        TransductError: a text is longer than the model takes.
    """
    check_inputs(texts)
    model, ids = predictor.model, predictor.tokenizer.encode(texts)
    longest = model.config.max_length
    check_lengths(ids, longest - 2)
    device = device_of(model)

    def means(numbers: list[int]) -> list[list[float]]:
        tokens, types, segments, _ = encoder_input([ids[i] for i in numbers], None, longest)
        x = model.encode(tokens.to(device), types.to(device), segments.to(device)).float()
        return [part.mean(0).tolist() for part in x.split(segments.lengths.tolist())]

    return answered(means, [len(each) + 2 for each in ids], EMBEDDED)


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
    from transduct.data.text import texts_of  # who translates reads no corpus

    if are_given(files_given, "source"):
        return list(texts_of([TextSource(text=files_given["source"])], Path(), refused))
    data = data_with_test(kind, recipe, "--source")
    return list(texts_of([data.test], Path(data.root), refused))
