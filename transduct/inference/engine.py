"""Decoding of many token sequences: sorted by length, batched by token budget, and returned in the
original order."""

import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from math import isnan
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor

from transduct.decoding.filters import Cut, Filter, FixedLength, Forbid, NoRepeat, Prefix
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import (
    Beam,
    Hypothesis,
    LengthRule,
    Stopping,
    finite,
    pause,
    search,
)
from transduct.decoding.shortlist import Narrowed
from transduct.errors import NotFinite
from transduct.inference.cpu_beam import CPUBeam
from transduct.kernels import cpu
from transduct.kernels.threads import CORES
from transduct.ranges import Checked, Count, Range
from transduct.segments import Segments

Item = TypeVar("Item")
Result = TypeVar("Result")
# source tokens decoded together; CAPTURED is for a GPU too
ON_CPU, ON_GPU, CAPTURED = 1024, 4096, 16384
USUAL = 8  # the widest beam for which these hold
# the lowest temperature, and the largest length penalty that does not overflow
COLDEST, STEEPEST = 1e-3, 20.0
# tokens of an output for each of its source, and more, where nothing else is known
EXPANSION = 2.0, 20
WIDEST = 1000  # the widest beam; each hypothesis has a KV cache
BeamWidth = Annotated[int, Range(1, WIDEST)]
LengthPenalty = Annotated[float, Range(-STEEPEST, STEEPEST)]
FEW = 8  # sources that justify another worker
# Models whose search could not be captured: it would fail again, after seconds.
FAILED: "weakref.WeakSet[Any]" = weakref.WeakSet()


@dataclass(frozen=True)
class DecodingConfig(Checked):
    """How outputs are generated.

    Attributes:
        beam: beam size; 1 is greedy. When sampling, the number of samples drawn for each source,
            returned likeliest first; a call that does not set it draws as many as it returns.
        length_penalty: alpha of Wu et al. 2016 or, by the `length_rule` "power", of |Y|^alpha.
        at_limit: the end of an output that is as long as allowed: scored ("end"), free ("free") or
            no part of it ("cut").
        length_rule: what a score is divided by; see `decoding.search.length_penalty`. Models of
            Hugging Face's bring "power".
        stopping: when a search has enough hypotheses; see `decoding.search.Beam`. Models of Hugging
            Face's bring "early", "estimate" or "never".
        batch_tokens: the most source tokens decoded together; 0 for a default that suits the
            device.
        workers: batches decoded in parallel on a CPU; 0 for one per core.
        shortlist: score only the tokens that the source makes likely, if the model has a lexical
            shortlist; scores are then log-probabilities among those tokens.
        temperature: if above zero, sample tokens instead of searching.
        top_k: sample from the k likeliest tokens; 0 for all.
        top_p: sample from the likeliest tokens whose probabilities sum to p; 1 for all.
        seed: seed for sampling.
        validation_beam: beam size of the validations during training.
        constraint: "tree" allows only well-formed trees over the input's words, in tasks that
            support it.
        expansion: an output may have this many tokens for each token of its source, and 20 more. 0
            stands for 2 or, in training, for what the training data need, if that is more.
        max_length: the most tokens of an output, its end included, whatever the source; 0 leaves it
            to `expansion`.
        source_language, target_language: by any code or name, for models of many languages.
        no_repeat: no output (with `sentences`, no sentence of one) holds a run of this many tokens
            twice; 0 allows any. 3 or 4 break loops.
        sentences: translate each sentence of a text by itself, for texts of several. Trees are of
            whole texts.
        captured: on a GPU, replay decoding steps as CUDA graphs of fixed shape. With auto this is
            done wherever it can be: for Transformers with an encoder, in search and in sampling,
            not with a shortlist or a constraint.
    """

    beam: BeamWidth = 5
    length_penalty: LengthPenalty = 1.0
    length_rule: LengthRule = "wu"
    stopping: Stopping = "likeliest"
    at_limit: Literal["end", "free", "cut"] = "end"
    batch_tokens: Count = 0
    workers: Count = 0
    shortlist: bool = False
    temperature: Annotated[float, Range(COLDEST, also=0)] = 0.0
    top_k: Count = 0
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    seed: int = 1
    validation_beam: BeamWidth = 1
    constraint: Literal["none", "tree"] = "none"
    expansion: Annotated[float, Range(0, WIDEST)] = 0.0
    max_length: Count = 0
    source_language: str = ""
    target_language: str = ""
    no_repeat: Count = 0
    sentences: bool = False
    captured: bool | Literal["auto"] = "auto"

    def refuse_options_of_memories(self) -> None:
        """Check that no option is set that only models decoding over a memory support.

        Raises:
            ValueError: if one is set.
        """
        for name in (
            *("captured", "shortlist", "constraint", "expansion", "sentences", "no_repeat"),
            *("max_length", "source_language", "target_language"),
        ):
            if getattr(self, name) not in (False, "none", "auto", ""):
                raise ValueError(
                    f"{name} is for models that decode over a memory; leave {name} out"
                )

    def limit(self, source: int) -> int:
        """The most tokens of an output for a source of this many, both counted with their end."""
        longest = self.max_length + (self.at_limit == "cut")  # without its end
        if self.max_length and not self.expansion:
            return longest
        most = longest_output(source, self.expansion)
        return min(most, longest if self.max_length else most)

    def budget(self, device: torch.device) -> int:
        """Source tokens decoded together: many on a GPU, few enough for the cache on a CPU, and
        fewer for a wide beam, which multiplies the memory."""
        if self.batch_tokens:
            return self.batch_tokens
        captured = self.captured is True
        tokens = ON_CPU if device.type == "cpu" else CAPTURED if captured else ON_GPU
        return max(1, tokens * USUAL // max(self.beam, USUAL))


def captures(
    model: Any,
    config: DecodingConfig,
    constrain: Callable[[Sequence[int]], Filter] | None = None,
    narrows: bool = False,
) -> bool:
    """Whether a search is captured as CUDA graphs: where that is asked for or, with auto, on a GPU
    where it can be.

    Args:
        constrain, narrows: see `generate`; without them, whether some search of the model is.

    Raises:
        ValueError: it is asked for and cannot be.
    """
    # The device first: on a CPU nothing else is asked and nothing is imported.
    if config.captured == "auto" and (device_of(model).type != "cuda" or model in FAILED):
        return False
    problem = config.captured and _uncaptured(model, config, constrain and constrain([0]), narrows)
    if problem and config.captured is True:
        raise ValueError(f"captured search takes no {problem}; leave captured out")
    return bool(config.captured) and not problem


def _uncaptured(
    model: Any, config: DecodingConfig, constraint: Filter | None, narrows: bool
) -> str:
    """What captured search does not take, if anything."""
    if not model.captures_search:
        return type(model).__name__
    usual = DecodingConfig()
    for name in ("constraint", "length_rule", "stopping", "at_limit"):
        if getattr(config, name) != getattr(usual, name):
            return name
    if config.shortlist or narrows:
        return "shortlist"
    if isinstance(constraint, Prefix) and constraint.free:  # it scores all tokens
        return "prefix that costs nothing, such as a language's"
    return "" if isinstance(constraint, FixedLength | Prefix | None) else type(constraint).__name__


def longest_output(source: int, expansion: float = 0.0) -> int:
    """The most tokens of an output for a source of this many, both counted with their end tokens;
    see `DecodingConfig.expansion`."""
    usual, more = EXPANSION
    return int((expansion or usual) * source) + more


def in_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices sorted by length, the longest first, in batches of at most `budget` tokens (at least
    one sequence)."""
    batch: list[int] = []
    tokens = 0
    # The longest first: where memory is short, the first batch shows it, and short ones fill the
    # end.
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[number] > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    if batch:
        yield batch


def in_shares(lengths: Sequence[int], budget: int, workers: int) -> list[list[int]]:
    """Like `in_batches`, but balanced over parallel workers: rounds the number of batches up to a
    multiple of the workers and makes the largest batch as small as that allows. Otherwise a
    leftover batch could keep one worker busy while the others wait."""
    if workers == 1:
        return list(in_batches(lengths, budget))
    ordered, tokens = sorted(lengths, reverse=True), sum(lengths)

    def count(most: int) -> int:
        return sum(1 for _ in in_batches(ordered, most))

    # Rounds of equal work: with 3 batches for 2 workers one of them would idle through the third.
    wanted = -(-count(budget) // workers) * workers
    # More tokens a batch never need more batches, so bisection finds the smallest size.
    lowest, highest = min(budget, tokens // max(wanted, 1)), min(budget, tokens)
    smallest = bisect_left(range(highest), True, lo=lowest, key=lambda most: count(most) <= wanted)
    return list(in_batches(lengths, smallest))


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
    """The hypotheses of each source, the best first.

    A source gets the same hypotheses alone and in any batch, with two exceptions: captured search
    on a GPU (see `inference.captured`), and models that use PyTorch's attention, such as a GPT in
    float32, where it holds up to rounding.

    Args:
        model: has `encode`, `start` and `step`.
        sources: token ids, as the encoder takes them.
        limits: the most tokens of each output, its end included.
        begin, end: the tokens before and after every output; `begin` may be one for each source.
        forbidden: tokens that no output may contain.
        constrain: maps the indices of some sources to a filter over their rows, `config.beam` each.
        narrow: maps some sources to a model that scores only a shortlist, which includes the tokens
            above.

    Raises:
        ValueError: if captured search is asked for and does not support an option.
        NotFinite: if the model's outputs are NaN.
    """
    if not sources:
        return []
    device, insisted = device_of(model), config.captured is True
    config = replace(config, captured=captures(model, config, constrain, narrow is not None))
    # Captured graphs share their buffers, so their batches run one after the other.
    workers = 1 if config.captured else workers_for(device, len(sources), config.workers)
    lengths, budget = [len(source) for source in sources], config.budget(device)

    # Here and not around the whole, because each worker thread has an inference mode of its own.
    @torch.inference_mode()
    def decode(batch: list[int]) -> list[list[Hypothesis]]:
        bounds, chosen = [limits[i] for i in batch], [sources[i] for i in batch]
        first = [begin] * len(batch) if isinstance(begin, int) else [begin[i] for i in batch]
        constraint = constrain and constrain(batch)
        if config.captured and (insisted or model not in FAILED):
            given = (chosen, bounds, config, first, end, forbidden, constraint)
            found = _captured(insisted, model, *given)
            if found is not None:
                return found
        memory, segments = encode(model, chosen, device)
        narrowed = None if narrow is None else narrow(chosen)
        # What is drawn for a source depends on it alone, not on the batch or its place there.
        keys = [[*source, token] for source, token in zip(chosen, first, strict=True)]
        starts, stop, never = first, end, list(forbidden)
        if narrowed is not None:  # the search knows only the tokens of the shortlist, renumbered
            starts = [narrowed.number(token) for token in first]
            stop, never = narrowed.number(end), [narrowed.number(token) for token in forbidden]
        strategy = _strategy(config, bounds, starts, stop, keys, device)
        filters = _filters(config, constraint, bounds, stop, never, device)
        found = search(narrowed or model, memory, segments, strategy, filters)
        if narrowed is None:
            return found
        return [[narrowed.renamed(h) for h in hypotheses] for hypotheses in found]

    results: list[list[Hypothesis]] = [[] for _ in sources]
    if config.captured:
        # Here, because few models in use are searched so.
        from transduct.inference.captured import in_powers

        batches = list(in_powers(lengths, budget))
    else:
        batches = in_shares(lengths, budget, workers)
    with on_own_threads(model):
        for batch, found in zip(batches, side_by_side(decode, batches, workers), strict=True):
            for number, hypotheses in zip(batch, found, strict=True):
                results[number] = hypotheses
    return finite(results)


def on_own_threads(model: Any) -> AbstractContextManager[None]:
    """If matrix products run in `kernels.cpu`, let only them use several threads and PyTorch a
    single one."""
    first = next(model.parameters())
    own_kernels = first.is_cpu and first.dtype != torch.bfloat16 and cpu.library() is not None
    return CORES.products_alone() if own_kernels else nullcontext()


def beam_search(
    beam: int,
    limits: Sequence[int],
    begin: int | Sequence[int],
    end: int,
    alpha: float,
    device: torch.device,
    rule: LengthRule = "wu",
    stopping: Stopping = "likeliest",
    cut: bool = False,
) -> Beam:
    """The fastest `Beam` that works step by step on this device; see `decoding.search.Beam`."""
    # The same search in C where the library can be loaded; both give the same hypotheses.
    fast = device.type == "cpu" and cpu.library() is not None
    kind = CPUBeam if fast else Beam
    return kind(beam, limits, begin, end, alpha, device, rule, stopping, cut)


def _filters(
    config: DecodingConfig,
    constrained: Filter | None,
    limits: Sequence[int],
    end: int,
    never: Sequence[int],
    device: torch.device,
) -> list[Filter]:
    """What rescores and forbids tokens, in order: those first that must see all logits."""
    rows = [limit for limit in limits for _ in range(config.beam)]
    # The free end changes logits that the others only forbid, so it comes first.
    cut = [] if config.at_limit == "end" else [Cut(end, rows, device)]
    # CTC reads all logits too
    constraint = [] if constrained is None else [constrained]
    repeat = [NoRepeat(config.no_repeat)] if config.no_repeat else []
    return [*cut, *constraint, Forbid(never, device), *repeat]


def _strategy(
    config: DecodingConfig,
    limits: Sequence[int],
    begin: Sequence[int],
    end: int,
    keys: Sequence[Sequence[int]],
    device: torch.device,
) -> Beam | Sampling:
    """Beam search or sampling, as configured; a source's samples depend on its key."""
    if config.temperature == 0.0:
        rules = config.length_penalty, device, config.length_rule, config.stopping
        cut = config.at_limit == "cut"
        return beam_search(config.beam, limits, begin, end, *rules, cut)
    return Sampling(
        config.beam,
        limits,
        begin,
        end,
        keys,
        seed=config.seed,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        device=device,
    )


def _captured(insisted: bool, model: Any, *given: Any) -> list[list[Hypothesis]] | None:
    """The hypotheses of a batch by `captured.generated`; None if that fails and is not insisted
    on."""
    from transduct.inference.captured import generated

    try:
        return generated(model, *given)
    except RuntimeError as error:
        if insisted:
            raise
        FAILED.add(model)  # so that it is reported once for each model
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"search is not captured and runs without: {reason}", stacklevel=2)
        return None


def workers_for(device: torch.device, inputs: int, wanted: int = 0) -> int:
    """How many batches to decode in parallel: on a CPU `wanted` or the number of cores, but one for
    few inputs."""
    # A thread for one or two sources costs more than it gains.
    most = max(1, inputs // FEW)
    if device.type != "cpu" or most == 1:
        return 1
    return min(wanted or CORES.count(), most)


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[Result]:
    """Map `work` over the items, in order, with this many threads of one core each.

    A decoding step is too small to split over cores, and its kernels release the GIL.
    """

    def after_pause(item: Item, context: Context | None = None) -> Result:
        if context is not None:
            return context.run(after_pause, item)
        pause()
        return work(item)

    if workers == 1:
        yield from map(after_pause, items)
        return
    # a thread takes no context over by itself, and two may not enter one
    contexts = [copy_context() for _ in items]
    with CORES, ThreadPoolExecutor(workers, initializer=CORES.work_alone) as pool:
        yield from pool.map(after_pause, items, contexts)


def score(
    model: Any,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    begin: int | Sequence[int],
    end: int,
    budget: int,
) -> list[float]:
    """Forced decoding: the sum of the log-probabilities of each target's tokens, its end included.

    Args:
        begin: what stands before every target, and is not scored.

    Raises:
        NotFinite: if the model's outputs are NaN.
    """
    results = [0.0] * len(sources)
    device, first = device_of(model), [begin] if isinstance(begin, int) else [*begin]
    lengths = [max(len(s), len(t) + len(first)) for s, t in zip(sources, targets, strict=True)]
    # Sorted by length, so that a batch of short texts is not padded inside attention.
    for batch in in_batches(lengths, budget):
        pause()
        with torch.inference_mode():
            memory, segments = encode(model, [sources[i] for i in batch], device)
            inputs, target_segments = flat([[*first, *targets[i]] for i in batch], device)
            outputs, _ = flat([[*first[1:], *targets[i], end] for i in batch], device)
            logits = model.logits(model.decode(inputs, target_segments, memory, segments)).float()
            log_probabilities = (
                logits.log_softmax(-1).gather(1, outputs[:, None]).squeeze(1).double()
            )  # (M,)
            # What names a language is given, not predicted: it costs nothing.
            log_probabilities.masked_fill_(target_segments.positions < len(first) - 1, 0.0)
            # In float64, so that the sum does not depend on the length of its neighbours.
            sums = torch.zeros(len(batch), dtype=torch.float64, device=device)
            sums.index_add_(0, target_segments.sequence, log_probabilities)
        for number, value in zip(batch, sums.tolist(), strict=True):
            results[number] = value
    # NaN would be ranked, printed and believed.
    if any(map(isnan, results)):
        raise NotFinite
    return results


def device_of(model: Any) -> torch.device:
    """The device of a model's weights."""
    device: torch.device = next(model.parameters()).device
    return device


def encode(
    model: Any, sources: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Segments]:
    """Encode sources. Returns the memory and its segments."""
    tokens, segments = flat(sources, device)
    return model.encode(tokens, segments), segments


def flat(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Segments]:
    """Concatenate sequences of ids into one flat tensor with its segments."""
    tokens = torch.tensor(
        [token for sequence in sequences for token in sequence], dtype=torch.int64
    )
    return tokens.to(device), Segments.of([len(sequence) for sequence in sequences], device)
