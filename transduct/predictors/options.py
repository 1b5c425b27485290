"""Options and inputs of a call: read, checked, refused by name; an input that is wrong does not
stop those beside it."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from transduct.config import Recipe, record
from transduct.data.files import Policy, Refused
from transduct.data.text import LONGEST_LINE
from transduct.data.tokenizer import Tokenizer
from transduct.data.unknown import counted_if_done, met
from transduct.errors import MissingExtra, TransductError
from transduct.inference.settings import DecodingConfig
from transduct.ranges import AtLeastOne, Checked

Decoding = TypeVar("Decoding", bound=DecodingConfig)
Section = TypeVar("Section")
Item = TypeVar("Item")
OPTIONS = "options"  # how errors name the options of a call
FROM, TO = "source_language", "target_language"  # as options are named in Python


@dataclass(frozen=True)
class Family:
    """A family of models: its configuration record, its named sizes, and the function that builds a
    model."""

    config: type
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[[Any], Any]


@dataclass(frozen=True)
class NoOptions:
    """A recipe section without keys, or a call without options."""


@dataclass(frozen=True)
class PredictConfig(Checked):
    """The `decoding` section of a model that predicts without a search.

    Attributes:
        batch_tokens: the most tokens in a batch.
    """

    batch_tokens: AtLeastOne = 4096


def with_options(config: Section, options: Mapping[str, Any]) -> Section:
    """A model's decoding section, overridden by the options of a call.

    Raises:
        TransductError: an option is unknown or has a wrong value.
    """
    return (
        record(type(config), {**vars(config), **options}, "decoding", OPTIONS)
        if options
        else config
    )


def data_with_test(
    kind: type, recipe: Recipe | None, give: str = "--source and --reference"
) -> Any:
    """The recipe's `data` section, of record type `kind`, which must name a test set.

    Args:
        give: the options to give instead, for the error.

    Raises:
        TransductError: there is no recipe, or it names no test set.
    """
    data: Any = None if recipe is None else record(kind, recipe.data, "data")
    if data is None or data.test is None:
        raise TransductError(f"the model's recipe names no test set; give {give}")
    return data


def policy_of(refused: Refused | None, own: Policy = "stop") -> Policy:
    """What to do with a broken item of a test set: skip it if `refused` does, else what its recipe
    says."""
    return "skip" if refused is not None and refused.policy == "skip" else own


def are_given(files: Mapping[str, str], *names: str) -> bool:
    """Whether a model is to be evaluated on `files`, which must then be those of `names`, or on its
    recipe's test set.

    Raises:
        TransductError: some but not all of the files are given, or others.
    """
    if files and files.keys() != {*names}:
        both = "--source and --reference belong together; give both"
        raise TransductError(
            both if "reference" in names else "plain text has no reference; give --source alone"
        )
    return bool(files)


def tell_unknown(texts: Iterable[str], unknown: Callable[[str], list[str]]) -> None:
    """Count what a model cannot read of texts, by its own `unknown`, and say it in a line of the
    run."""
    if any(lost := [*map(unknown, texts)]):
        met(lost)


def check_inputs(given: Any, what: str = "text") -> None:
    """Check that a call's inputs are a list, and if they are texts, that each is a valid string.

    Raises:
        TransductError: a single input was given instead of a list (a text would be read letter by
            letter), the texts come from an iterator, or one is not a text, or too long a one.
    """
    if isinstance(given, str | bytes | Path) or not isinstance(given, Iterable):
        shown = given[:40] if isinstance(given, str | bytes) else given
        raise TransductError(f"found one {what}, expected a list of {what}s: write [{shown!r}]")
    if what != "text":
        return
    if not isinstance(given, Sized):  # texts are read more than once
        raise TransductError(f"found a {type(given).__name__}, expected a list of texts")
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise TransductError(f"found {type(text).__name__}, expected a text", input=number)
        if len(text) > LONGEST_LINE:
            raise TransductError(
                f"{len(text):,} characters, at most {LONGEST_LINE:,} are taken; give it in parts",
                input=number,
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TransductError(
                "contains an unpaired surrogate; remove it", input=number
            ) from error


def check_examples(given: Any) -> None:
    """Check that examples are two lists: the inputs, and an answer to each.

    Raises:
        TransductError: they are not two lists, or these differ in length.
    """
    sides = given if isinstance(given, tuple | list) else []
    if len(sides) != 2 or not all(
        isinstance(side, Sized) and not isinstance(side, str) for side in sides
    ):
        raise TransductError(f"found {given!r:.60}, expected two lists: inputs and their answers")
    if len(sides[0]) != len(sides[1]):
        raise TransductError(
            f"found {len(sides[0])} inputs and {len(sides[1])} answers; give as many of each"
        )


def check_references(references: Sequence[Any]) -> None:
    """Check that each input has references, a list of texts.

    Raises:
        TransductError: one has something else, or none.
    """
    for texts in references:
        if (
            not isinstance(texts, list | tuple)
            or not texts
            or not all(isinstance(text, str) for text in texts)
        ):
            odd = f"references: found {texts!r:.60} where a list of texts is expected"
            raise TransductError(f"{odd}; give the texts that each may be")


def check_nothing_given(given: object, options: Mapping[str, Any]) -> None:
    """Check that search options are not combined with a given output, for which nothing is
    searched.

    Raises:
        TransductError: both are given.
    """
    if given is not None and options:
        raise TransductError(
            f"found an output and options of a search for it ({', '.join(options)}); leave one out"
        )


def for_draws(config: Decoding, options: Mapping[str, Any]) -> Decoding:
    """Like `with_options`, for outputs that may be sampled.

    Raises:
        TransductError: a sampling option is given, but the temperature is 0.
    """
    decoding = with_options(config, options)
    if idle := [
        name for name in ("top_k", "top_p", "seed") if name in options and not decoding.temperature
    ]:
        raise TransductError(f"{OPTIONS}: {idle[0]} needs sampling; set temperature above 0")
    return decoding


def asked_for(config: Decoding, options: Mapping[str, Any], count: int = 1) -> Decoding:
    """Like `for_draws`, with a beam wide enough for `count` outputs, unless the options set one.

    Exactly `count` samples are drawn: the most likely of more would not be a fair sample.
    """
    decoding = for_draws(config, options)
    beam = count if decoding.temperature > 0.0 else max(decoding.beam, count)
    if "beam" in options or beam == decoding.beam:
        return decoding
    return with_options(decoding, {"beam": beam})


@contextmanager
def of_input(number: int) -> Iterator[None]:
    """Within this, an input is read: an error that names no file is about the input of this number,
    from 0."""
    try:
        yield
    except MissingExtra:
        raise
    except TransductError as error:
        if error.file is not None:
            raise
        raise error.at(input=number) from error


def growing(items: Iterable[Item], most: int, size: int = 1) -> Iterator[list[Item]]:
    """Items in groups to be answered together: `size`, so that their answers are soon there, then
    twice as many each time, up to `most`."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group
        size = min(2 * size, most)


def apart(
    work: Callable[[list[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    owners: Sequence[Hashable] | None = None,
    caught: type[BaseException] = TransductError,
) -> list[Any]:
    """The output of each input, worked on together, or the error that concerns it alone.

    An error that names an input is of that one, and the others are worked on without it. Any other
    error concerns one owner's inputs; bisection finds whose.

    Args:
        owners: of each input; by default each has its own.
        caught: the errors that are answers; others are raised.

    Raises:
        RuntimeError: `work` gives more or fewer outputs than it is given inputs.
    """
    owners = range(len(inputs)) if owners is None else owners
    found: list[Any] = [None] * len(inputs)
    waiting = [list(range(len(inputs)))]
    while waiting:
        numbers = waiting.pop()
        if not numbers:
            continue
        try:
            with counted_if_done():
                outputs = work([inputs[number] for number in numbers])
            if len(outputs) != len(numbers):
                raise RuntimeError(f"found {len(outputs)} outputs for {len(numbers)} inputs")
            for number, output in zip(numbers, outputs, strict=True):
                found[number] = output
            continue
        except caught as error:
            problem = error
        place = problem.input if isinstance(problem, TransductError) else None
        here = list(dict.fromkeys(owners[number] for number in numbers))
        if isinstance(problem, TransductError) and place is not None and place < len(numbers):
            number = numbers.pop(place)
            found[number] = problem.at(input=number)
            waiting.append(numbers)
        elif len(here) > 1:
            first = {*here[: len(here) // 2]}
            waiting += [
                [number for number in numbers if (owners[number] in first) == left]
                for left in (False, True)
            ]
        else:
            for number in numbers:
                found[number] = problem
    return found


@dataclass(frozen=True)
class Frame:
    """The tokens around a source, and those with which its output begins, by no choice of the
    model.

    Attributes:
        padding, padded: a token that fills a source up to so many tokens, for models that were
            trained to look at it.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    padding: int = 0
    padded: int = 0

    @property
    def room(self) -> int:
        """How many tokens of either side it takes."""
        return max(len(self.before) + len(self.after), len(self.begin))

    def source(self, ids: Sequence[int]) -> list[int]:
        """The tokens that the encoder reads for a source of these."""
        row = [*self.before, *ids, Tokenizer.END, *self.after]
        return row + [self.padding] * (self.padded - len(row))

    @property
    def first(self) -> list[int]:
        """What the decoder reads before the first token that it chooses."""
        return [Tokenizer.BEGIN, *self.begin]


@dataclass(frozen=True)
class Languages:
    """How a model is told its languages, and what else stands around every text.

    In the templates, {from} and {to} stand for the model's codes of the two languages.

    Attributes:
        codes: the model's own codes of its languages.
        text: put before a source, as text.
        before, after, begin: names of tokens before a source, after its end, and with which an
            output begins.
        padding, padded: see `Frame`; the former by its name.
    """

    codes: list[str] = field(default_factory=list)
    text: str = ""
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    begin: list[str] = field(default_factory=list)
    padding: str = ""
    padded: int = 0

    def frame(self, source: str, target: str, tokenizers: Sequence[Tokenizer]) -> Frame:
        """The frame for a pair of languages, given by any code or name; "" for none.

        Raises:
            TransductError: one is unknown, or is needed and not given.
        """
        from transduct.data.languages import find, listed  # few models need a list of languages

        known = {
            name: find(given, self.codes) if given else ""
            for name, given in (("from", source), ("to", target))
        }
        needed = " ".join([*self.before, *self.after, *self.begin])
        for name, option in (("from", FROM), ("to", TO)):
            if f"{{{name}}}" in needed and not known[name]:
                raise TransductError(
                    f"this model needs the language to translate {name}: give --{name}, or "
                    f"{option}; it has {listed(self.codes)}"
                )
        tokens = [
            _ids(templates, known, tokenizer)
            for templates, tokenizer in (
                (self.before, tokenizers[0]),
                (self.after, tokenizers[0]),
                (self.begin, tokenizers[-1]),
            )
        ]
        text = self.text if all(known[n] or f"{{{n}}}" not in self.text for n in known) else ""
        told = tokenizers[0].encode([text.format_map(known)])[0] if text else []
        fill = _ids([self.padding], known, tokenizers[0]) if self.padding else (0,)
        before, after, begin = tokens
        return Frame((*told, *before), after, begin, fill[0], self.padded)

    def shown(self) -> list[str]:
        """The languages for `describe`: code and name."""
        from transduct.data.languages import named

        return [f"{code} {named(code)}".rstrip() for code in self.codes]


def _ids(templates: Sequence[str], known: dict[str, str], tokenizer: Tokenizer) -> tuple[int, ...]:
    names = [template.format_map(known) for template in templates]
    found = [tokenizer.id_of(name) for name in names]
    for name, number in zip(names, found, strict=True):
        if number is None:
            raise TransductError(
                f"the tokenizer has no token '{name:.40}'; copy the model again, or convert it anew"
            )
    return tuple(number for number in found if number is not None)


def frame_of(languages: Languages | None, decoding: Any, tokenizers: Sequence[Tokenizer]) -> Frame:
    """The frame that a decoding section asks for.

    Raises:
        TransductError: as `Languages.frame`, or a language is given and the model has none.
    """
    given = [name for name in (FROM, TO) if vars(decoding)[name]]
    if languages is None or (given and not languages.codes):
        if given:
            raise TransductError(
                f"this model has one pair of languages, and {given[0]} is "
                f"'{vars(decoding)[given[0]]:.40}'; leave it out"
            )
        if languages is None:
            return Frame()
    return languages.frame(vars(decoding)[FROM], vars(decoding)[TO], tokenizers)
