"""One model in service: how its requests become jobs, what these cost, and its queue."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from transduct.errors import NotFinite, TransductError, require
from transduct.formats.marked import plain
from transduct.predictors.base import Predictor
from transduct.predictors.inside import panels, shown
from transduct.predictors.options import PredictConfig
from transduct.serving import jobs
from transduct.serving.batcher import Batcher, Full
from transduct.serving.jobs import BESIDE, Job, ignore
from transduct.serving.requests import Problem, expect

LARGEST_MAP = 1 << 16  # the most attention weights per head in an answer
DEAREST_TEXT = 40_000  # the largest cost of a text: characters, read and requested, times the beam
SLICE, SLICE_ON_GPU = 4_096, 16_384  # the most tokens worked on together
AT_A_GLANCE = 4_000  # the most characters that are cut into pieces without a thread of their own
SHORT_BATCHES = 512  # tokens that a model without a search computes between two pauses
WARMING = ["a", "A sentence that is a little longer than that."]
log = logging.getLogger("transduct")


class Hosted:
    """A model in service.

    Args:
        model: the result of `transduct.load`.
        name: what requests and metrics call it.
        most: how many inputs may wait.
        watch: called after each batch with its number of pieces and its seconds.

    Attributes:
        users: how many requests use it now.
    """

    def __init__(
        self, model: Predictor, name: str, most: int, watch: Callable[[int, float], None] = ignore
    ) -> None:
        import torch

        self.model: Any = model  # a `Predictor` with the methods that its `verbs` name
        self.name, self.warm, self.broken, self.users = name, False, False, 0
        on_gpu = torch.cuda.is_initialized()
        self._device = torch.cuda.current_device() if on_gpu else None
        self.batcher = Batcher(most, SLICE_ON_GPU if on_gpu else SLICE, watch, self._choose_device)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> str:
        """ok, warming or broken."""
        return "broken" if self.broken else "ok" if self.warm else "warming"

    def start(self) -> None:
        """Begin to answer requests; in the event loop."""
        self._tasks = [asyncio.create_task(self.batcher.run()), asyncio.create_task(self._warm())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Answer no more."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Mark the model as broken if a background task has failed."""
        if not task.cancelled() and (error := task.exception()):
            self.broken = True
            log.critical("the server is broken: %s", error, exc_info=error)

    async def _warm(self) -> None:
        """Answer a few sentences, so that no client waits for one-time initialisation.

        Raises:
            NotFinite: if the model's outputs are not finite.
        """
        if self.model.reads == "text":
            for text in WARMING:
                try:
                    await self.answers("predict", [text], {}, "")
                except NotFinite:
                    raise
                # e.g. the task takes pairs, or requests are already warming it
                except (TransductError, Full):
                    log.debug("nothing to warm it with", exc_info=True)
        self.warm = True

    def check(self, verb: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Refuse what costs too much, before anything reads it.

        Raises:
            Problem: an input does.
        """
        for each in inputs if self.model.reads == "text" else []:
            if (cost := self.cost(verb, each, options)) > DEAREST_TEXT:
                size = f"{cost:,} characters, those asked for counted and times the beam"
                raise Problem(
                    413,
                    f"{size}; at most {DEAREST_TEXT:,} are taken: send it in parts, or ask "
                    "for less",
                )

    async def answers(
        self,
        verb: str,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        client: str,
        begin: Callable[[int], None] = ignore,
        follow: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        """An answer, or the error that concerns it alone, for each input.

        Args:
            begin: called with the number of tokens when work on the first input begins.
            follow: called with the beginning of the one answer, whenever more of it is known.
        """
        job = await self.prompt(inputs, lambda: self.job(verb, inputs, options, follow))
        return await self.batcher.ask(job, client, job.hear, partial(begin, job.tokens))

    async def prompt(self, inputs: Sequence[Any], work: Callable[[], Any]) -> Any:
        """The result of some work on inputs: at once or, where it takes long and must not hold up
        others, in a thread of its own."""
        if sum(len(str(each)) for each in inputs) <= AT_A_GLANCE:
            return work()
        return await asyncio.to_thread(work)

    def _settings(self, options: Mapping[str, Any]) -> tuple[int, int]:
        """The tokens that an answer is asked to have, and the rows of the search for it."""
        settings = {"length": 0, "beam": 1, "samples": 1, "n_best": 1}
        settings |= vars(self.model.decoding) | dict(options)
        return settings["length"], max(settings[name] for name in ("beam", "samples", "n_best"))

    def cost(self, verb: str, given: Any, options: Mapping[str, Any]) -> int:
        """The size of an input before anything has read it: in characters read and asked for, times
        the rows of the search."""
        texts = [given] if isinstance(given, str) else [text for text in given[:2] if text]
        whole = verb == "attention"  # of which tokens may be given instead of a text
        size = sum(len(each if whole or isinstance(each, str) else plain(each)) for each in texts)
        if verb in ("score", "embed", "tokens") or (
            verb == "attention" and given[1] is not None and given[3] != "beam"
        ):
            return size  # both sides are given: no search
        length, rows = self._settings(options)
        codes = (
            2 * self.model.places if self.model.paints else 0
        )  # computed with and without the text
        return int((size + length + codes) * rows)

    def job(
        self,
        verb: str,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        follow: Callable[[Any], None] | None = None,
    ) -> Job:
        """The inputs of a request in pieces of work, with their costs in tokens."""
        model = self.model
        if verb == "translate":
            texts, prefixes = [text for text, _ in inputs], [prefix for _, prefix in inputs]
            given = prefixes if any(prefixes) else None
            return jobs.translation(model, texts, given, options, lambda found: found, follow)
        if "translate" in model.verbs and verb == "predict":
            return jobs.translation(model, inputs, None, options, lambda found: found.text)
        length, rows = self._settings(options)
        kind = f"{verb} {sorted(options.items())}"
        if verb == "score":
            sides = [model.token_counts(list(side)) for side in zip(*inputs)]
            costs = [sum(pair) + BESIDE for pair in zip(*sides)]
            return Job.of_inputs(
                kind, inputs, costs, lambda some: model.score(*map(list, zip(*some)), **options)
            )
        if verb == "attention":  # one by one, because all heads of all layers take much memory
            [(text, target, name, view, _)] = inputs
            [count] = model.token_counts([text])
            cost = (3 * count + BESIDE) * (1 if target is not None else rows)
            return Job.of_inputs(
                f"{kind} {view} {name}",
                inputs,
                [cost],
                lambda some: [_inside(model, options, *each) for each in some],
            )
        if verb == "tokens":
            counts = model.token_counts([text or target for text, target, *_ in inputs])
            costs = [
                count + 2 * len(tokens) + BESIDE
                for count, (_, _, tokens, *_) in zip(counts, inputs, strict=True)
            ]
            return Job.of_inputs(
                kind, inputs, costs, lambda some: [model.explained(*e, **options) for e in some]
            )
        if verb == "alternatives":
            [(text, *_, most)] = inputs
            cost = (2 * model.token_counts([text])[0] + BESIDE) * rows * most
            return Job.of_inputs(
                kind, inputs, [cost], lambda some: [model.alternatives(*e, **options) for e in some]
            )
        if verb == "embed":
            return Job.of_inputs(verb, inputs, model.token_counts(inputs), model.embed)
        if isinstance(model.decoding, PredictConfig):
            options = {"batch_tokens": SHORT_BATCHES, **options}
        costs = [(count + length + BESIDE) * rows for count in model.token_counts(inputs)]
        if "continued" in model.verbs and verb in ("predict", "continued"):
            return jobs.continuation(
                *(model, inputs, options, costs),
                lambda found: found if verb == "continued" else found.text,
                follow,
            )
        answer = getattr(model, verb)
        if follow is not None and model.tells:  # alone, because nobody else is to hear of it
            answer, kind = partial(answer, follow=follow), f"{kind} {id(follow)}"
        return Job.of_inputs(kind, inputs, costs, lambda some: list(answer(some, **options)))

    def _choose_device(self) -> None:
        """Work on the model's device: the current one is set for each thread."""
        if self._device is not None:
            import torch

            torch.cuda.set_device(self._device)


def _inside(
    model: Any,
    options: Mapping[str, Any],
    text: str,
    target: Any,
    name: str | None,
    view: str | None,
    prefix: Sequence[int],
) -> dict[str, Any]:
    """What a view shows or, without one, the alignment and a map.

    Raises:
        Problem: if the map is too large for an answer.
    """
    if view == "panels":
        found = model.attention(text, **options)
        _check_map(*[panel.weights.numel() for panel in found.panels()])
        return panels(found, name)
    if view is None:
        return _shown(model.attention(text, target, **options), name)
    found = shown(model, view, text, target, name, prefix, **options)
    if view == "attention":
        _check_map(prod(found["shape"][1:]))
    return found


def _check_map(*sizes: int) -> None:
    expect(
        max(sizes) <= LARGEST_MAP,
        413,
        f"more than {LARGEST_MAP:,} weights a head are too many to be shown; shorten the text",
    )


def _shown(found: Any, name: str | None) -> dict[str, Any]:
    """The alignment and one attention map, the last one if no name is given.

    Raises:
        TransductError: if there is no map of this name.
        Problem: if the map is too large for an answer.
    """
    rows, columns, alignment = found.alignment()
    name = name or next(reversed(found.weights))
    require(name in found.weights, f"unknown name '{name}'; known are: {', '.join(found.weights)}")
    queries, keys = found.labels(name)
    _check_map(len(rows) * len(columns), found[name][0].numel())
    aligned = {"rows": rows, "columns": columns, "weights": _four_digits(alignment)}
    weights = {"name": name, "rows": queries, "columns": keys, "heads": _four_digits(found[name])}
    return {"names": list(found.weights), "alignment": aligned, **weights}


def _four_digits(weights: Any) -> Any:
    """Weights as lists of numbers, rounded to four digits."""
    return weights.double().mul(1e4).round().div(1e4).tolist()
