"""What tasks over text share: the run's tokenizer, batches of pairs, and what BERT reads.

Let N and M be the source and target tokens of a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.functional.segments import Segments
from transduct.tasks.base import Notify

TOKENIZER = "tokenizer.json"


def run_tokenizer(path: Path, held: Path | None, train: Callable[[], Tokenizer], notify: Notify) -> Tokenizer:
    """The tokenizer at `path`: that of another model (`held`), or trained; made before step 0 and ever after loaded."""
    if not path.exists():
        tokenizer = Tokenizer.load(held) if held else train()
        beside = path.with_suffix(".part")
        tokenizer.save(beside)
        beside.replace(path)
        notify(
            f"{path.name}: {tokenizer.size:,} tokens, {f'taken from {held.parent}' if held else 'trained'} and saved"
        )
    return Tokenizer.load(path)


@dataclass(frozen=True)
class Batch:
    """Source tokens (N,) with their end; target tokens (M,) after the begin token, and the same before the end."""

    source: Tensor
    source_segments: Segments
    inputs: Tensor
    outputs: Tensor
    target_segments: Segments

    @property
    def tokens(self) -> int:
        """Target tokens, their ends included."""
        return self.target_segments.total

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over target tokens."""
        return {"tokens": float(self.target_segments.total)}

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device."""
        if device == self.source.device:
            return self
        source, inputs, outputs = (x.to(device, non_blocking=True) for x in (self.source, self.inputs, self.outputs))
        return Batch(source, self.source_segments.to(device), inputs, outputs, self.target_segments.to(device))


def make_batch(sources: Sequence[Any], targets: Sequence[Any]) -> Batch:
    """Lists of ids, without special tokens, as a batch."""
    begin, end = [Tokenizer.BEGIN], [Tokenizer.END]
    source = torch.from_numpy(np.concatenate([part for ids in sources for part in (ids, end)]).astype(np.int64))
    inputs = torch.from_numpy(np.concatenate([part for ids in targets for part in (begin, ids)]).astype(np.int64))
    outputs = torch.from_numpy(np.concatenate([part for ids in targets for part in (ids, end)]).astype(np.int64))
    source_segments = Segments.of([len(ids) + 1 for ids in sources])
    return Batch(source, source_segments, inputs, outputs, Segments.of([len(ids) + 1 for ids in targets]))


def encoder_input(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]] | None, max_length: int
) -> tuple[Tensor, Tensor, Segments, int]:
    """What BERT reads: BEGIN text END, or BEGIN first END second END, of each example, one after the other.

    Of an example that is longer than `max_length` the longer text loses its end, token by token (Devlin et al. 2019).

    Returns:
        Tokens (N,); their types (N,), 1 from the second text on; the segments; and how many examples were cut.
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
    tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64))
    types = torch.arange(2).repeat(len(sizes)).repeat_interleave(torch.tensor(sizes).flatten())
    return tokens, types, Segments.of([sum(pair) for pair in sizes]), cut


def check_sizes(directory: Path, tokenizers: Sequence[int], model: Sequence[int]) -> None:
    """Refuse tokenizers that are not the model's."""
    if list(tokenizers) != list(model):
        found, expected = (" and ".join(map(str, sizes)) for sizes in (tokenizers, model))
        raise TransductError(
            f"{directory}: the tokenizers hold {found} tokens, the model {expected}; "
            "they do not belong together: copy the model again"
        )
