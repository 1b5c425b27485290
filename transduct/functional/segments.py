"""A batch of sequences without padding: one flat run of tokens and where each sequence begins.

Let N be the tokens of a batch, B its sequences, L the longest of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FILLER = 32  # tokens of a sequence that fills up: about as many as a sentence has, so that it costs no more than one


class remembered:
    """A property computed once. `cached_property` takes a lock that the compiler cannot trace.

    While compiling nothing is stored; the compiler removes the repetition itself.
    """

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function, self.name = function, function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, kind: type) -> Tensor:
        value = self.function(owner)
        if not torch.compiler.is_compiling():
            owner.__dict__[self.name] = value  # found before this descriptor from now on
        return value


@dataclass(frozen=True)
class Shape:
    """The fixed shape to which every batch is filled up, where a compiler or a captured graph needs one.

    Attributes:
        tokens: N.
        sequences: B.
        longest: L, the most tokens that a sequence may have.
    """

    tokens: int
    sequences: int
    longest: int

    @classmethod
    def around(cls, tokens: int, sequences: int, longest: int) -> "Shape":
        """Room for so many sequences of so many tokens in all, for what fills up, and to the next multiple of 128."""
        tokens = -(-max(tokens, longest) // 128) * 128
        return cls(tokens, sequences + -(-tokens // max(1, min(FILLER, longest))), longest)


@dataclass(frozen=True, eq=False)
class Segments:
    """Where each of B sequences lies in a flat run of N tokens.

    Attributes:
        lengths: (B,) tokens of each sequence, zero allowed.
        offsets: (B + 1,) where each begins; the last is N.
        longest: L, a Python number, so that shapes never wait for the device.
        total: N.
        equal: whether all sequences have the same length, so that a flat run is a dense array already.
    """

    lengths: Tensor
    offsets: Tensor
    longest: int
    total: int
    equal: bool

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str | None = None) -> "Segments":
        """Segments of the given lengths, on `device`."""
        counts = torch.tensor(list(lengths), dtype=torch.int64)
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        longest = max(lengths, default=0)
        equal = min(lengths, default=0) == longest
        return cls(counts.to(device), offsets.to(device), longest, int(offsets[-1]), equal)

    @classmethod
    def filled(cls, lengths: Sequence[int], shape: Shape) -> "Segments":
        """Segments that end in filler: short sequences up to `shape.tokens`, empty ones up to `shape.sequences`.

        Raises:
            ValueError: the sequences are too long or too many for the shape.
        """
        free, short = shape.tokens - sum(lengths), min(FILLER, shape.longest)
        pieces = [min(short, free - start) for start in range(0, free, short)]
        empty = shape.sequences - len(lengths) - len(pieces)
        if free < 0 or empty < 0 or max(lengths, default=0) > shape.longest:
            raise ValueError(
                f"{len(lengths)} sequences of {sum(lengths)} tokens, {max(lengths, default=0)} the longest, "
                f"do not fit into {shape}"
            )
        return replace(cls.of([*lengths, *pieces, *[0] * empty]), longest=shape.longest, equal=False)

    def to(self, device: torch.device) -> "Segments":
        """The same on another device."""
        lengths, offsets = (x.to(device, non_blocking=True) for x in (self.lengths, self.offsets))
        return replace(self, lengths=lengths, offsets=offsets)

    def twice(self) -> "Segments":
        """The same sequences, and behind them once more."""
        offsets = torch.cat((self.offsets, self.offsets[1:] + self.total))
        return replace(self, lengths=self.lengths.repeat(2), offsets=offsets, total=2 * self.total)

    def __len__(self) -> int:
        return len(self.lengths)

    @remembered
    def sequence(self) -> Tensor:
        """(N,) which sequence each token belongs to."""
        numbers = torch.arange(len(self), device=self.lengths.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=self.total)  # (N,)

    @remembered
    def positions(self) -> Tensor:
        """(N,) the index of each token in its own sequence, from 0."""
        return torch.arange(self.total, device=self.lengths.device) - self.offsets[self.sequence]

    @remembered
    def runs(self) -> Tensor:
        """(2, N) of 32 bits: the first token of each token's own sequence, and the one after the last."""
        return self._bounds.index_select(1, self.sequence)

    @remembered
    def past(self) -> Tensor:
        """(2, N): the tokens of its own sequence up to each token, as `runs` tells them."""
        own = torch.arange(self.total, dtype=torch.int32, device=self.lengths.device)
        return torch.stack((self.runs[0], own + 1))

    @remembered
    def future(self) -> Tensor:
        """(2, N): the tokens of its own sequence from each token on; the inverse of `past`."""
        own = torch.arange(self.total, dtype=torch.int32, device=self.lengths.device)
        return torch.stack((own, self.runs[1]))

    def runs_of(self, others: "Segments") -> Tensor:
        """(2, M): where the sequence of the same number begins and ends here, for each of the others' M tokens."""
        return self.runs if others is self else self._bounds.index_select(1, others.sequence)

    @remembered
    def _bounds(self) -> Tensor:
        """(2, B) of 32 bits: the first token of each sequence, and the one after the last."""
        return torch.stack((self.offsets[:-1], self.offsets[1:])).int()

    @remembered
    def slots(self) -> Tensor:
        """(N,) where each token stands in the padded array flattened to (B * L)."""
        return self.sequence * self.longest + self.positions

    @remembered
    def mask(self) -> Tensor:
        """(B, L) true where the padded array holds a token."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]


def pad(flat: Tensor, segments: Segments) -> Tensor:
    """(N, ...) -> (B, L, ...), zero where there is no token; a view where all lengths are equal."""
    shape = (len(segments), segments.longest, *flat.shape[1:])
    if segments.equal:
        return flat.view(shape)  # (B, L, ...)
    empty = flat.new_zeros(len(segments) * segments.longest, *flat.shape[1:])
    return empty.index_copy(0, segments.slots, flat).view(shape)  # (B, L, ...)


def flatten(padded: Tensor, segments: Segments) -> Tensor:
    """(B, L, ...) -> (N, ...): the inverse of `pad`."""
    if segments.equal:
        return padded.flatten(0, 1)  # (N, ...)
    return padded.flatten(0, 1).index_select(0, segments.slots)  # (N, ...)
