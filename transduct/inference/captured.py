"""Search on a GPU with CUDA graphs: a step of model and search is captured once and replayed
without host syncs.

A step of a base model is two hundred small kernels, and Python takes longer to launch them than the
device to run them. A graph needs fixed shapes and addresses, so a batch is kept in buffers
(`FixedState`, `DeviceBeam`) whose sizes are powers of two; unused places are done from the start.
Graphs are captured when a shape first occurs: one for reading so many sources, and one for a step
of so many sources with attention over so many tokens. Every few steps the device reports
asynchronously how many sources are unfinished. Once half are done, the others are compacted and a
smaller graph takes over.

On a CPU nothing is captured; the same steps are called one by one.

A sentence alone and in a batch: the formulas are the same whatever else is in it, and on a CPU the
results agree up to rounding (tested). On a GPU the matrix library chooses its kernel by the number
of rows, and another kernel may sum in another order. Searches that run through the same sizes give
identical results; between different sizes rounding may decide between two nearly equal tokens, far
more often in bfloat16 than in float32. This has not been measured.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.blocks.attention import MemoryState
from transduct.decoding.filters import Filter, FixedLength, Prefix
from transduct.decoding.sampling import generators
from transduct.decoding.search import Hypothesis
from transduct.inference.batches import device_of, flat
from transduct.inference.device_beam import DeviceBeam, Rules
from transduct.inference.fixed_state import FixedState
from transduct.kernels import cuda_graphs
from transduct.segments import Segments, power_of_two

Step = Callable[[], None]
SHORTEST = 16  # the smallest buffer, in tokens
EVERY = 2  # steps between checks of how many sources are unfinished
# a smaller graph takes over only if half of the present one's places are at least this many
FEW = 32
WARM_UP = 2  # steps before a capture, in which libraries choose kernels and allocate workspaces
MOST = 8  # batch shapes whose buffers and graphs are kept


def in_powers_of_two(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices sorted by length, the longest first, in batches whose size is a power of two and that
    hold at most `budget` tokens when padded (but at least one sequence). The last may be
    smaller."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        fitting = max(1, budget // power_of_two(lengths[order[start]], SHORTEST))
        size = power_of_two(fitting + 1) // 2  # the largest power of two that fits
        yield order[start : start + size]
        start += size


def memory_limit() -> float:
    """Bytes of the current device's memory that the buffers of captured searches may take; one
    alone may take more."""
    return torch.cuda.mem_get_info()[1] / 4 if torch.cuda.is_available() else inf


def warm_up(step: Step, changed: Sequence[Tensor]) -> None:
    """Run a few steps and restore the tensors they change."""
    # A step writes caches and counters: without this the first real step would be the third.
    saved = [x.clone() for x in changed]
    for _ in range(WARM_UP):
        step()
        for x, before in zip(changed, saved, strict=True):
            x.copy_(before)


def capture(step: Step, changed: Sequence[Tensor], device: torch.device, pool: Any) -> Step:
    """Capture a step as a CUDA graph, leaving the tensors it changes as they were; on a CPU return
    the step itself.

    Args:
        pool: memory shared by graphs that never run at the same time.
    """
    if device.type != "cuda":
        return step
    # On a stream of its own, as PyTorch asks, so that nothing of the warm-up is in the graph.
    with cuda_graphs.warm_up_stream(device):
        warm_up(step, changed)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    try:
        with cuda_graphs.recording(graph, device, pool):
            step()
    except RuntimeError:
        # Else the device stays in its capture, and every later operation fails.
        cuda_graphs.forget_failed_capture(device, stream)
        raise
    return graph.replay


class Watch:
    """Counts unfinished sources without stalling the device: each look returns the count of the
    look before."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.counts = torch.zeros(2, dtype=torch.int64, pin_memory=cuda)
        self.events = [torch.cuda.Event() for _ in range(2)] if cuda else []
        self.looks = 0

    def look(self, done: Tensor) -> int | None:
        """Request the current count and return the one requested before; None the first time."""
        # Two places in turn: one is written by the device while the other is read.
        now, before = self.looks % 2, (self.looks + 1) % 2
        self.counts[now : now + 1].copy_(done.logical_not().sum(0, keepdim=True), non_blocking=True)
        if self.events:
            self.events[now].record()
        self.looks += 1
        if self.looks == 1:
            return None
        if self.events:
            self.events[before].synchronize()
        return int(self.counts[before])


class CapturedBatch:
    """Buffers for batches up to a given size, and the graphs that run on them.

    Args:
        model: a weak reference, so that graphs do not keep it alive.
        like: a started decoder state of the model, as a template.
        sources, longest: the most sources, and the most tokens of a source.
        capacity: the most tokens of an output, its end included.
    """

    def __init__(
        self, model: Any, like: Any, rules: Rules, sources: int, longest: int, capacity: int
    ) -> None:
        self.model, self.sources, self.longest = model, sources, longest
        self.memory = FixedState(like, sources, longest, capacity)
        self.device = self.memory.now.device
        self.beams = DeviceBeam.of(rules, self.memory.now, sources, like.beam, capacity)
        self.inputs = torch.zeros(sources, longest + 3, dtype=torch.int64, device=self.device)
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.graphs: dict[tuple[int, int], Step] = {}

    def search(
        self,
        sources: Sequence[Sequence[int]],
        begin: Sequence[int],
        limits: Sequence[int],
        alpha: float,
        prefixes: Sequence[Sequence[int]] = (),
        uniform: Sequence[Sequence[Sequence[float]]] = (),
    ) -> list[list[Hypothesis]]:
        """Run a whole search. Returns the hypotheses of each source."""
        found: list[list[Hypothesis]] = [[] for _ in limits]
        numbers, size = list(range(len(limits))), power_of_two(len(limits))
        self._admit(sources, begin, limits, size)
        if prefixes:
            self.beams.lead(prefixes)
        if uniform:
            self.beams.draw_by(uniform)
        watch = Watch(self.device)
        for length in range(1, max(limits) + 1):
            # Attention over a power of two of tokens, so that few graphs serve all lengths.
            self._graph(size, power_of_two(length, SHORTEST))()
            # Each look costs a copy to the host, so not every step takes one.
            if length % EVERY:
                continue
            undone = watch.look(self.beams.done[:size])
            if undone == 0:
                break
            # Half is worth a move: each graph computes all its places, whether they are done or
            # not.
            if undone is not None and undone <= size // 2 and size // 2 >= FEW:
                numbers = self._compact(numbers, found, alpha)
                size, watch = power_of_two(len(numbers)), Watch(self.device)
        for number, hypotheses in zip(
            numbers, self.beams.hypotheses(len(numbers), alpha), strict=True
        ):
            found[number] = hypotheses
        return found

    def _admit(
        self,
        sources: Sequence[Sequence[int]],
        begin: Sequence[int],
        limits: Sequence[int],
        size: int,
    ) -> None:
        """Copy the sources to the device, each with its length, begin token and limit, and encode
        them."""
        lengths = np.array([len(source) for source in sources])
        # One array and one copy for all that differs between batches.
        inputs = np.zeros((size, self.longest + 3), np.int64)
        filled = np.arange(self.longest) < lengths[:, None]  # (B, S)
        inputs[: len(lengths), : self.longest][filled] = np.fromiter(
            chain.from_iterable(sources), np.int64
        )
        inputs[: len(lengths), self.longest :] = np.stack((lengths, begin, limits), 1)
        self.inputs[:size] = torch.from_numpy(inputs)
        self._graph(size, 0)()

    def _graph(self, size: int, times: int) -> Step:
        """A step of the first `size` sources whose rows attend to at most `times` tokens of their
        own; for a times of 0, the encoding that comes before the first step."""
        if (size, times) not in self.graphs:
            # A capture runs the step first, to warm up; what that changes is put back.
            changed = (
                [self.memory.now, self.memory.writers, *self.beams.by_source.values()]
                if times
                else []
            )
            step = self._step(size, times) if times else self._reading(size)
            self.graphs[size, times] = capture(step, changed, self.device, self.pool)
        return self.graphs[size, times]

    def _step(self, size: int, times: int) -> Step:
        state, beams = self.memory.part(size, times), self.beams.part(size)

        def step() -> None:
            logits, _ = self.model.step(beams.newest.flatten(), state)
            self.memory.now.add_(1)  # on the device: all layers and the search share the counter
            rows = beams.choose(logits)
            if rows is not None:
                state.select(rows)

        return step

    def _reading(self, size: int) -> Step:
        inputs, beams = self.inputs[:size], self.beams.part(size)

        def reading() -> None:
            lengths, begin, limits = inputs[:, self.longest :].unbind(1)
            tokens, beam = inputs[:, : self.longest], beams.scores.shape[1]
            self.memory.admit(read(self.model, tokens, lengths, beam), lengths)
            beams.admit(begin, limits)

        return reading

    def _compact(
        self, numbers: list[int], found: list[list[Hypothesis]], alpha: float
    ) -> list[int]:
        """Collect the hypotheses of the finished sources and move the others to the front. Returns
        their numbers."""
        done = self.beams.done[: len(numbers)].tolist()
        for number, hypotheses, over in zip(
            numbers, self.beams.hypotheses(len(numbers), alpha), done, strict=True
        ):
            if over:
                found[number] = hypotheses
        stay = [place for place, over in enumerate(done) if not over]
        kept = torch.tensor(stay, dtype=torch.int64, device=self.device)
        self.memory.gather(kept)
        self.beams.gather(kept)
        # What lies behind the others is over, so that no step waits for it.
        self.beams.done[len(stay) :] = True
        return [numbers[place] for place in stay]


def read(model: Any, tokens: Tensor, lengths: Tensor, beam: int) -> Any:
    """The state before the first step, for padded sources (B, S) of these lengths (B,).

    The padding after each source becomes two extra sequences that nothing attends to; two, because
    a model may not accept one of S tokens. (For sources of up to 16 tokens it must accept one of
    8.)
    """
    longest, total = tokens.shape[1], tokens.numel()
    rest = longest - lengths
    # Sequences of their own, and no mask: attention over segments never looks across.
    parts = torch.stack((lengths, rest // 2, rest - rest // 2), 1).flatten()  # (3 * B,)
    ends = torch.nn.functional.pad(parts.cumsum(0), (1, 0))
    separate = Segments(parts, ends, longest, total, False)
    offsets = torch.arange(0, total + 1, longest, device=tokens.device)
    even = Segments(torch.full_like(lengths, longest), offsets, longest, total, True)
    return model.start(model.encode(tokens.flatten(), separate), even, beam)


class CapturedSearch:
    """The captured searches of one model; the most recently used buffers and graphs are kept from
    call to call."""

    def __init__(self, model: Any) -> None:
        self.model, self.weights = weakref.proxy(model), addresses(model)
        self.batches: OrderedDict[tuple[int, int, int, Rules], CapturedBatch] = OrderedDict()
        self.lock = threading.Lock()

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[Sequence[int]],
        begin: Sequence[int],
        limits: Sequence[int],
        beam: int,
        rules: Rules,
        alpha: float,
        prefixes: Sequence[Sequence[int]] = (),
        uniform: Sequence[Sequence[Sequence[float]]] = (),
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source, the best first.

        Args:
            begin, limits: for each source, the token its outputs begin after, and the most tokens
                of an output.
            prefixes: if the rules say so, the tokens each output begins with; -1 for any.
            uniform: if the rules say so, the numbers by which each of the `beam` samples of a
                source draws, one for each token.
        """
        longest, capacity = (
            power_of_two(max(map(len, sources)), SHORTEST),
            power_of_two(max(limits), SHORTEST),
        )
        key = (beam, longest, capacity, rules)
        device = torch.cuda.device_of(next(self.model.parameters()))
        with self.lock, device:  # graphs are captured on the current device
            batch = self.batches.pop(key, None)
            # A larger batch serves smaller ones: its graphs are made for parts of it.
            if batch is None or batch.sources < len(limits):
                batch = None  # freed before the larger one is allocated
                self._evict()
                like, size = self._like(sources[0], beam), power_of_two(len(limits))
                batch = CapturedBatch(self.model, like, rules, size, longest, capacity)
            self.batches[key] = batch
            self._evict()
            return batch.search(sources, begin, limits, alpha, prefixes, uniform)

    def _evict(self) -> None:
        """Drop the least recently used batches until few enough are left and they fit into memory;
        the newest always stays."""
        allowed = memory_limit()
        while len(self.batches) > MOST or (
            len(self.batches) > 1
            and sum(batch.memory.nbytes for batch in self.batches.values()) > allowed
        ):
            self.batches.popitem(last=False)

    def _like(self, source: Sequence[int], beam: int) -> Any:
        """A state of the model over one source."""
        tokens, segments = flat([source], device_of(self.model))
        state = self.model.start(self.model.encode(tokens, segments), segments, beam)
        assert isinstance(state, MemoryState), "what captures_search declares"
        return state


SEARCHES: weakref.WeakKeyDictionary[Any, CapturedSearch] = weakref.WeakKeyDictionary()


def generated(
    model: Any,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    config: Any,
    begin: Sequence[int],
    end: int,
    forbidden: Sequence[int],
    constraint: Filter | None,
) -> list[list[Hypothesis]]:
    """The hypotheses of a batch of sources; see `engine.generate`."""
    prefixes: list[list[int]] = []
    if isinstance(constraint, FixedLength):
        limits = constraint.limits[:: config.beam].tolist()
    elif isinstance(constraint, Prefix):
        prefixes = constraint.tokens[:: config.beam].tolist()
    # 1 allows the end alone; 0 would mark an unused place
    limits = [max(1, limit) for limit in limits]
    rules = Rules(
        end,
        tuple(forbidden),
        isinstance(constraint, FixedLength),
        bool(prefixes),
        config.no_repeat,
        config.temperature,
        config.top_k,
        config.top_p,
    )
    alpha, uniform = config.length_penalty, []
    if config.temperature:  # samples are not ranked by their lengths
        alpha = 0.0
        for source, token, limit in zip(sources, begin, limits, strict=True):
            each = generators([*source, token], config.beam, config.seed)
            uniform.append([[generator.random() for _ in range(limit)] for generator in each])
    return captured_search(model).search(
        sources, begin, limits, config.beam, rules, alpha, prefixes, uniform
    )


def captured_search(model: Any) -> CapturedSearch:
    """The captured searches of a model, created anew if its weights have moved in memory."""
    searches = SEARCHES.get(model)
    if searches is None or searches.weights != addresses(model):
        searches = SEARCHES[model] = CapturedSearch(model)
    return searches


def addresses(model: Any) -> list[int]:
    """The memory addresses of a model's weights, which are baked into graphs."""
    return [parameter.data_ptr() for parameter in model.parameters()]
