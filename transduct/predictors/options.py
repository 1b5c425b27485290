"""What a call gives: options, laid over a model's own, and inputs. What is wrong is refused by its
name."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from transduct.config import Recipe
from transduct.data.files import Policy, Refused
from transduct.data.lines import LONGEST_LINE
from transduct.errors import TransductError, count_unknown, require, rewording
from transduct.inference.settings import DecodingConfig
from transduct.records import AtLeastOne, Checked, record

Decoding = TypeVar("Decoding", bound=DecodingConfig)
Section = TypeVar("Section")
OPTIONS = "options"  # how errors name the options of a call


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
    named = data is not None and data.test is not None
    require(named, f"the model's recipe names no test set; give {give}")
    return data


def policy_of(refused: Refused | None, in_recipe: Policy = "stop") -> Policy:
    """What to do with a broken item of a test set: skip it if `refused` does, else what its recipe
    says."""
    return "skip" if refused is not None and refused.policy == "skip" else in_recipe


def are_given(files: Mapping[str, str], *names: str) -> bool:
    """Whether a model is to be evaluated on `files`, which must then be those of `names`, or on its
    recipe's test set.

    Raises:
        TransductError: some but not all of the files are given, or others.
    """
    both = "--source and --reference belong together; give both"
    alone = "plain text has no reference; give --source alone"
    require(not files or files.keys() == {*names}, both if "reference" in names else alone)
    return bool(files)


def tell_unknown(texts: Iterable[str], unknown: Callable[[str], list[str]]) -> None:
    """Count what a model cannot read of texts, by its own `unknown`, and say it in a line of the
    run."""
    if any(lost := [*map(unknown, texts)]):
        count_unknown(lost)


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
    # texts are read more than once
    require(isinstance(given, Sized), f"found a {type(given).__name__}, expected a list of texts")
    for number, text in enumerate(given):
        found = f"found {type(text).__name__}, expected a text"
        require(isinstance(text, str), found, input=number)
        require(
            len(text) <= LONGEST_LINE,
            f"{len(text):,} characters, at most {LONGEST_LINE:,} are taken; give it in parts",
            input=number,
        )
        with rewording(
            UnicodeEncodeError, "contains an unpaired surrogate; remove it", input=number
        ):
            text.encode()


def check_lengths(inputs: Iterable[Sequence[int]], longest: int, unit: str = "input") -> None:
    """Check that no input has more tokens than a model takes.

    Raises:
        TransductError: one has.
    """
    for number, ids in enumerate(inputs):
        require(
            len(ids) <= longest,
            f"{len(ids)} tokens, the model takes {longest}; shorten it",
            input=number,
            unit=unit,
        )


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
    require(
        len(sides[0]) == len(sides[1]),
        f"found {len(sides[0])} inputs and {len(sides[1])} answers; give as many of each",
    )


def check_references(references: Sequence[Any]) -> None:
    """Check that each input has references, a list of texts.

    Raises:
        TransductError: one has something else, or none.
    """
    for texts in references:
        known = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        if not texts or not known:
            odd = f"references: found {texts!r:.60} where a list of texts is expected"
            raise TransductError(f"{odd}; give the texts that each may be")


def check_nothing_given(given: object, options: Mapping[str, Any]) -> None:
    """Check that search options are not combined with a given output, for which nothing is
    searched.

    Raises:
        TransductError: both are given.
    """
    require(
        given is None or not options,
        f"found an output and options of a search for it ({', '.join(options)}); leave one out",
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
    if all(isinstance(value, bool | int | float | str) for value in options.values()):
        # Kept, because a server is asked for the same again and again, and the checks take longer
        # than the search of a short sentence. The types, because 1 and True are equal.
        kept = tuple((name, value, type(value)) for name, value in options.items())
        return _kept(config, kept, count)
    return _asked_for(config, options, count)


@lru_cache(maxsize=256)
def _kept(config: Any, options: tuple[tuple[str, Any, type], ...], count: int) -> Any:
    return _asked_for(config, {name: value for name, value, _ in options}, count)


def _asked_for(config: Decoding, options: Mapping[str, Any], count: int) -> Decoding:
    decoding = for_draws(config, options)
    beam = count if decoding.temperature > 0.0 else max(decoding.beam, count)
    if "beam" in options or beam == decoding.beam:
        return decoding
    return with_options(decoding, {"beam": beam})
