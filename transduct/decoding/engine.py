"""From many token sequences to hypotheses: sorted, batched by token budget, and put back in order."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from transduct.decoding.captured import captured_search, in_powers
from transduct.decoding.device import Rules
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import Beam, Filter, FixedLength, Forbid, Hypothesis, finite, search
from transduct.decoding.shortlist import Narrowed
from transduct.errors import NotFinite
from transduct.functional import kernels
from transduct.functional.cores import CORES
from transduct.functional.segments import Segments

Item = TypeVar("Item")
Result = TypeVar("Result")
ON_CPU, ON_GPU, CAPTURED = 1024, 4096, 16384  # source tokens decoded together; the last on a GPU too
USUAL = 8  # the beam up to which they are as many
COLDEST, STEEPEST = 1e-3, 20.0  # temperature that is not greedy yet, and length penalty that is a number still
WIDEST = 1000  # beam: each hypothesis holds a cache
FEW = 8  # sources that are not worth another worker


@dataclass(frozen=True)
class DecodingConfig:
    """How outputs are searched for.

    Attributes:
        beam: hypotheses that go on for each source; 1 is greedy. With sampling, samples drawn for each source, the
            likeliest first; a call that does not say how many draws as many as it shows.
        length_penalty: alpha of Wu et al. 2016.
        batch_tokens: the most source tokens decoded together; 0 for what suits the device.
        workers: how many batches are decoded side by side on a CPU; 0 for one on each of its cores.
        shortlist: score only tokens that the source makes likely, where the model brings such a list; scores are then
            log-probabilities among those.
        temperature: above zero, tokens are drawn instead of searched for.
        top_k: only the k likeliest tokens are drawn from; 0 for all.
        top_p: only the likeliest tokens that together have this probability are drawn from; 1 for all.
        seed: of the draws.
        validation_beam: the beam of validations during training.
        constraint: "tree" allows only well-formed trees over the input's words; tasks that know of it apply it.
        captured: on a GPU, replay steps as graphs of fixed shapes. For models that decode over a memory, and for search
            alone: not with a temperature, a shortlist or a constraint.
    """

    beam: int = 5
    length_penalty: float = 1.0
    batch_tokens: int = 0
    workers: int = 0
    shortlist: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    validation_beam: int = 1
    constraint: Literal["none", "tree"] = "none"
    captured: bool = False

    def __post_init__(self) -> None:
        check_search(self)
        for name in ("batch_tokens", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 0")
        if not (self.temperature == 0.0 or COLDEST <= self.temperature < inf):
            raise ValueError(f"temperature is {self.temperature}, must be 0 or at least {COLDEST}")
        if self.top_k < 0 or not 0.0 < self.top_p <= 1.0:
            raise ValueError("top_k must not be negative, top_p must be in (0, 1]")
        if self.captured and (other := not_captured(vars(self))):
            raise ValueError(f"captured search takes no {other[0]}; leave one of them out")

    def without_memory(self) -> None:
        """Refuse what only search over a memory does, for models that have none.

        Raises:
            ValueError: it is asked for.
        """
        for name in ("captured", "shortlist", "constraint"):
            if getattr(self, name) not in (False, "none"):
                raise ValueError(f"{name} is for models that decode over a memory; leave {name} out")

    def without_capture(self, options: Mapping[str, Any], prefixes: object = None) -> "DecodingConfig":
        """These settings for a call: captured search gives way to what it cannot do, unless the call asks for it."""
        if "captured" in options or not (prefixes or not_captured(options)):
            return self
        return replace(self, captured=False)

    def budget(self, device: torch.device) -> int:
        """Source tokens decoded together: a GPU wants many, what a CPU decodes should stay in its cache. A wide beam
        takes the memory of as many more sources."""
        if self.batch_tokens:
            return self.batch_tokens
        tokens = ON_CPU if device.type == "cpu" else CAPTURED if self.captured else ON_GPU
        return max(1, tokens * USUAL // max(self.beam, USUAL))


def not_captured(options: Mapping[str, Any]) -> list[str]:
    """The names of the options that are set and that captured search cannot follow."""
    names = ("temperature", "shortlist", "constraint")
    return [name for name in names if options.get(name) not in (None, "none", 0, False)]


def check_search(config: Any) -> None:
    """Raises ValueError for a beam that is too narrow or too wide, or a length penalty that nothing outweighs."""
    for name in ("beam", "validation_beam"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}, must be at least 1")
        if getattr(config, name) > WIDEST:
            raise ValueError(f"{name} is {getattr(config, name)}, must be at most {WIDEST}")
    if not abs(config.length_penalty) <= STEEPEST:
        raise ValueError(f"length_penalty is {config.length_penalty}, must be between -{STEEPEST} and {STEEPEST}")


def room_for(source: int) -> int:
    """The most tokens of a translation for a source of so many, each with its end."""
    return 2 * source + 20


def in_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices sorted by length, the longest first, in batches of at most `budget` tokens (one sequence at least)."""
    batch: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[number] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    if batch:
        yield batch


def in_shares(lengths: Sequence[int], budget: int, workers: int) -> list[list[int]]:
    """As `in_batches`, for workers side by side: the largest batch as small as can be where all workers take as many
    turns as the budget asks for. A rest that fits nowhere would be one more turn, of one worker alone."""
    if workers == 1:
        return list(in_batches(lengths, budget))
    ordered, tokens = sorted(lengths, reverse=True), sum(lengths)

    def count(most: int) -> int:
        return sum(1 for _ in in_batches(ordered, most))

    wanted = -(-count(budget) // workers) * workers
    fewest, most = min(budget, tokens // max(wanted, 1)), min(budget, tokens)
    least = bisect_left(range(most), True, lo=fewest, key=lambda most: count(most) <= wanted)
    return list(in_batches(lengths, least))


def generate(
    model: Any,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    config: DecodingConfig,
    begin: int | Sequence[int],
    end: int,
    forbidden: Sequence[int] = (),
    constrain: Callable[[Sequence[int]], Filter] | None = None,
    narrow: Callable[[Sequence[Sequence[int]]], Narrowed] | None = None,
) -> list[list[Hypothesis]]:
    """Hypotheses of each source, the best first; a source's are the same alone and in any batch (captured on a GPU, as
    far as `decoding.captured` says; where attention is PyTorch's, as a GPT's in float32 is, to rounding).

    Args:
        model: has `encode`, `start` and `step`.
        sources: token ids, as the encoder takes them.
        limits: the most tokens of each output, its end included.
        begin, end: the tokens that stand before and after every output; begin may be one for each source.
        forbidden: tokens no output may hold.
        constrain: for the numbers of some sources a filter over their rows, `config.beam` each.
        narrow: for some sources the model that scores only some tokens, those above among them.

    Raises:
        ValueError: captured search is asked for what it does not know.
        NotFinite: the model answers with NaN.
    """
    device = next(model.parameters()).device
    if config.captured and narrow is not None:
        raise ValueError("captured search scores all tokens; leave captured or the shortlist out")
    workers = 1 if config.captured else workers_for(device, len(sources), config.workers)
    lengths, budget = [len(source) for source in sources], config.budget(device)

    @torch.inference_mode()
    def decode(batch: list[int]) -> list[list[Hypothesis]]:
        bounds, given = [limits[i] for i in batch], [sources[i] for i in batch]
        first = [begin] * len(batch) if isinstance(begin, int) else [begin[i] for i in batch]
        if config.captured:
            return _captured(model, given, bounds, config, first, end, forbidden, constrain and constrain(batch))
        memory, segments = encode(model, given, device)
        narrowed = None if narrow is None else narrow(given)
        number = (lambda token: token) if narrowed is None else narrowed.number
        seeds = [[*source, token] for source, token in zip(given, first, strict=True)]
        first, last = list(map(number, first)), number(end)
        strategy = _strategy(config, bounds, first, last, seeds, device)
        filters = [*([constrain(batch)] if constrain else []), Forbid(list(map(number, forbidden)), device)]
        found = search(narrowed or model, memory, segments, strategy, filters)
        return found if narrowed is None else [[narrowed.renamed(h) for h in hypotheses] for hypotheses in found]

    results: list[list[Hypothesis]] = [[] for _ in sources]
    batches = list(in_powers(lengths, budget)) if config.captured else in_shares(lengths, budget, workers)
    with on_own_threads(model):
        for batch, found in zip(batches, side_by_side(decode, batches, workers), strict=True):
            for number, hypotheses in zip(batch, found, strict=True):
                results[number] = hypotheses
    return finite(results)


def on_own_threads(model: Any) -> AbstractContextManager[None]:
    """Where products are those of `functional.kernels`, only they use several threads, PyTorch's operations one."""
    first = next(model.parameters())
    ours = first.is_cpu and first.dtype != torch.bfloat16 and kernels.library() is not None
    return CORES.products_alone() if ours else nullcontext()


def _strategy(
    config: DecodingConfig,
    limits: Sequence[int],
    begin: Sequence[int],
    end: int,
    seeds: Sequence[Sequence[int]],
    device: torch.device,
) -> Beam | Sampling:
    """What the configuration asks for; the draws of a source belong to its seed."""
    if config.temperature == 0.0:
        return Beam(config.beam, limits, begin, end, config.length_penalty, device)
    return Sampling(
        config.beam, limits, begin, end, seeds,
        seed=config.seed, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, device=device,
    )  # fmt: skip


def _captured(
    model: Any,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    config: DecodingConfig,
    begin: Sequence[int],
    end: int,
    forbidden: Sequence[int],
    constrained: Filter | None,
) -> list[list[Hypothesis]]:
    """`generate` for one batch, by `CapturedSearch`; of filters it knows `FixedLength`."""
    if constrained is not None and not isinstance(constrained, FixedLength):
        raise ValueError(f"captured search knows no {type(constrained).__name__}; leave captured out")
    if constrained is not None:
        limits = constrained.limits[:: config.beam].tolist()
    limits = [max(1, limit) for limit in limits]  # the end alone; there 0 is a place that nobody fills
    rules = Rules(end, tuple(forbidden), constrained is not None)
    return captured_search(model).search(sources, begin, limits, config.beam, rules, config.length_penalty)


def workers_for(device: torch.device, inputs: int, wanted: int = 0) -> int:
    """How many batches go side by side: on a CPU as many as are wanted, or as there are cores; few inputs are one."""
    return min(wanted or CORES.count(), max(1, inputs // FEW)) if device.type == "cpu" else 1


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """`work` done on each item, in order, by so many threads of one core each.

    A step of decoding is too small to be shared by cores, and its kernels release the GIL.
    """
    if workers == 1:
        yield from map(work, items)
        return
    with CORES, ThreadPoolExecutor(workers, initializer=CORES.work_alone) as pool:
        yield from pool.map(work, items)


def score(
    model: Any,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    begin: int,
    end: int,
    budget: int,
) -> list[float]:
    """Forced decoding: the sum of the log-probabilities of each target's tokens, its end included.

    Raises:
        NotFinite: the model answers with NaN.
    """
    results = [0.0] * len(sources)
    device = next(model.parameters()).device
    lengths = [max(len(s), len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    for batch in in_batches(lengths, budget):
        with torch.inference_mode():
            memory, segments = encode(model, [sources[i] for i in batch], device)
            inputs, target_segments = flat([[begin, *targets[i]] for i in batch], device)
            outputs, _ = flat([[*targets[i], end] for i in batch], device)
            logits = model.logits(model.decode(inputs, target_segments, memory, segments)).float()
            log_probabilities = logits.log_softmax(-1).gather(1, outputs[:, None]).squeeze(1).double()  # (M,)
            sums = torch.zeros(len(batch), dtype=torch.float64, device=device)
            sums.index_add_(0, target_segments.sequence, log_probabilities)
        for number, value in zip(batch, sums.tolist(), strict=True):
            results[number] = value
    if any(map(isnan, results)):
        raise NotFinite
    return results


def encode(model: Any, sources: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Segments]:
    """The memory of some sources, and where each lies in it."""
    tokens, segments = flat(sources, device)
    return model.encode(tokens, segments), segments


def flat(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Segments]:
    """Sequences of ids as one flat run."""
    tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
    return tokens.to(device), Segments.of([len(sequence) for sequence in sequences], device)
