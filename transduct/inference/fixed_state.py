"""The state of a search in memory of fixed shape and address, for captured graphs.

A graph replays the same kernels on the same addresses, so nothing may grow. The number of tokens so
far is a tensor on the device, `now` (1,), that the graph itself counts. Attention reads a fixed
number of times, and what is not yet written is masked. Let R be the rows of a search, `beam` for
each of B sources.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from transduct.blocks.attention import Ancestry, KVCache, Memory, MemoryState
from transduct.functional.attention import Bias, memory_attention
from transduct.kernels.triton import trusted


@dataclass
class FixedCache(KVCache):
    """A `KVCache` of which attention always reads `length` times, or, by a kernel, those written.
    Its sources are moved by `FixedState.gather`.

    Attributes:
        now: (1,) the number of tokens in each row, which is the index of the next one.
        newest: the key and value of the newest token, if they are not written yet.
    """

    now: Tensor = field(kw_only=True)
    newest: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> None:
        """Take the key (R, G, K) and value (R, G, V) of one token per row at `now`, and write them
        unless a kernel is to do so."""
        # A kernel of attention writes them itself, which saves a launch for each layer.
        self.newest = key, value
        if not fast_query(key, self.buffers[0]):
            self._write()

    def _write(self) -> None:
        if self.newest is None:
            return
        for buffer, newest in zip(self.buffers, self.newest, strict=True):
            by_source = newest.view(-1, self.beam, *newest.shape[1:]).transpose(1, 2)
            buffer.index_copy_(2, self.now, by_source.unsqueeze(2))  # (B, G, 1, beam, K)
        self.newest = None

    def attend(
        self,
        query: Tensor,
        ancestry: Ancestry,
        prompt: Memory | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """As `KVCache.attend`; the mask of the ancestry hides what is not yet written."""
        if self.newest is not None and prompt is None and bias is None:
            from transduct.kernels.triton_query import over_past

            assert isinstance(ancestry, FixedAncestry)
            assert ancestry.writers is not None
            newest, self.newest = self.newest, None
            return over_past(query, *self.buffers, self.now, ancestry.writers, newest)
        self._write()
        if prompt is not None or bias is not None or ancestry.mask is None:
            return super().attend(query, ancestry, prompt, bias)
        # All rows of a source read the same keys, so that one product serves them all.
        # (B, 1, beam, t * beam)
        mask = ancestry.mask.view(-1, 1, self.beam, ancestry.mask.shape[3])
        return memory_attention(query, *self.tokens(), mask)

    def _position_bias(self, bias: Bias, query: Tensor, keys: int) -> Tensor:
        """The bias is computed for a query at the last key; shift it to a query at `now`."""
        term = bias(query, keys)
        last = term.shape[-1] - 1
        # Computed from the counter on the device: the host of a replay knows no length.
        index = torch.arange(last + 1, device=term.device) + (self.length - 1 - self.now)
        return term.index_select(-1, index.clamp(max=last))

    def positions(self, rows: int, device: torch.device) -> Tensor:
        """(R,) the position of the next token of each row."""
        return self.now.expand(rows)


@dataclass(frozen=True)
class FixedMemory(Memory):
    """A `Memory` of which a kernel reads as many keys as each source has."""

    def attend(self, query: Tensor) -> Tensor:
        """As `Memory.attend`."""
        if self.lengths is None or not fast_query(query, self.keys):
            return memory_attention(query, self.keys, self.values, self.bias)
        from transduct.kernels.triton_query import over_memory

        return over_memory(query, self.keys, self.values, self.lengths)


def fast_query(query: Tensor, keys: Tensor) -> bool:
    """Whether a kernel attends from one query a row to these keys."""
    return query.dtype == keys.dtype and trusted("triton_query", query.device, query.dtype)


@dataclass
class FixedAncestry(Ancestry):
    """An `Ancestry` whose writers (R, t) are written in place, -1 where no token is yet."""

    now: Tensor = field(kw_only=True)

    def grow(self, rows: int, device: torch.device) -> None:
        """Add a token to each row, written by the row itself."""
        assert self.writers is not None
        assert self.row_numbers is not None
        self._mask = None
        self.writers.index_copy_(1, self.now, self.row_numbers)

    def select(self, rows: Tensor) -> None:
        """Continue from these rows, in this order; a row may occur several times."""
        assert self.writers is not None
        # Back into the same memory: the graph has its address.
        self.writers.copy_(self.writers.index_select(0, rows))


class FixedState:
    """A `MemoryState` with fixed shapes and addresses, for replaying a captured graph on one batch
    after the other.

    `admit` starts a new batch, which may have fewer and shorter sources than the buffers can store.

    Args:
        like: a started state, from which beam, heads, device and dtype are taken.
    """

    def __init__(self, like: MemoryState, sources: int, longest: int, capacity: int) -> None:
        first = like.memories[0].keys
        self.beam, self.now = like.beam, torch.zeros(1, dtype=torch.int64, device=first.device)
        self.writers = torch.full(
            (sources, like.beam, capacity), -1, dtype=torch.int32, device=first.device
        )
        # Kept here rather than in `part`, because a graph reads it at the address of its capture.
        self.row_numbers = torch.arange(like.beam, dtype=torch.int32, device=first.device).repeat(
            sources
        )[:, None]  # (R, 1)
        self.bias = first.new_zeros(sources, 1, 1, longest)  # shared by all layers, in their dtype
        self.lengths = torch.ones(sources, dtype=torch.int64, device=first.device)
        self.memories, self.caches = [], []
        for memory in like.memories:
            both = [(x.shape[1], x.shape[3]) for x in (memory.keys, memory.values)]
            self.memories.append(
                [first.new_zeros(sources, heads, longest, width) for heads, width in both]
            )
            self.caches.append(
                [
                    first.new_zeros(sources, heads, capacity, like.beam, width)
                    for heads, width in both
                ]
            )

    def admit(self, state: MemoryState, lengths: Tensor) -> None:
        """Start a new batch, with the sources of a state that has just been started, of lengths
        (B,)."""
        self.now.zero_()
        # No row is number -1, so nothing of an earlier batch is seen.
        self.writers.fill_(-1)
        for (keys, values), cache, new in zip(
            self.memories, self.caches, state.memories, strict=True
        ):
            sources, _, longest, _ = new.keys.shape
            # masked places have weight zero, but zero times a NaN of an earlier search is NaN
            for x in cache:
                x[:sources].zero_()
            keys[:sources, :, :longest], values[:sources, :, :longest] = new.keys, new.values
        places = torch.arange(self.bias.shape[3], device=lengths.device)
        # (B, S); an empty source keeps one: softmax needs it
        hidden = places >= lengths.clamp(min=1)[:, None]
        self.lengths[: len(lengths)] = lengths.clamp(min=1)
        self.bias.zero_()[: len(lengths)].masked_fill_(hidden[:, None, None], float("-inf"))

    @property
    def nbytes(self) -> int:
        """The size of all keys and values in bytes."""
        return sum(x.nbytes for pair in (*self.memories, *self.caches) for x in pair)

    def part(self, sources: int, times: int) -> MemoryState:
        """The state of the first `sources` sources, with attention over `times` tokens of each row;
        a view, nothing is copied."""
        caches: list[KVCache] = [
            FixedCache(self.beam, keys[:sources], values[:sources], times, now=self.now)
            for keys, values in self.caches
        ]
        memories: list[Memory] = [
            FixedMemory(
                keys[:sources], values[:sources], self.bias[:sources], self.lengths[:sources]
            )
            for keys, values in self.memories
        ]
        rows = sources * self.beam
        writers = self.writers.flatten(0, 1)[:rows, :times]  # (R, t)
        ancestry = FixedAncestry(
            self.beam, writers, self.bias.dtype, self.row_numbers[:rows], now=self.now
        )
        return MemoryState(self.beam, caches, memories, ancestry)

    def gather(self, sources: Tensor) -> None:
        """Move these sources to the front, in this order."""
        for x in (
            self.writers,
            self.bias,
            self.lengths,
            *(x for pair in (*self.memories, *self.caches) for x in pair),
        ):
            x[: len(sources)] = x.index_select(0, sources)
