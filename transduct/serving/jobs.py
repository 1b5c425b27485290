"""Requests, cut into pieces of work before they queue, each with its cost in tokens."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transduct.decoding.search import Hypothesis, finite
from transduct.errors import TransductError
from transduct.inference.engine import captures
from transduct.inference.settings import Sentence
from transduct.predictors.long_texts import Piece, Translation

BESIDE = 8  # what an input costs beside its tokens
Call = Callable[[list[Any]], Any]


def ignore(*_: Any) -> None:
    """Nobody follows."""


@dataclass(frozen=True)
class Job:
    """What a request asks for.

    Attributes:
        kind: jobs of one kind have the same `work`, so that their pieces may share a slice.
        inputs: how many inputs there are.
        pieces: what `work` takes, in order.
        costs: of each piece, in tokens.
        owners: the number of the input that each piece is of, in order.
        work: pieces -> one output for each, the same alone and in any company.
        join: the outputs of the pieces -> an answer or an error for each input.
        model, sentences: the model and what is asked of a running batch for each piece; none
            where there is no search, or a captured one.
        read: a sentence and what was found for it -> the output of its piece, or the sentence that
            goes on from it.
        tokens: that are read.
        follow: called there after each piece with the outputs, None for those to come.
        hear: called there with the number of a piece and its new tokens, by a running batch.
    """

    kind: Hashable
    inputs: int
    pieces: Sequence[Any]
    costs: Sequence[int]
    owners: Sequence[int]
    work: Call
    join: Call = list
    model: Any = None
    sentences: list[Sentence] = field(default_factory=list)
    read: Callable[[Sentence, list[Hypothesis]], Any] = lambda _, found: found
    tokens: int = 0
    follow: Call | None = None
    hear: Callable[[int, list[int]], None] | None = None

    @classmethod
    def of_inputs(
        cls, kind: Hashable, inputs: Sequence[Any], costs: Sequence[int], work: Call
    ) -> "Job":
        """Each input is one piece, and the output is its answer."""
        return cls(kind, len(inputs), inputs, costs, range(len(inputs)), work, tokens=sum(costs))


def translation(
    model: Any,
    texts: Sequence[str],
    prefixes: Sequence[Any] | None,
    options: Mapping[str, Any],
    answered: Callable[[Any], Any],
    follow: Callable[[str], None] | None = None,
) -> Job:
    """The job of translating texts, in the pieces that the model takes.

    Args:
        model: a `Translator`.
        answered: the answer, given a translation.
        follow: called with the beginning of the one translation, whenever more of it is known.

    Raises:
        TransductError: an option is unknown or has a wrong value.
    """
    left, errors = list(range(len(texts))), {}
    while True:  # until all that are left are in order
        starts = None if prefixes is None else [prefixes[number] for number in left]
        try:
            plan = model.plan([texts[number] for number in left], prefixes=starts, **options)
            break
        except TransductError as error:
            if error.input is None:
                raise
            number = left.pop(error.input)
            errors[number] = error.at(input=number)

    def join(found: list[Any]) -> list[Any]:
        translations = dict(
            zip(left, map(answered, model.assemble(plan, found[: len(plan.pieces)])), strict=True)
        )
        return [errors.get(number) or translations[number] for number in range(len(texts))]

    done: list[Any] = [None] * len(plan.pieces)
    heard: dict[int, list[int]] = defaultdict(list)

    def hear(piece: int, tokens: list[int]) -> None:
        heard[piece] += tokens
        if done[piece] is None and piece == len([each for each in done if each is not None]):
            [text] = model.target_tokenizer.decode([heard[piece]])
            begun = Translation(text.rstrip("\ufffd"), 0.0, [])  # of a character's first bytes
            tell([*done[:piece], [begun], *done[piece + 1 :]])
            done[piece] = None

    def tell(found: list[Any]) -> None:
        done[:] = found
        count = next((place for place, each in enumerate(found) if each is None), len(found))
        gaps = [[*plan.gaps[0][:count], ""]]
        begun = replace(plan, pieces=plan.pieces[:count], spans=[(0, count)], gaps=gaps)
        if count and follow is not None:
            follow(model.assemble(begun, found[:count])[0].text)

    follows = follow is not None and bool(plan.pieces) and plan.decoding.constraint == "none"
    follows = follows and plan.inner is None
    owners = [number for number, (a, b) in zip(left, plan.spans) for _ in range(a, b)]
    pieces = plan.pieces or [Piece([])] * bool(texts)  # what a blank text scores is worked out too
    sentences, decoding = model.sentences(pieces, plan.decoding), plan.decoding
    piece_of = dict(zip(sentences, pieces, strict=True))
    return Job(
        ("translate", any(prefixes or []), plan.decoding),  # prefixes make a slower search
        len(texts),
        pieces,
        [(2 * len(each.ids) + len(each.start) + BESIDE) * plan.decoding.beam for each in pieces],
        owners or [0] * len(pieces),
        lambda pieces: model.generate(pieces, plan.decoding),
        join,
        model.model,
        joining(model.model, sentences),
        lambda one, found: model.ensured(
            [piece_of[one]], model.read([one], finite([found])), decoding
        )[0],
        tokens=sum(len(each.ids) + 1 for each in plan.pieces),
        follow=tell if follows else None,
        hear=hear if follows and not model.backwards else None,
    )


def continuation(
    model: Any,
    prompts: Sequence[str],
    options: Mapping[str, Any],
    costs: Sequence[int],
    answered: Callable[[Any], Any],
    follow: Callable[[str], None] | None = None,
) -> Job:
    """The job of continuing prompts, each of which is a piece.

    Args:
        model: a `LanguageModel`.
        answered: the answer, given a continuation.
        follow: called with the beginning of the one continuation, whenever more of it is known.

    Raises:
        TransductError: an option is unknown or has a wrong value.
    """
    runs, decoding = model.begun(prompts, **options)
    sentences = [model.sentence(run, len(run) + decoding.length, decoding) for run in runs]
    # what each continues, and what is written after it so far
    begun = {one: (run, list[int]()) for one, run in zip(sentences, runs, strict=True)}
    heard: list[list[int]] = [[] for _ in runs]

    def read(one: Sentence, found: list[Hypothesis]) -> Any:
        run, before = begun[one]
        tokens = [*before, *finite([found])[0][0].tokens]
        if len(tokens) >= decoding.length:
            return answered(model.written(run, tokens))
        longer = model.sentence([*run, *tokens], len(run) + decoding.length, decoding)
        begun[longer] = run, tokens
        return longer

    def hear(piece: int, tokens: list[int]) -> None:
        heard[piece] += tokens
        if follow is not None:
            follow(model.written(runs[piece], heard[piece]).text.rstrip("\ufffd"))

    return Job(
        f"continued {sorted(options.items())}",
        len(prompts),
        prompts,
        costs,
        range(len(prompts)),
        lambda some: [answered(each) for each in model.continued(some, **options)],
        model=model.model,
        sentences=joining(model.model, sentences),
        read=read,
        tokens=sum(map(len, runs)),
        hear=None if follow is None else hear,
    )


def joining(model: Any, sentences: list[Sentence]) -> list[Sentence]:
    """The sentences, if they join a running batch: if their searches are not captured."""
    return [] if any(captures(model, one.config, [one]) for one in sentences) else sentences
