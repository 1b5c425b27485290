"""Decoding and scoring of many token sequences: chooses the search and its filters, makes batches,
and returns results in the original order.

Sentences that are alike in all but source, limit, begin and prefix, and begin together, are a
cohort: one search, taken step by step by the loop of `decoding.search`. For a server, new cohorts
begin between two steps, and a finished or cancelled sentence leaves its cohort.
"""

import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

import torch

from transduct.blocks.transformer import DecoderLayer, EncoderLayer
from transduct.decoding.filters import Cut, Filter, FixedLength, Forbid, NoRepeat, Prefix
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import (
    Beam,
    Hypothesis,
    LengthRule,
    Phrase,
    Stopping,
    finite,
    pause,
    search,
    steps,
)
from transduct.decoding.shortlist import Narrowed
from transduct.devices import memory_of
from transduct.errors import NotFinite
from transduct.inference.batches import (
    balanced_batches,
    device_of,
    encode,
    flat,
    in_batches,
    parallel_map,
    report_progress,
    shared,
    workers_for,
)
from transduct.inference.cpu_beam import CPUBeam
from transduct.inference.running import ROWS, Running, borrowed, pages_of, runs, tell
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.kernels import cpu
from transduct.kernels.threads import CORES

if TYPE_CHECKING:
    from transduct.decoding.beam_tree import RecordedBeam

FEW = 16  # rows for which one thread is enough
# Models whose search could not be captured: it would fail again, after seconds.
FAILED: "weakref.WeakSet[Any]" = weakref.WeakSet()


def captures(model: Any, config: DecodingConfig, sentences: Sequence[Sentence] = ()) -> bool:
    """Whether a search is captured as CUDA graphs: where that is asked for or, with auto, on a GPU
    where it can be.

    Args:
        sentences: alike, to be searched together; without them, whether any search of the model is.

    Raises:
        ValueError: it is asked for and cannot be.
    """
    # The device first: on a CPU nothing else is asked and nothing is imported.
    if config.captured == "auto" and (
        not torch.cuda.is_initialized() or device_of(model).type != "cuda" or model in FAILED
    ):
        return False
    problem = config.captured and _uncaptured(model, config, sentences)
    if problem and config.captured is True:
        raise ValueError(f"captured search does not support {problem}; leave captured out")
    return bool(config.captured) and not problem


def _uncaptured(model: Any, config: DecodingConfig, sentences: Sequence[Sentence]) -> str:
    """What captured search does not support, if anything."""
    if not model.captures_search:
        return type(model).__name__
    usual = DecodingConfig()
    for name in ("constraint", "length_rule", "stopping", "at_limit"):
        if getattr(config, name) != getattr(usual, name):
            return name
    if config.shortlist or any(one.narrow for one in sentences):
        return "shortlist"
    constraint = constraint_of(sentences, device_of(model)) if sentences else None
    if isinstance(constraint, Prefix) and constraint.free:  # it scores all tokens
        return "prefix that costs nothing, such as a language's"
    return "" if isinstance(constraint, FixedLength | Prefix | None) else type(constraint).__name__


def generate(
    model: Any,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    config: DecodingConfig,
    begin: int | Sequence[int],
    end: int,
    forbidden: Sequence[int] = (),
    constrain: Callable[[Sequence[Sentence]], Filter] | None = None,
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
        constrain: maps some sentences to a filter over their rows, `config.beam` each.
        narrow: maps some sources to a model that scores only a shortlist, which includes the tokens
            above.

    Raises:
        ValueError: if captured search is asked for and does not support an option.
        NotFinite: if the model's outputs are NaN.
    """
    first = [begin] * len(sources) if isinstance(begin, int) else begin
    sentences = [
        Sentence(source, limit, config, token, end, forbidden, constrain=constrain, narrow=narrow)
        for source, limit, token in zip(sources, limits, first, strict=True)
    ]
    return find(model, sentences)


def find(model: Any, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
    """The hypotheses of sentences that are alike in all but source, limit, begin and prefix; see
    `generate`."""
    if not sentences:
        return []
    if cpu.library() is not None and runs(model, sentences):
        return finite(shared(partial(_together, model), sentences))
    first, device = sentences[0], device_of(model)
    insisted = first.config.captured is True
    captured = captures(model, first.config, sentences)
    config = replace(first.config, captured=captured)

    # Here and not around the whole, because each worker thread has an inference mode of its own.
    @torch.inference_mode()
    def decode(batch: list[int]) -> list[list[Hypothesis]]:
        chosen = [sentences[i] for i in batch]
        if config.captured and (insisted or model not in FAILED):
            found = _captured(insisted, model, chosen, config)
            if found is not None:
                return found
        cohort = Cohort(model, chosen)
        for _ in cohort.steps:
            pause()
        return [cohort.hypotheses(place) for place in range(len(chosen))]

    def search_for(numbers: Sequence[int]) -> list[list[Hypothesis]]:
        # Captured graphs share their buffers, so their batches run one after the other.
        workers = 1 if captured else workers_for(device, len(numbers), config.workers)
        lengths, budget = [len(sentences[i].source) for i in numbers], config.budget(device)
        if captured:
            # Here, because few models in use are searched so.
            from transduct.inference.captured import in_powers_of_two

            places = list(in_powers_of_two(lengths, budget))
        else:
            places = balanced_batches(lengths, budget, workers)
        batches = [[numbers[place] for place in batch] for batch in places]
        results: dict[int, list[Hypothesis]] = {}
        with on_own_threads(model):
            for batch, found in zip(batches, parallel_map(decode, batches, workers), strict=True):
                results |= zip(batch, found, strict=True)
                report_progress(len(batch), len(sentences))
        return [results[number] for number in numbers]

    return finite(shared(search_for, range(len(sentences))))


def recorded(model: Any, one: Sentence) -> "RecordedBeam":
    """The beam search for a sentence, with all that it considered; see `find`."""
    from transduct.decoding.beam_tree import RecordedBeam  # few searches are shown

    device = device_of(model)
    rules = _rules(one.config, device)
    strategy = RecordedBeam(one.beam, [one.limit], one.begin, one.end, **rules)
    filters = filters_of([one], one.end, one.never, device)
    with on_own_threads(model), torch.inference_mode():
        memory, segments = encode(model, [one.source], device)
        finite(search(model, memory, segments, strategy, filters))
    return strategy


def _together(model: Any, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
    """The hypotheses of sentences in running batches, one for each worker."""
    found = dict[Sentence, list[Hypothesis]]()
    waiting = deque(sorted(sentences, key=lambda one: -len(one.source)))
    config, device = sentences[0].config, device_of(model)
    workers, budget = workers_for(device, len(sentences), config.workers), config.budget(device)

    def work(_: int) -> None:
        with borrowed(model) as batch:
            while waiting or batch.all:
                pause()
                # Together, because each run of the encoder takes some time by itself.
                if not batch.all or batch.tokens < 3 * budget // 4:
                    batch.join(_newcomers(batch, waiting, budget))
                done = batch.step()
                found.update(done)
                report_progress(len(done), len(sentences))

    with on_own_threads(model):
        for _ in parallel_map(work, range(workers), workers):
            pass
    return [found[one] for one in sentences]


def _newcomers(batch: Running, waiting: deque[Sentence], budget: int) -> list[Sentence]:
    """The first waiting sentences that fit into a running batch."""
    taken = list[Sentence]()
    left, rows, pages = budget - batch.tokens, ROWS - batch.rows, len(batch.free)
    while True:
        try:
            one = waiting.popleft()  # by one worker only
        except IndexError:
            return taken
        left, rows, pages = left - len(one.source), rows - one.beam, pages - one.pages
        if pages < 0 or rows < 0 or (left < 0 and (taken or batch.all)):
            waiting.appendleft(one)
            return taken
        taken.append(one)


def on_own_threads(model: Any) -> AbstractContextManager[None]:
    """If matrix products run in `kernels.cpu`, let only them use several threads and PyTorch a
    single one."""
    first = next(model.parameters())
    own_kernels = first.is_cpu and first.dtype != torch.bfloat16 and cpu.library() is not None
    return CORES.products_alone() if own_kernels else nullcontext()


def _captured(
    insisted: bool, model: Any, sentences: Sequence[Sentence], config: DecodingConfig
) -> list[list[Hypothesis]] | None:
    """The hypotheses of a batch by `captured.generated`; None if the capture fails and was not
    requested."""
    from transduct.inference.captured import generated

    try:
        return generated(
            model,
            [one.source for one in sentences],
            [one.limit for one in sentences],
            config,
            [one.begin for one in sentences],
            sentences[0].end,
            sentences[0].never,
            constraint_of(sentences, device_of(model)),
        )
    except RuntimeError as error:
        if insisted:
            raise
        FAILED.add(model)  # so that it is reported once for each model
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"search is not captured and runs without: {reason}", stacklevel=2)
        return None


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


class Cohort:
    """A search for sentences that are alike.

    Attributes:
        steps: takes a step whenever it is asked for the next item.
        strategy: the search, whose sources are the sentences in their order.
    """

    def __init__(self, model: Any, sentences: Sequence[Sentence]) -> None:
        self.sentences, first, device = list(sentences), sentences[0], device_of(model)
        sources, begin = [one.source for one in sentences], [one.begin for one in sentences]
        limits, end, never = [one.limit for one in sentences], first.end, list(first.never)
        memory, segments = encode(model, sources, device)
        # What is drawn for a source depends on it alone, not on the batch or its place there.
        keys = [[*source, token] for source, token in zip(sources, begin, strict=True)]
        self.narrowed = first.narrow and first.narrow(sources)
        if (narrowed := self.narrowed) is not None:  # the shortlist's tokens are renumbered
            begin = [narrowed.number(token) for token in begin]
            end, never = narrowed.number(end), [narrowed.number(token) for token in never]
        phrases = [one.phrases for one in sentences]
        self.strategy = _strategy(first.config, limits, begin, end, keys, device, phrases)
        filters = filters_of(sentences, end, never, device)
        self.steps = steps(narrowed or model, memory, segments, self.strategy, filters)
        self._left, self._followed = {*range(len(sentences))}, [0] * len(sentences)

    def hypotheses(self, place: int) -> list[Hypothesis]:
        """Those of a sentence, the best first."""
        found, narrowed = self.strategy.hypotheses[place], self.narrowed
        return found if narrowed is None else [narrowed.renamed(each) for each in found]

    def finished(self) -> list[int]:
        """The places of the sentences that are done since the last call."""
        strategy = self.strategy
        left = {s for s, done in zip(strategy.sources, strategy.done, strict=True) if not done}
        gone, self._left = sorted(self._left - left), left
        return gone

    def tell(self, place: int) -> None:
        """Call `follow` of a sentence, if its hypotheses agree on more tokens than before."""
        rows = [each.tokens for each in self.hypotheses(place)]
        if place not in self._left:
            rows = rows[:1]
        elif (narrowed := self.narrowed) is None:
            rows += self.strategy.live(place)
        else:
            rows += [narrowed.tokens[row].tolist() for row in self.strategy.live(place)]
        self._followed[place] = tell(self.sentences[place], rows, self._followed[place])


class Cohorts:
    """A running batch of cohorts, for all models and options that the kernels of `running` do not
    take; see `running.Running`.

    Their keys and values grow as PyTorch's tensors do. Each sentence counts as many pages as it may
    need, of a number fixed at the start; a tensor that doubles may take twice as much. At most half
    of them count, so that others fit beside a sentence that may need more.
    """

    def __init__(self, model: Any) -> None:
        self._model, self.all = weakref.ref(model), dict[Sentence, tuple[Cohort, int]]()
        self.rows, self.tokens, self.steps, self.used = 0, 0, 0, 0
        layers = [each for each in model.modules() if isinstance(each, EncoderLayer | DecoderLayer)]
        # An encoder's layers keep nothing between steps.
        keeping = [each for each in layers if isinstance(each, DecoderLayer)] or layers
        self.pages = pages_of(keeping, memory_of(device_of(model)) // 4)

    def takes(self, sentence: Sentence, pages: int = 0, rows: int = 0) -> bool:
        """Whether it fits now, beside others that are about to join, of so many pages and rows."""
        pages, rows = self.used + pages + self._counted(sentence), self.rows + rows + sentence.beam
        return pages <= self.pages and rows <= max(ROWS, sentence.beam)

    def join(self, sentences: Sequence[Sentence]) -> None:
        """Encode sentences, and let their rows take the next steps."""
        alike = defaultdict[Hashable, list[Sentence]](list)
        for one in sentences:
            kind = (  # all that the sentences of a cohort have in common
                one.config,
                one.end,
                one.free,
                tuple(one.never),
                one.constrain,
                one.narrow,
                bool(one.phrases),
            )
            alike[kind].append(one)
        for some in alike.values():
            with torch.inference_mode(), self._threads(some):
                cohort = Cohort(self._model(), some)
                next(cohort.steps)
            for place, one in enumerate(some):
                self.all[one] = cohort, place
                self.rows += one.beam
                self.used += self._counted(one)
                self.tokens += len(one.source)

    def _counted(self, sentence: Sentence) -> int:
        """How many of its pages count."""
        return min(sentence.pages, self.pages // 2)

    def _threads(self, sentences: Iterable[Sentence]) -> AbstractContextManager[None]:
        """A few rows are too little work for several threads, which would spin while they wait."""
        few = sum(one.beam for one in sentences) < FEW
        return CORES.alone() if few else on_own_threads(self._model())

    def interrupt(self) -> None:
        """Nothing: `step` takes one."""

    def leave(self, sentence: Sentence) -> None:
        """Take a sentence out, finished or not; harmless if it is not here."""
        if sentence in self.all:
            cohort, place = self.all.pop(sentence)
            cohort.strategy.drop(place)
            self.rows -= sentence.beam
            self.used -= self._counted(sentence)
            self.tokens -= len(sentence.source)

    def step(
        self, _: int = 1, only: Collection[Sentence] | None = None
    ) -> list[tuple[Sentence, list[Hypothesis]]]:
        """Take a step. Returns the sentences that are finished, which have left, with their
        hypotheses.

        Args:
            only: those of its sentences that take it, and the rest of their cohorts; all if not
                given.
        """
        self.steps += 1
        done = list[tuple[Sentence, list[Hypothesis]]]()
        for cohort in dict.fromkeys(self.all[one][0] for one in only or self.all):
            with self._threads(self.all):
                next(cohort.steps, None)
            gone = [place for place in cohort.finished() if cohort.sentences[place] in self.all]
            done += [(cohort.sentences[place], cohort.hypotheses(place)) for place in gone]
        for one, (cohort, place) in self.all.items():
            if one.follow is not None:
                cohort.tell(place)
        for sentence in dict(done):
            self.leave(sentence)
        return done


def running_batch(model: Any, sentence: Sentence) -> type[Running] | type[Cohorts]:
    """The kind of running batch for a sentence."""
    return Running if cpu.library() is not None and runs(model, [sentence]) else Cohorts


def constraint_of(sentences: Sequence[Sentence], device: torch.device) -> Filter | None:
    """What all outputs of some sentences must be, if anything."""
    first = sentences[0]
    if first.constrain is not None:
        return first.constrain(sentences)
    if not any(one.prefix for one in sentences):
        return None
    return Prefix([one.prefix for one in sentences for _ in range(one.beam)], device, first.free)


def filters_of(
    sentences: Sequence[Sentence], end: int, never: Sequence[int], device: torch.device
) -> list[Filter]:
    """What rescores and forbids tokens, in order: those first that must see all logits."""
    config, constraint = sentences[0].config, constraint_of(sentences, device)
    rows = [one.limit for one in sentences for _ in range(one.beam)]
    # The free end changes logits that the others only forbid, so it comes first.
    cut = [] if config.at_limit == "end" else [Cut(end, rows, device)]
    # CTC reads all logits too
    constrained = [] if constraint is None else [constraint]
    repeat = [NoRepeat(config.no_repeat)] if config.no_repeat else []
    return [*cut, *constrained, Forbid(never, device), *repeat]


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


def _rules(config: DecodingConfig, device: torch.device) -> dict[str, Any]:
    """The arguments of a `Beam` that do not depend on its sources."""
    return {
        "alpha": config.length_penalty,
        "device": device,
        "rule": config.length_rule,
        "stopping": config.stopping,
        "cut": config.at_limit == "cut",
    }


def _strategy(
    config: DecodingConfig,
    limits: Sequence[int],
    begin: Sequence[int],
    end: int,
    keys: Sequence[Sequence[int]],
    device: torch.device,
    phrases: Sequence[Sequence[Phrase]] = (),
) -> Beam | Sampling:
    """Beam search or sampling, as configured; a source's samples depend on its key."""
    if config.temperature == 0.0:
        rules = _rules(config, device)
        if any(phrases):
            from transduct.decoding.constrained import ConstrainedBeam  # few searches need it

            return ConstrainedBeam(phrases, config.beam, limits, begin, end, **rules)
        return beam_search(config.beam, limits, begin, end, **rules)
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
