"""Searches that are taken step by step, by the loop of `decoding.search`.

Sentences that are alike in all but source, limit, begin and prefix, and begin together, are a
cohort. A running batch of cohorts serves all models and options that the kernels of `running` do
not take. New cohorts begin between two steps; a finished or cancelled sentence leaves its cohort.
"""

import weakref
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from transduct.decoding.filters import Cut, Filter, Forbid, NoRepeat, Prefix
from transduct.decoding.sampling import Sampling
from transduct.decoding.search import Beam, Hypothesis, LengthRule, Phrase, Stopping, steps
from transduct.inference.batches import device_of, encode
from transduct.inference.cpu_beam import CPUBeam
from transduct.inference.running import ROWS, Running, runs, tell
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.kernels import cpu


class Cohort:
    """A search for sentences that are alike.

    Attributes:
        steps: takes a step whenever it is asked for the next item.
        strategy: that searches, by the places of the sentences.
    """

    def __init__(self, model: Any, sentences: Sequence[Sentence]) -> None:
        self.sentences, first, device = list(sentences), sentences[0], device_of(model)
        sources, begin = ([*each] for each in zip(*((s.source, s.begin) for s in sentences)))
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
        """Call who follows a sentence, if its hypotheses agree on more tokens than before."""
        rows = [each.tokens for each in self.hypotheses(place)]
        if place not in self._left:
            rows = rows[:1]
        elif (narrowed := self.narrowed) is None:
            rows += self.strategy.live(place)
        else:
            rows += [narrowed.tokens[row].tolist() for row in self.strategy.live(place)]
        self._followed[place] = tell(self.sentences[place], rows, self._followed[place])


class Cohorts:
    """A running batch of cohorts; see `running.Running`."""

    used = 0  # their keys and values lie in no pages

    def __init__(self, model: Any) -> None:
        self._model, self.all = weakref.ref(model), dict[Sentence, tuple[Cohort, int]]()
        self.rows, self.tokens, self.steps = 0, 0, 0

    def takes(self, sentence: Sentence, _: int = 0, rows: int = 0) -> bool:
        """Whether it fits now, beside others of so many rows that are about to join."""
        most = max(ROWS, sentence.beam)
        return self.rows + sentence.beam + rows <= most

    def join(self, sentences: Sequence[Sentence]) -> None:
        """Encode sentences, and let their rows take the next steps."""
        alike = defaultdict[Hashable, list[Sentence]](list)
        for one in sentences:
            kind = (
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
            with torch.inference_mode():
                cohort = Cohort(self._model(), some)
            next(cohort.steps)
            for place, one in enumerate(some):
                self.all[one] = cohort, place
                self.rows += one.beam
                self.tokens += len(one.source)

    def interrupt(self) -> None:
        """Nothing: `step` takes one."""

    def leave(self, sentence: Sentence) -> None:
        """Take a sentence out, finished or not; harmless if it is not here."""
        if sentence in self.all:
            cohort, place = self.all.pop(sentence)
            cohort.strategy.drop(place)
            self.rows -= sentence.beam
            self.tokens -= len(sentence.source)

    def step(self) -> list[tuple[Sentence, list[Hypothesis]]]:
        """Take a step. Returns the sentences that are finished, which have left, with their
        hypotheses."""
        self.steps += 1
        done = list[tuple[Sentence, list[Hypothesis]]]()
        for cohort in dict.fromkeys(cohort for cohort, _ in self.all.values()):
            next(cohort.steps, None)
            gone = [place for place in cohort.finished() if cohort.sentences[place] in self.all]
            done += [(cohort.sentences[place], cohort.hypotheses(place)) for place in gone]
        for one, (cohort, place) in self.all.items():
            if one.follow is not None:
                cohort.tell(place)
        for one, _ in done:
            self.leave(one)
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
        rules = config.length_penalty, device, config.length_rule, config.stopping
        cut = config.at_limit == "cut"
        if any(phrases):
            from transduct.decoding.constrained import ConstrainedBeam  # few searches need it

            return ConstrainedBeam(phrases, config.beam, limits, begin, end, *rules, cut)
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
