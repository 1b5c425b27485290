"""One running batch: sentences join and leave between decoder steps, and their keys and values lie
in pages of memory fixed at the start.

Sentences of any options meet in one batch: greedy search, beams, samples and prefixes. A finished
or cancelled one leaves at once. Newcomers are encoded in one packed run. This needs a decoder that
the kernels run (`inference.fused`); all others take the path of `decoding.search`, with the same
hypotheses.
"""

import ctypes
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from transduct.decoding.sampling import draw, generators
from transduct.decoding.search import Hypothesis, LengthRule, length_penalty
from transduct.inference.batches import encode
from transduct.inference.fused import fused_decoder, is_packed
from transduct.inference.settings import PAGE, Sentence
from transduct.kernels import cpu
from transduct.kernels.cpu_search import DOUBLE, STOPPING, WIDEST_BEAM, Cells, Finished, Source
from transduct.kernels.threads import CORES

CPU = torch.device("cpu")
MEMORY = 1 << 28  # bytes of all pages
ROWS = 512  # the most rows of a step
WORTH = 1 << 29  # multiplications that several threads share: less waits for them too long
STEPS = 32  # the most steps between two looks at what has changed
# Batches that are not in use, of each model; they are large.
IDLE: "weakref.WeakKeyDictionary[Any, list[Running]]" = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class _Active:
    """A sentence in the batch. A beam is one source of the kernels, samples are one each."""

    sentence: Sentence
    pages: list[int]
    buffers: Any  # what the pointers of the sources point to
    tokens: list[np.ndarray]  # of the rows of each source
    outputs: np.ndarray  # (beam, span) tokens of the finished outputs of a beam
    finished: Any
    sources: list[Any]
    draws: list[Any] = field(default_factory=list)  # a generator for each sample
    scores: list[float] = field(default_factory=list)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    followed: int = 0

    def rows(self) -> list[np.ndarray]:
        """The tokens of each active row and finished output."""
        found = []
        for source, tokens in zip(self.sources, self.tokens, strict=True):
            if not source.done:
                buffer = source.length % 2 if source.beam > 1 else 0
                found += [*tokens[buffer, : source.active, 1 : source.length]]
        return found


class Running:
    """A running batch of a model."""

    def __init__(self, model: Any) -> None:
        decoder: Any = fused_decoder(model)
        pages, attention = pages_of(decoder), decoder[0].cross_attention
        sizes = attention.num_kv_heads, attention.d_k, attention.d_v
        # A proxy, so that an idle batch does not keep its model alive.
        self.model, self.decoder, self.layers = weakref.proxy(model), decoder, list(decoder)
        self.all: dict[Sentence, _Active] = {}
        self.cells = Cells(
            *(decoder.packed, model.output_table.packed, pages * PAGE, ROWS, sizes),
            attention.cache_dtype,
        )
        packed = [part.packed for part in decoder.modules() if is_packed(part)]
        self.size = sum(each.size * each.width for each in [*packed, model.output_table.packed])
        self._cells = np.arange(pages * PAGE, dtype=np.int32).reshape(pages, PAGE)  # of each page
        self.pages, self.free = pages, list(range(pages - 1, -1, -1))  # all, and those nobody uses
        self.rows, self.tokens, self.steps = 0, 0, 0
        self._sources, self._drawn = (cpu.POINTER * 0)(), list[tuple[_Active, int]]()
        self._changed = False  # whether the two above are
        self._only: Collection[Sentence] | None = None  # those that the two above are of

    @property
    def used(self) -> int:
        """How many pages hold keys and values."""
        return self.pages - len(self.free)

    def suits(self, sentence: Sentence) -> bool:
        """Whether it can search for a sentence."""
        return _suits(sentence, self.decoder, self.pages)

    def takes(self, sentence: Sentence, pages: int = 0, rows: int = 0) -> bool:
        """Whether it fits now, beside others that are about to join, of so many pages and rows."""
        return sentence.pages + pages <= len(self.free) and (
            self.rows + sentence.beam + rows <= ROWS
        )

    def join(self, sentences: Sequence[Sentence]) -> None:
        """Encode sentences in one run, and let their rows take the next steps."""
        if not sentences:
            return
        tokens = sum(len(one.source) for one in sentences)
        with torch.inference_mode(), self._threads(tokens):  # an encoder is about as large
            memory, _ = encode(self.model, [one.source for one in sentences], CPU)
            joining = [self._active(one) for one in sentences]
            cells = np.concatenate([cells for _, cells in joining])
            for number, layer in enumerate(self.layers):
                cross = layer.cross_attention
                self.cells.remember(number, cross.key.packed, cross.value.packed, memory, cells)
        for active, _ in joining:
            self.all[active.sentence] = active
        self._changed = True

    def interrupt(self) -> None:
        """Let `step` return after the one under way; from any thread."""
        self.cells.news[0] = 1

    def leave(self, sentence: Sentence) -> None:
        """Take a sentence out, finished or not; harmless if it is not here."""
        active = self.all.pop(sentence, None)
        if active is not None:
            self._changed = True
            self.free += active.pages
            self.rows -= sentence.beam
            self.tokens -= len(sentence.source)

    def step(
        self, most: int = STEPS, only: Collection[Sentence] | None = None
    ) -> list[tuple[Sentence, list[Hypothesis]]]:
        """Take steps until something has to be decided, `most` at most. Returns the sentences that
        are finished, which have left, with their hypotheses.

        Args:
            only: those of its sentences that take them; all if not given.
        """
        if not self.all:
            return []
        if self._changed or only != self._only:
            self._gather(only)
        stepping = self.all if only is None else {one: self.all[one] for one in only}
        follows = any(one.follow is not None for one in stepping)
        with self._threads(sum(one.beam for one in stepping) if only else self.rows):
            self.steps += self.cells.advance(self._sources, 1 if follows else min(most, STEPS))
        self.cells.news[0] = 0  # not before: whoever interrupts meanwhile is not to wait longer
        if self._drawn:
            self._draw(self._drawn)
        done = []
        for one, active in stepping.items():
            if follows and one.follow is not None:
                _tell(active)
            if active.sources[0].done and all(source.done for source in active.sources):
                done.append((one, _hypotheses(active)))
        for one, _ in done:
            self.leave(one)
        return done

    def _threads(self, rows: int) -> AbstractContextManager[None]:
        """As many threads as work on so many rows is worth."""
        return CORES.products_alone() if rows * self.size >= WORTH else CORES.alone()

    def _gather(self, only: Collection[Sentence] | None) -> None:
        """List the sources that take steps, and the samples among them."""
        sources, self._drawn, self._changed = [], list[tuple[_Active, int]](), False
        self._only = only
        for active in [*self.all.values()] if only is None else [self.all[one] for one in only]:
            for number, source in enumerate(active.sources):
                if active.draws and not source.done:
                    source.drawn = self.cells.drawn[len(self._drawn)].data_ptr()
                    self._drawn.append((active, number))
                sources += [] if source.done else [ctypes.addressof(source)]
        self._sources = (cpu.POINTER * len(sources))(*sources)

    def _active(self, one: Sentence) -> tuple[_Active, np.ndarray]:
        """A sentence with its pages and buffers, and the cells of its source."""
        config, beam, span = one.config, one.beam, one.limit + 1
        pages = [self.free.pop() for _ in range(one.pages)]
        cells = self._cells[pages].ravel()
        first = -(-len(one.source) // PAGE) * PAGE
        sampled = config.temperature > 0.0
        rows, sources = (1, beam) if sampled else (beam, 1)
        copies = 2 if rows > 1 else 1
        prefix, never = _ids(tuple(one.prefix)), _ids(tuple(one.never))
        table = _penalties(config.length_penalty, config.length_rule, one.limit.bit_length())
        cut = config.at_limit == "cut"
        stopping = config.stopping
        if stopping == "never" and config.length_penalty <= 0.0:
            stopping = "estimate"
        if rows == 1 and stopping != "likeliest":
            stopping = "early"
        # tokens and cells of the rows, and tokens of the outputs
        numbers = np.zeros((sources, 2 * copies + 1, rows, span), np.int32)
        numbers[:, :copies, :, 0] = one.begin
        numbers[:, copies : 2 * copies, :, 0] = cells[first : first + rows]
        scores, finished = (DOUBLE * rows)(), (Finished * rows)()
        # Addresses are computed: to ask for each would take longer than the search of a sentence.
        at, size, owned = numbers.ctypes.data, 4 * rows * span, cells.ctypes.data + 4 * first
        for row, each in enumerate(finished):
            each.tokens = at + 2 * copies * size + 4 * row * span
        active = _Active(
            sentence=one,
            pages=pages,
            buffers=(cells, prefix, never, table, numbers, scores),
            tokens=[each[:copies] for each in numbers],
            outputs=numbers[0, -1],
            finished=finished,
            sources=[
                Source(
                    beam=rows,
                    active=1,
                    length=1,
                    limit=one.limit,
                    longest=max(1, one.limit - cut),
                    span=span,
                    sources=len(one.source),
                    end=one.end,
                    forced=len(one.prefix),
                    free=one.free,
                    forbidden=len(one.never),
                    cut=config.at_limit != "end",
                    stopping=STOPPING.index(stopping),
                    likeliest=float("-inf"),
                    prefix=prefix[1],
                    never=never[1],
                    penalties=table[1],
                    memory=owned - 4 * first,
                    owned=owned + 4 * number * one.limit,
                    tokens=at + number * (2 * copies + 1) * size,
                    cells=at + copies * size,
                    scores=ctypes.addressof(scores),
                    finished=ctypes.addressof(finished),
                )
                for number in range(sources)
            ],
        )
        if sampled:
            active.draws = generators([*one.source, one.begin], beam, config.seed)
            active.scores = [0.0] * beam
        self.rows += beam
        self.tokens += len(one.source)
        return active, cells[: len(one.source)]

    def _draw(self, sampled: Sequence[tuple[_Active, int]]) -> None:
        """Draw the next token of samples, whose logits the kernels have written."""
        alike: dict[tuple[float, int, float], list[int]] = {}
        for place, (active, _) in enumerate(sampled):
            config = active.sentence.config
            alike.setdefault((config.temperature, config.top_k, config.top_p), []).append(place)
        tokens = [0] * len(sampled)
        for (temperature, top_k, top_p), places in alike.items():
            uniform = torch.tensor([sampled[i][0].draws[sampled[i][1]].random() for i in places])
            logits = self.cells.drawn[torch.tensor(places)]
            chosen = draw(logits.double() / temperature, uniform, top_k, top_p).tolist()
            for place, token in zip(places, chosen, strict=True):
                tokens[place] = token
        for place, (active, number) in enumerate(sampled):
            one, source, token = active.sentence, active.sources[number], tokens[place]
            written, must = source.length - 1, source.length >= one.limit
            if written < len(one.prefix):
                token = one.prefix[written]
            if must:
                token = one.end
            # As the filters of `decoding.search` do, which give probability one.
            if not (source.cut if must else written < one.free):
                logit = np.float32(self.cells.drawn[place, token].item())
                active.scores[number] += float(logit - np.float32(source.normaliser))
            if token == one.end:
                source.done, self._changed = 1, True
                found, score = active.tokens[number][0, 0, 1 : source.length], active.scores[number]
                active.hypotheses.append(Hypothesis(found.tolist(), score, score))
            else:
                active.tokens[number][0, 0, source.length] = token
                source.length += 1


def _hypotheses(active: _Active) -> list[Hypothesis]:
    """What a finished sentence has found, the best first."""
    if active.draws:
        return sorted(active.hypotheses, key=lambda hypothesis: -hypothesis.rank)
    [source] = active.sources
    start = active.outputs.ctypes.data
    found = []
    for one in active.finished[: source.count]:
        row = (one.tokens - start) // (4 * source.span)  # from an address; a token has four bytes
        found.append(Hypothesis(active.outputs[row, : one.length].tolist(), one.score, one.rank))
    return found


def _tell(active: _Active) -> None:
    """Call `follow` of a sentence, if all of its hypotheses agree on more tokens than before."""
    rows = [row.tolist() for row in active.rows()]
    rows += [each.tokens for each in _hypotheses(active)]
    if all(source.done for source in active.sources):
        rows = [_hypotheses(active)[0].tokens]
    active.followed = tell(active.sentence, rows, active.followed)


def tell(sentence: Sentence, rows: Sequence[Sequence[int]], followed: int) -> int:
    """Call `follow` of a sentence with the tokens after the first `followed` that all of these rows
    agree on, if there are any. Returns how many tokens it has been given in all."""
    differ = (place for place, tokens in enumerate(zip(*rows)) if len({*tokens}) > 1)
    agreed = next(differ, min(map(len, rows), default=0))
    if agreed <= followed:
        return followed
    assert sentence.follow is not None
    sentence.follow([*rows[0][followed:agreed]])
    return agreed


@lru_cache(maxsize=64)
def _penalties(alpha: float, rule: LengthRule, bits: int) -> tuple[np.ndarray, int]:
    """The divisors of scores, by length, below two to the power `bits`, and their address."""
    table = np.array([1.0, *(length_penalty(n, alpha, rule) for n in range(1, 1 << bits))])
    return table, table.ctypes.data


@lru_cache(maxsize=64)
def _ids(tokens: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Tokens as the kernels read them, and their address."""
    table = np.array(tokens, np.int64)
    return table, table.ctypes.data


def pages_of(layers: Iterable[Any], memory: int = 0) -> int:
    """How many pages of the keys and values of these layers fit into so many bytes, or the usual
    number of them."""
    each = [layer.self_attention for layer in layers]
    numbers = [a.num_kv_heads * (a.d_k + a.d_v) * a.cache_dtype.itemsize for a in each]
    return (memory or MEMORY) // (PAGE * max(1, sum(numbers)))


def runs(model: Any, sentences: Sequence[Sentence]) -> bool:
    """Whether a running batch can search with this model for each of these sentences, where there
    are kernels."""
    decoder: Any = fused_decoder(model)
    return (
        decoder is not None
        and all(_suits(one, decoder, pages_of(decoder)) for one in sentences)
        and all(
            is_packed(part)
            for layer in decoder
            for part in (layer.cross_attention.key, layer.cross_attention.value)
        )
    )


def _suits(one: Sentence, decoder: Any, pages: int) -> bool:
    """Whether a running batch of so many pages can search for a sentence."""
    return (
        one.beam <= WIDEST_BEAM
        and one.config.captured is not True
        and not (one.config.no_repeat or one.phrases or one.constrain or one.narrow)
        and one.limit <= decoder.packed.longest
        and one.pages <= pages
    )


@contextmanager
def borrowed(model: Any) -> Iterator[Running]:
    """An empty batch of a model, for this block alone."""
    idle = IDLE.setdefault(model, [])
    batch = idle.pop() if idle else Running(model)
    try:
        yield batch
    finally:
        for sentence in [*batch.all]:
            batch.leave(sentence)
        idle.append(batch)
