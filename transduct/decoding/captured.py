"""Search on a GPU as CUDA graphs: a step of model and search is captured once and replayed, and waits for no host.

A step of a base model is two hundred small kernels, and Python needs longer to launch them than the device to run them.
A graph wants shapes and addresses that stay. So the sources of a batch go into buffers (`FixedState`, `DeviceBeam`)
whose sizes are powers of two; places that no source fills are done from the start. Graphs are captured when a shape is
first met: one that reads so many sources, and steps for so many of them whose rows look so far back. Every few steps
the device tells, while it goes on, how many sources are not done; once half of them are, the others move together and a
smaller graph goes on.

On a CPU nothing is captured: the same steps are called one by one.

Whether a sentence is given the same tokens alone and in a batch: its numbers are made by the same formulas whatever
stands beside it, and on a CPU that was tested to the bounds of rounding. On a GPU the matrix library chooses its kernel
by the number of rows, and another kernel may add up in another order. Between searches that run through the same sizes
nothing can differ; between other sizes rounding may decide between two tokens that are as good as equal, in bfloat16
far sooner than in float32. This has not been measured.
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

from transduct.decoding.device import DeviceBeam, Rules
from transduct.decoding.search import Hypothesis
from transduct.functional import graphs
from transduct.functional.segments import Segments

Step = Callable[[], None]
SHORTEST = 16  # tokens that always fit
EVERY = 2  # steps between two looks at how many sources are not done
FEW = 32  # sources that are not worth another, smaller graph
WARM_UP = 2  # steps before a capture, in which libraries choose kernels and take their memory
MOST = 8  # sizes of batches whose buffers and graphs are kept


def power(number: int, least: int = 1) -> int:
    """The smallest power of two that is no smaller than either."""
    return 1 << (max(number, least) - 1).bit_length()


def in_powers(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices sorted by length, the longest first, in batches of a power of two, of at most `budget` tokens when padded
    (one sequence at least); the last may be smaller."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        fitting = max(1, budget // power(lengths[order[start]], SHORTEST))
        size = power(fitting + 1) // 2  # the largest power of two that fits
        yield order[start : start + size]
        start += size


def share_of_memory() -> float:
    """Bytes of the present device's memory that the buffers of captured searches may take, but for one."""
    return torch.cuda.mem_get_info()[1] / 4 if torch.cuda.is_available() else inf


def warm_up(step: Step, held: Sequence[Tensor]) -> None:
    """A few steps whose traces in what is held are removed again."""
    saved = [x.clone() for x in held]
    for _ in range(WARM_UP):
        step()
        for x, before in zip(held, saved, strict=True):
            x.copy_(before)


def capture(step: Step, held: Sequence[Tensor], device: torch.device, pool: Any) -> Step:
    """The step as a graph, on a device that has such; what is held is left as it was.

    Args:
        pool: the memory that graphs share, of which never two run at once.
    """
    if device.type != "cuda":
        return step
    with graphs.beside(device):
        warm_up(step, held)
    graph = torch.cuda.CUDAGraph()
    with graphs.recording(graph, device, pool):
        step()
    return graph.replay


class Watch:
    """Counts sources that are not done without stalling the device: each look gives the answer to the one before."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.told = torch.zeros(2, dtype=torch.int64, pin_memory=cuda)
        self.events = [torch.cuda.Event() for _ in range(2)] if cuda else []  # type: ignore[no-untyped-call]
        self.looks = 0

    def look(self, done: Tensor) -> int | None:
        """Ask for the number now, and give back the one that was asked for before; None at first."""
        now, before = self.looks % 2, (self.looks + 1) % 2
        self.told[now : now + 1].copy_(done.logical_not().sum(0, keepdim=True), non_blocking=True)
        if self.events:
            self.events[now].record()
        self.looks += 1
        if self.looks == 1:
            return None
        if self.events:
            self.events[before].synchronize()
        return int(self.told[before])


class CapturedBatch:
    """Buffers for batches of at most one size, and the graphs that run over it.

    Args:
        model: see `Reader`.
        like: a state of the model that has been started.
        sources, longest: how many sources there are at most, and of how many tokens.
        capacity: how many tokens an output may have, its end included.
    """

    def __init__(self, model: "Reader", like: Any, rules: Rules, sources: int, longest: int, capacity: int) -> None:
        self.model, self.sources, self.longest = model, sources, longest
        self.memory = like.fixed(sources, longest, capacity)
        self.device = self.memory.now.device
        self.beams = DeviceBeam.of(rules, self.memory.now, sources, like.beam, capacity)
        self.given = torch.zeros(sources, longest + 3, dtype=torch.int64, device=self.device)
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.graphs: dict[tuple[int, int], Step] = {}

    def search(
        self, sources: Sequence[Sequence[int]], begin: Sequence[int], limits: Sequence[int], alpha: float
    ) -> list[list[Hypothesis]]:
        """Run a search from its beginning to its end; for each source its hypotheses."""
        found: list[list[Hypothesis]] = [[] for _ in limits]
        numbers, size = list(range(len(limits))), power(len(limits))  # whose place is whose, and how many places run
        self._admit(sources, begin, limits, size)
        watch = Watch(self.device)
        for length in range(1, max(limits) + 1):
            self._graph(size, power(length, SHORTEST))()
            if length % EVERY:
                continue
            undone = watch.look(self.beams.done[:size])
            if undone == 0:
                break
            if undone is not None and undone <= size // 2 and size // 2 >= FEW:
                numbers = self._close_ranks(numbers, found, alpha)
                size, watch = power(len(numbers)), Watch(self.device)
        for number, hypotheses in zip(numbers, self.beams.hypotheses(len(numbers), alpha), strict=True):
            found[number] = hypotheses
        return found

    def _admit(self, sources: Sequence[Sequence[int]], begin: Sequence[int], limits: Sequence[int], size: int) -> None:
        """Read the sources: each with its length, the token its outputs begin after, and their limit."""
        lengths = np.array([len(source) for source in sources])
        given = np.zeros((size, self.longest + 3), np.int64)
        filled = np.arange(self.longest) < lengths[:, None]  # (B, S)
        given[: len(lengths), : self.longest][filled] = np.fromiter(chain.from_iterable(sources), np.int64)
        given[: len(lengths), self.longest :] = np.stack((lengths, begin, limits), 1)
        self.given[:size] = torch.from_numpy(given)
        self._graph(size, 0)()

    def _graph(self, size: int, reach: int) -> Step:
        """A step of the first sources, whose rows look no further back than `reach` tokens; if that is none, what comes
        before the first step."""
        if (size, reach) not in self.graphs:
            held = [self.memory.now, self.memory.slots, *self.beams.of_sources]
            step = self._step(size, reach) if reach else self._reading(size)
            self.graphs[size, reach] = capture(step, held if reach else [], self.device, self.pool)
        return self.graphs[size, reach]

    def _step(self, size: int, reach: int) -> Step:
        state, beams = self.memory.part(size, reach), self.beams.part(size)

        def step() -> None:
            rows = beams.choose(self.model.step(beams.newest.flatten(), state))
            if rows is not None:
                state.select(rows)

        return step

    def _reading(self, size: int) -> Step:
        given, beams = self.given[:size], self.beams.part(size)

        def reading() -> None:
            lengths, begin, limits = given[:, self.longest :].unbind(1)
            self.memory.admit(self.model.read(given[:, : self.longest], lengths, beams.scores.shape[1]), lengths)
            beams.admit(begin, limits)

        return reading

    def _close_ranks(self, numbers: list[int], found: list[list[Hypothesis]], alpha: float) -> list[int]:
        """Keep what the sources that are done have found, and move the others to the front; gives back whose they
        are."""
        done = self.beams.done[: len(numbers)].tolist()
        for number, hypotheses, over in zip(numbers, self.beams.hypotheses(len(numbers), alpha), done, strict=True):
            if over:
                found[number] = hypotheses
        stay = [place for place, over in enumerate(done) if not over]
        places = torch.tensor(stay, dtype=torch.int64, device=self.device)
        self.memory.gather(places)
        self.beams.gather(places)
        self.beams.done[len(stay) :] = True
        return [numbers[place] for place in stay]


class Reader:
    """A model as the captured graphs see it; held weakly, so that they do not keep it alive."""

    def __init__(self, model: Any) -> None:
        self.model = weakref.ref(model)

    def read(self, tokens: Tensor, lengths: Tensor, beam: int) -> Any:
        """The state before the first step, of sources (B, S) of which so many tokens (B,) count.

        What does not count stands beside each source as two sequences more, which nobody sees; they are halves, for a
        model may take no sequence of S tokens. (With sources of up to 16 tokens it must take one of eight.)
        """
        model: Any = self.model()
        longest, total = tokens.shape[1], tokens.numel()
        rest = longest - lengths
        parts = torch.stack((lengths, rest // 2, rest - rest // 2), 1).flatten()  # (3 * B,)
        beside = Segments(parts, torch.nn.functional.pad(parts.cumsum(0), (1, 0)), longest, total, False)
        offsets = torch.arange(0, total + 1, longest, device=tokens.device)
        even = Segments(torch.full_like(lengths, longest), offsets, longest, total, True)
        return model.start(model.encode(tokens.flatten(), beside), even, beam)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Newest tokens (R,) -> logits (R, V)."""
        model: Any = self.model()
        logits, _ = model.step(tokens, state)
        return logits


class CapturedSearch:
    """The captured searches of one model, whose buffers are kept from call to call, the latest few of them."""

    def __init__(self, model: Any) -> None:
        self.model, self.weights = Reader(model), addresses(model)
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
    ) -> list[list[Hypothesis]]:
        """For each source its hypotheses, the best first.

        Args:
            begin, limits: of each source, the token that its outputs begin after and the most tokens of one.

        Raises:
            ValueError: the model keeps no state that could have fixed shapes.
        """
        longest, capacity = power(max(map(len, sources)), SHORTEST), power(max(limits), SHORTEST)
        key = (beam, longest, capacity, rules)
        model: Any = self.model.model()
        there = torch.cuda.device_of(next(model.parameters()))  # type: ignore[no-untyped-call]
        with self.lock, there:  # for graphs are captured on the present device
            held = self.batches.pop(key, None)
            if held is None or held.sources < len(limits):
                held = None  # before the larger is made
                self._let_go()
                like, size = self._like(sources[0], beam), power(len(limits))
                held = CapturedBatch(self.model, like, rules, size, longest, capacity)
            self.batches[key] = held
            self._let_go()
            return held.search(sources, begin, limits, alpha)

    def _let_go(self) -> None:
        """Drop the batches that were not used for longest: all but a few, and what takes too much of the device's
        memory, but for the newest."""
        room = share_of_memory()
        while len(self.batches) > MOST or (
            len(self.batches) > 1 and sum(batch.memory.nbytes for batch in self.batches.values()) > room
        ):
            self.batches.popitem(last=False)

    def _like(self, source: Sequence[int], beam: int) -> Any:
        """A state of the model over one source."""
        model: Any = self.model.model()
        device = next(model.parameters()).device
        tokens, segments = torch.tensor(source, device=device), Segments.of([len(source)], device)
        state = model.start(model.encode(tokens, segments), segments, beam)
        if not hasattr(state, "fixed"):
            raise ValueError(
                f"the state of a {type(model).__name__} has no fixed shapes; captured search takes models that decode "
                "over a memory, such as the Transformer: leave captured out"
            )
        return state


SEARCHES: weakref.WeakKeyDictionary[Any, CapturedSearch] = weakref.WeakKeyDictionary()


def captured_search(model: Any) -> CapturedSearch:
    """The captured searches of a model, made anew where its weights are no longer where they were."""
    held = SEARCHES.get(model)
    if held is None or held.weights != addresses(model):
        held = SEARCHES[model] = CapturedSearch(model)
    return held


def addresses(model: Any) -> list[int]:
    """Where the weights of a model lie; graphs read them there."""
    return [parameter.data_ptr() for parameter in model.parameters()]
