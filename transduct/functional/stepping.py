"""What a search takes from the kernels: the steps of a packed decoder, several in one call where it can, and the choice
of what goes on.

Let R be rows, B sources, V the vocabulary, t the tokens that the rows hold. As of all kernels, whoever calls has asked
`kernels.usable` first.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from transduct.functional import kernels
from transduct.functional.cores import CORES
from transduct.functional.kernels import Packed, PackedDecoder, empty, pointer

WIDEST_BEAM = 32  # rows of a source that `choose` looks at
TOGETHER = 64  # rows whose logits are held at a time; those of more leave the cache before they have been looked at
UNKNOWN = "a token is not in the vocabulary"


class Continuations(NamedTuple):
    """The likeliest next tokens of each source, in order; a score of minus infinity stands where less is possible.

    Attributes:
        scores, origin, tokens: (B, beam) of the best, ends among them: score, row of the source gone on from, token.
        live: (B, beam) the scores of the best that do not end the sentence.
        rows, newest: (R,) the row that each of those goes on from, and its token.
        ends: whether any of the likeliest may end the sentence.
    """

    scores: Tensor
    origin: Tensor
    tokens: Tensor
    live: Tensor
    rows: Tensor
    newest: Tensor
    ends: bool


class Run(NamedTuple):
    """A search before some steps.

    Attributes:
        history: (R, t) the tokens of each row, of which the caches hold all but the newest.
        scores: (B, beam) what the rows are worth, in 64 bits.
        end: the token that ends an output.
        never: tokens that no output may hold.
        limits: (B,) how many tokens the rows of a source may hold; the next is the end, and the last that is taken.
        most: steps, one at least.
        names: (K,) where the search knows few tokens only, what the decoder's table calls them.
        others: (B, K) which of them a source does not know.
    """

    history: Tensor
    scores: Tensor
    end: int
    never: Tensor
    limits: Tensor
    most: int
    names: Tensor | None = None
    others: Tensor | None = None


class Ahead(NamedTuple):
    """A search before the last of some steps, as in `Run`, and what that step found.

    Attributes:
        slots: (R, t) of `rows_attention`, with that step's own.
    """

    history: Tensor
    slots: Tensor | None
    scores: Tensor
    found: Continuations


class Steps:
    """A decoder's steps over keys and values that stay where they are, made ready once for all of them.

    Args:
        output: the matrix that gives the logits.
        caches: of each layer keys (B, G, capacity, beam, K) and values of what the rows have written.
        memories: of each layer keys (B, G, S, K) and values, of which each source has `lengths`, or all of them.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        output: Packed,
        caches: Sequence[tuple[Tensor, Tensor]],
        memories: Sequence[tuple[Tensor, Tensor]],
        lengths: Tensor | None,
    ) -> None:
        (sources, _, capacity, beam, _), longest = caches[0][0].shape, memories[0][0].shape[2]
        self.rows, self.size, self.keys = sources * beam, output.size, caches[0][0]
        self.reach = int(min(capacity, decoder.longest))  # tokens that a row may hold
        numbers = kernels.library().layer_room(decoder.layers.native, self.rows, max(capacity, longest))
        work = empty(numbers + self.rows * decoder.layers.width)
        parts = [part for both in zip(caches, memories, strict=True) for pair in both for part in pair]
        self.held = decoder, output, parts, lengths, work  # what the pointers point at
        self.place = kernels.Place(capacity, beam, 0, longest, None, pointer(lengths))
        pasts = (kernels.POINTER * len(parts))(*map(pointer, parts))
        self.before = decoder.native, output.native, pasts, self.place
        self.after = self.rows, work.data_ptr(), CORES.sharing
        self.together = min(max(TOGETHER // beam, 1), sources)

    def __call__(self, tokens: Tensor, length: int, slots: Tensor | None) -> Tensor:
        """The newest token of each row (R,) -> logits of the next (R, V); its keys and values join the caches.

        Args:
            length: how many tokens these hold so far, less than the decoder's `longest` and their capacity.
            slots: (R, length + 1), as `rows_attention` takes them.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        assert tokens.shape == (self.rows,), f"{self.rows} rows are stepped, not {len(tokens)}"
        tokens, logits = tokens.to(torch.int64).contiguous(), empty(self.rows, self.size)
        self.place.length, self.place.slots = length, pointer(slots)
        if not kernels.library().decode(*self.before, tokens.data_ptr(), *self.after, logits.data_ptr()):
            raise IndexError(UNKNOWN)
        return logits

    def ahead(self, run: Run, slots: Tensor | None) -> Ahead:
        """Steps of a search until an output may end, the caches are full, or as many as are asked for.

        Args:
            slots: (R, t) as `rows_attention` takes them; None without a beam.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        (rows, times), found = run.history.shape, _room_for_found(run.scores)
        most = min(run.most, self.reach - times + 1)
        held = empty(2, 2, rows * (times + most), dtype=torch.int32)  # tokens and slots, twice each, to write in turn
        for part, given in zip(held[:, 0], (run.history, slots)):
            if given is not None:
                part[: rows * times].view(rows, times).copy_(given)
        found[-1] = run.history[:, -1].view_as(run.scores)
        scores = run.scores.clone(memory_format=torch.contiguous_format)
        (tokens, writers), named = held[:, 0], torch.empty_like(found[-1])
        search = _searching(
            found, end=run.end, forbidden=len(run.never), span=held.shape[2], together=self.together, never=run.never,
            limits=run.limits, names=run.names, others=run.others, named=named, tokens=tokens, slots=writers,
            scores=scores, **self._scored,
        )  # fmt: skip
        self.place.length = times - 1
        taken = kernels.library().ahead(*self.before, search, most, *self.after)
        if not taken:
            raise IndexError(UNKNOWN)
        times += taken - 1
        tokens, writers = held[:, (taken - 1) % 2, : rows * times].view(2, rows, times)
        return Ahead(tokens.long(), None if slots is None else writers, scores, _found(found, search.ends))

    @cached_property
    def _scored(self) -> dict[str, Tensor]:
        """Room for the logits of some sources and their log-normalisers."""
        rows = self.together * self.place.beam
        return {"logits": empty(rows, self.size), "normaliser": empty(rows)}


def log_normaliser(logits: Tensor) -> Tensor:
    """log sum exp of each row: (R, V) -> (R,)."""
    logits = logits.contiguous()
    out = empty(logits.shape[0])
    kernels.library().log_normaliser(logits.data_ptr(), *logits.shape, out.data_ptr())
    return out


def _room_for_found(scores: Tensor) -> Tensor:
    return empty(6, *scores.shape, dtype=torch.int64)


def _searching(found: Tensor, **given: Tensor | int | None) -> kernels.Search:
    """A search of these fields, and room for what it finds; whoever calls holds on to all of them."""
    fields = given | dict(zip(kernels.FOUND, found, strict=True))
    return kernels.Search(**{name: pointer(x) if isinstance(x, Tensor) else x for name, x in fields.items()})


def _found(room: Tensor, ends: int) -> Continuations:
    best, live, origin, tokens, rows, newest = room.unbind()
    best, live = best.view(torch.float64), live.view(torch.float64)
    return Continuations(best, origin, tokens, live, rows.view(-1), newest.view(-1), ends > 0)


def choose(
    logits: Tensor, normaliser: Tensor, scores: Tensor, end: int, limits: Tensor | None = None, length: int = 0
) -> Continuations:
    """`decoding.search.continuations` for at most `WIDEST_BEAM` rows a source. Of equal ones that of the
    first row, and its first token, come first."""
    beam, (logits, normaliser, scores) = scores.shape[1], (x.contiguous() for x in (logits, normaliser, scores))
    found = _room_for_found(scores)
    search = _searching(found, end=end, limits=limits, scores=scores, logits=logits, normaliser=normaliser)
    kernels.library().choose(search, 0, len(scores), logits.shape[1], beam, length)
    return _found(found, search.ends)
