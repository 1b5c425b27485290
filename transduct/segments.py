"""A batch of sequences without padding: one flat run of tokens, and where each sequence begins.

Let N be the number of tokens in a batch, B of its sequences, L the length of the longest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import get_annotations
from itertools import accumulate
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor

# tokens of a filler sequence: about a sentence, so that attention over filler costs no more than
# over text
FILLER = 32
SHORTEST = 16  # the smallest L of `Shape.near`


class remembered:
    """A property computed once. Up to Python 3.11 `cached_property` takes a lock, which
    `torch.compile` cannot trace.

    Nothing is stored while compiling; the compiler removes repeated computations itself. What is
    stored can be trained on later, even if it was first asked for in inference mode.
    """

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function, self.name = function, function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, kind: type) -> Tensor:
        if torch.compiler.is_compiling():
            return self.function(owner)
        with torch.inference_mode(False):
            # from now on found before this descriptor
            value = owner.__dict__[self.name] = self.function(owner)
        return value


def power_of_two(number: int, least: int = 1) -> int:
    """The smallest power of two that is at least `number` and `least`."""
    return 1 << (max(number, least) - 1).bit_length()


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class Shape:
    """A fixed shape to which batches are filled up, for a compiler or a captured graph.

    Attributes:
        tokens: N.
        sequences: B.
        longest: L, the maximum length of a sequence.
        filler: the most tokens of a filler sequence.
    """

    tokens: int
    sequences: int
    longest: int
    filler: int = FILLER

    @classmethod
    def around(cls, tokens: int, sequences: int, longest: int) -> "Shape":
        """Return a shape for these sequences and the filler they need, with N rounded up to a
        multiple of 128.

        Args:
            tokens: of all sequences together.
        """
        tokens = round_up(max(tokens, longest), 128)
        return cls(tokens, sequences + -(-tokens // max(1, min(FILLER, longest))), longest)

    @classmethod
    def near(
        cls, lengths: Sequence[int], tokens: int, longest: int, filler: int | None = None
    ) -> "Shape | None":
        """Return one of a few shapes, which holds these sequences and their filler. None if their
        lengths are too uncommon.

        L is a power of two from 16 on, or `longest`. B allows for sequences of L / 2 tokens.

        Args:
            lengths: of the sequences; of several sides one after the other.
            tokens: the most tokens of a usual batch; N is that, rounded up to a multiple of 128.
            longest: the most tokens of any sequence.
            filler: the most tokens of a filler sequence; L by default.
        """
        total = round_up(max(tokens, longest), 128)
        rounded = min(longest, power_of_two(max(lengths), SHORTEST))
        filler = min(filler or rounded, rounded)
        shape = cls(total, 2 * total // rounded + -(-total // filler), rounded, filler)
        return shape if shape.holds(lengths) else None

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether these sequences fit, with the filler that they need."""
        unused, filler = self.tokens - sum(lengths), min(self.filler, self.longest)
        needed = len(lengths) + -(-unused // filler)
        return unused >= 0 and needed <= self.sequences and max(lengths) <= self.longest

    def stretched(self, times: int) -> "Shape":
        """Return the shape of sequences so many times as long."""
        tokens, longest, filler = (x * times for x in (self.tokens, self.longest, self.filler))
        return Shape(tokens, self.sequences, longest, filler)

    def rounded_up(self, count: int, parts: int = 16) -> int:
        """Return a count rounded up to a multiple of N / `parts`, so that few are different."""
        return round_up(count, -(-self.tokens // parts))


@dataclass(frozen=True, eq=False)
class Segments:
    """Where each of B sequences lies in a flat run of N tokens.

    Attributes:
        lengths: (B,) the length of each sequence; zero is allowed.
        offsets: (B + 1,) where each sequence begins; the last is N.
        longest: L, a Python number, so that shapes never wait for the device.
        total: N.
        equal: whether all sequences have the same length, so that the flat run is already a dense
            array.
        fixed: whether it was filled up to a shape, so that lengths are read on the device alone.
    """

    lengths: Tensor
    offsets: Tensor
    longest: int
    total: int
    equal: bool
    fixed: bool = False

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str | None = None) -> "Segments":
        """Return the segments of these lengths, on `device`."""
        counts = torch.tensor(list(lengths), dtype=torch.int64)
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        longest = max(lengths, default=0)
        equal = min(lengths, default=0) == longest
        return cls(counts.to(device), offsets.to(device), longest, int(offsets[-1]), equal)

    @classmethod
    def filled(cls, lengths: Sequence[int], shape: Shape) -> "Segments":
        """Return segments filled up with short sequences to `shape.tokens` and empty ones to
        `shape.sequences`.

        Raises:
            ValueError: if the sequences are too long or too many for the shape.
        """
        unused, filler = shape.tokens - sum(lengths), min(shape.filler, shape.longest)
        fillers = [min(filler, unused - start) for start in range(0, unused, filler)]
        empty = shape.sequences - len(lengths) - len(fillers)
        if unused < 0 or empty < 0 or max(lengths, default=0) > shape.longest:
            raise ValueError(
                f"{len(lengths)} sequences of {sum(lengths)} tokens, {max(lengths, default=0)} the "
                f"longest, do not fit into {shape}"
            )
        return replace(
            cls.of([*lengths, *fillers, *[0] * empty]),
            longest=shape.longest,
            equal=False,
            fixed=True,
        )

    def to(self, device: torch.device) -> "Segments":
        """Return the same segments on another device."""
        lengths, offsets = (x.to(device, non_blocking=True) for x in (self.lengths, self.offsets))
        return replace(self, lengths=lengths, offsets=offsets)

    def twice(self) -> "Segments":
        """Return the sequences followed by the same sequences again."""
        offsets = torch.cat((self.offsets, self.offsets[1:] + self.total))
        return replace(self, lengths=self.lengths.repeat(2), offsets=offsets, total=2 * self.total)

    def __len__(self) -> int:
        return len(self.lengths)

    @remembered
    def sequence(self) -> Tensor:
        """(N,) the index of the sequence each token belongs to."""
        numbers = torch.arange(len(self), device=self.lengths.device)
        return torch.repeat_interleave(numbers, self.lengths, output_size=self.total)  # (N,)

    @remembered
    def positions(self) -> Tensor:
        """(N,) the position of each token in its own sequence, from 0."""
        return torch.arange(self.total, device=self.lengths.device) - self.offsets[self.sequence]

    @remembered
    def runs(self) -> Tensor:
        """(2, N) int32: where the sequence of each token begins, and where it ends (exclusive)."""
        return self._bounds.index_select(1, self.sequence)

    @remembered
    def past(self) -> Tensor:
        """(2, N) like `runs`, but each run ends with the token itself: what a causal query sees."""
        own = torch.arange(self.total, dtype=torch.int32, device=self.lengths.device)
        return torch.stack((self.runs[0], own + 1))

    @remembered
    def future(self) -> Tensor:
        """(2, N) like `runs`, but each run begins with the token itself: the causal queries that
        see a key."""
        own = torch.arange(self.total, dtype=torch.int32, device=self.lengths.device)
        return torch.stack((own, self.runs[1]))

    def runs_of(self, others: "Segments") -> Tensor:
        """(2, M): for each of the M tokens of `others`, the run of the sequence with the same index
        here."""
        return self.runs if others is self else self._bounds.index_select(1, others.sequence)

    @remembered
    def _bounds(self) -> Tensor:
        """(2, B) int32: where each sequence begins, and where it ends (exclusive)."""
        return torch.stack((self.offsets[:-1], self.offsets[1:])).int()

    @remembered
    def slots(self) -> Tensor:
        """(N,) the index of each token in the padded array, flattened to (B * L)."""
        return self.sequence * self.longest + self.positions

    @remembered
    def mask(self) -> Tensor:
        """(B, L) True where the padded array holds a token."""
        return torch.arange(self.longest, device=self.lengths.device) < self.lengths[:, None]


def pad(flat: Tensor, segments: Segments) -> Tensor:
    """Pad with zeros: (N, ...) -> (B, L, ...). Returns a view if all lengths are equal."""
    shape = (len(segments), segments.longest, *flat.shape[1:])
    if segments.equal:
        return flat.view(shape)  # (B, L, ...)
    empty = flat.new_zeros(len(segments) * segments.longest, *flat.shape[1:])
    return empty.index_copy(0, segments.slots, flat).view(shape)  # (B, L, ...)


def flatten(padded: Tensor, segments: Segments) -> Tensor:
    """The inverse of `pad`: (B, L, ...) -> (N, ...)."""
    if segments.equal:
        return padded.flatten(0, 1)  # (N, ...)
    return padded.flatten(0, 1).index_select(0, segments.slots)  # (N, ...)


def sources_of(rows: Tensor, beam: int) -> Tensor:
    """The sources (B',) that search rows (R',) belong to; each kept source has `beam` rows, side by
    side."""
    return rows[::beam] // beam


class Movable:
    """A batch, a dataclass of tensors, that can be moved to a device."""

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device: itself if its first tensor is already there."""
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        if next(iter(tensors.values())).device == device:
            return self
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()
        }
        for name, value in vars(self).items():
            if isinstance(value, Segments):
                moved[name] = value.to(device)
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True)
class Axis:
    """The first axis of a field of a `FlatBatch`, and how the field is filled up.

    Attributes:
        name: such as "tokens". Fields with the same name have the same length. A field of
            `Segments` has the name of the axis that it divides into sequences.
        fill: the value of filler.
        within: if the field holds positions, the axis that they point into.
        marks: whether the field is 1.0 for real rows and 0.0 for filler. It is None without filler.
        divides: whether the field is `Segments`; read from its type.
    """

    name: str
    fill: float = 0
    within: str = ""
    marks: bool = False
    divides: bool = False


@dataclass(frozen=True, eq=False)
class FlatBatch(Movable):
    """Examples end to end: tensors and segments, each declared as `Annotated[Tensor, Axis(..)]`.

    Attributes:
        unit: the axis whose length is the size of the batch, in tokens.
        terms: the terms of the loss, and the axis that each is an average over.
        real: the lengths of the axes before they were filled up; None without filler. It may
            differ between batches of one shape.
    """

    axes: ClassVar[dict[str, Axis]] = {}  # of the fields of a class
    unit: ClassVar[str] = "tokens"
    terms: ClassVar[Mapping[str, str]] = {}
    real: Mapping[str, int] | None = field(default=None, compare=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        declared = {name: get_args(hint) for name, hint in get_annotations(cls).items()}
        cls.axes = {
            name: replace(args[1], divides=args[0] is Segments)
            for name, args in declared.items()
            if args and isinstance(args[-1], Axis)
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """The length of each axis, and the number of "sequences", without filler."""
        if self.real is not None:
            return self.real
        found: dict[str, int] = {}
        for name, axis in self.axes.items():
            value = vars(self)[name]
            if isinstance(value, Segments):
                found |= {axis.name: value.total, "sequences": len(value)}
            elif value is not None:
                found[axis.name] = len(value)
        return found

    @property
    def tokens(self) -> int:
        """The size of the batch, for tokens per second."""
        return self.sizes[self.unit]

    @property
    def counts(self) -> dict[str, float]:
        """What the sum of each term of the loss is divided by. A term without its axis is left
        out."""
        sizes = self.sizes
        return {term: float(sizes[axis]) for term, axis in self.terms.items() if axis in sizes}

    @classmethod
    def of(cls, **columns: Sequence[Any]) -> Self:
        """Put examples end to end: for each field one sequence an example.

        Segments follow from the lengths of the columns on their axis. Positions count from the
        start of their example.
        """
        lengths = {cls.axes[name].name: [*map(len, rows)] for name, rows in columns.items()}
        made: dict[str, Any] = {
            name: Segments.of(lengths[axis.name]) for name, axis in cls.axes.items() if axis.divides
        }
        for name, rows in columns.items():
            if within := cls.axes[name].within:
                starts = accumulate(lengths[within], initial=0)
                rows = [np.asarray(row) + start for row, start in zip(rows, starts)]
            made[name] = concatenated(rows)
        return cls(**made)

    def filled(self, **shapes: Shape | int) -> Self:
        """Return the batch filled up to these sizes, by axis, for a compiler or a captured graph.

        Raises:
            ValueError: the sequences do not fit.
        """
        real, made = self.sizes, dict[str, Any]()
        sizes = {axis: x if isinstance(x, int) else x.tokens for axis, x in shapes.items()}
        # segments first: they refuse what does not fit
        for name, axis in sorted(self.axes.items(), key=lambda each: not each[1].divides):
            value, shape, size = vars(self)[name], shapes.get(axis.name), sizes.get(axis.name, 0)
            if isinstance(value, Segments) and isinstance(shape, Shape):
                made[name] = Segments.filled(value.lengths.tolist(), shape)
            elif axis.marks:
                made[name] = (torch.arange(size) < real[axis.name]).float()
            elif value is not None and axis.within:
                # not all in one place, whose gradients would be added one by one
                more = torch.arange(size - len(value)) % sizes[axis.within]
                made[name] = torch.cat((value, more))
            elif isinstance(value, Tensor) and shape is not None:
                made[name] = fill(value, size, axis.fill)
        return replace(self, **made, real=real)


def concatenated(rows: Sequence[Any]) -> Tensor:
    """Concatenate sequences: of ids, or of rows of 32-bit numbers."""
    flat = np.concatenate([*rows])
    return torch.from_numpy(flat if flat.dtype == np.float32 else flat.astype(np.int64))


def fill(flat: Tensor, size: int, value: float = 0) -> Tensor:
    """Fill up with equal rows: (n, ...) -> (size, ...)."""
    return torch.cat((flat, flat.new_full((size - len(flat), *flat.shape[1:]), value)))


@dataclass(frozen=True)
class Filler:
    """A batch that counts nowhere, for a rank that has none while others have one: all ranks
    compute together."""

    batch: Any
