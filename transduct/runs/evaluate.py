"""Score a model on files, or a run on its own test set."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transduct.config import Recipe, load_recipe, stages_of
from transduct.data.files import Refused
from transduct.data.sources import listed
from transduct.data.suspicions import same_text
from transduct.errors import TransductError, require
from transduct.predictors.base import (
    Predictor,
    Report,
    configuration,
    from_home,
    load,
    model_directory,
    naming_files,
    predictor_class,
    task_of,
)
from transduct.predictors.isolation import growing, isolate_failures
from transduct.storage import RECIPE

log = logging.getLogger("transduct")
LEAST, MOST = 64, 1024  # pairs that are scored together, at first and later


def evaluate(
    path: str | Path,
    files: Mapping[str, str | Path | Sequence[str | Path]] | None = None,
    against: str | Path | None = None,
    device: str | torch.device | None = "auto",
    precision: str = "float32",
    skip_errors: bool = False,
    **options: Any,
) -> Report:
    """Score a model on the files given, or on the test set of the run it belongs to.

    Args:
        files: the files to read, by the task's names for them: `source` and `reference` for
            translation, which takes a list of references too, each with one line per source.
        against: another model, for a paired significance test.
        skip_errors: whether to leave out what is broken in the test set, which else stops; the
            report then says how much is.
        options: how outputs are made: fields of the task's decoding record.
    """
    other = None
    if against is not None:
        kinds = task_of(path), task_of(against)
        require(
            kinds[0] == kinds[1],
            f"{against}: a model of {kinds[1]}, and {path} is one of {kinds[0]}; compare models of "
            "the same task",
        )
        other = load(against, device, precision)
    model = load(path, device, precision)
    given = _paths(files)
    _warn_of_copies(given)
    refused = Refused("skip") if skip_errors else None
    names = [
        name for names in given.values() for name in (names if isinstance(names, list) else [names])
    ]
    with naming_files(names or ["data.test"]), _advising():
        data = _test_set(path, given, refused)
        data = model.measurable(data, refused or Refused("stop", advise=False))
        report = model.evaluate(data, other, **options)
    if refused is None:
        return report
    refused.report(log.warning)
    # what is broken in pictures and sounds shows as they are read, and is counted there
    return replace(report, details={"left_out": refused.dropped, **report.details})


@contextmanager
def _advising() -> Iterator[None]:
    """Says, where one item is broken, how to go on without it."""
    try:
        yield
    except TransductError as error:
        if not error.skippable:
            raise
        raise error.adding("; or leave such out with --skip-errors") from error


def scores(
    path: str | Path,
    files: Mapping[str, str | Path],
    device: str | torch.device | None = "auto",
    precision: str = "float32",
    **languages: Any,
) -> Iterator[float | TransductError]:
    """Forced decoding: yields the log-probability of the first reference of each source, or what is
    wrong with this pair alone, as soon as it is known.

    Args:
        languages: `source_language` and `target_language`, for models of many.
    """
    model, given = load(path, device, precision, verb="score"), _paths(files)
    if given:
        _warn_of_copies(given)
        pairs = model.pairs(given, **_rules(path, model))
    else:
        sources, references = _test_set(path, {})
        pairs = [(one, others[0]) for one, others in zip(sources, references, strict=True)]
    number = 0
    for some in growing(pairs, MOST, LEAST):
        right = [pair for pair in some if not isinstance(pair, TransductError)]
        found = iter(
            isolate_failures(lambda these: model.score(*map(list, zip(*these)), **languages), right)
        )
        for pair in some:
            value = pair if isinstance(pair, TransductError) else next(found)
            yield value.at(input=number) if isinstance(value, TransductError) else value
            number += 1


def _warn_of_copies(files: Mapping[str, str | list[str]]) -> None:
    """Warn if a reference is the source itself."""
    if isinstance(source := files.get("source"), str):
        for name in listed(files.get("reference") or []):
            if same_text(Path(source), Path(name)):
                log.warning("%s and %s hold the same text; is another meant?", source, name)


def _rules(path: str | Path, model: Predictor | type[Predictor]) -> dict[str, Any]:
    """The settings of a model that change files as they are read."""
    config = configuration(model_directory(path))
    return {key: config[key] for key in model.rules if key in config}


def _paths(files: Mapping[str, Any] | None) -> dict[str, str | list[str]]:
    """The files to read by name, one or a list of several each, with ~ expanded.

    Raises:
        TransductError: they are not of this form.
    """
    try:
        given = {
            name: [*names] if isinstance(names, tuple) else names
            for name, names in (files or {}).items()
        }
        if None not in given.values():
            return {name: from_home(names) for name, names in given.items()}
    except (AttributeError, TypeError):
        pass
    raise TransductError(
        f"files: found {files!r:.60}, expected paths by name, such as {{'source': 'test.de'}}"
    )


def _test_set(
    path: str | Path, files: Mapping[str, str | list[str]], refused: Refused | None = None
) -> Any:
    """The examples in `files`, read as the model's task reads them; without files, the test set of
    the model's run."""
    predictor = predictor_class(path)
    skipping = {} if refused is None else {"refused": refused}
    if not files:
        return predictor.test_set({}, _recipe_of(path), **skipping)
    for name, given in files.items():
        require(
            isinstance(given, str) or name in predictor.several,
            f"found {len(given)} files for {name}; a model of {task_of(path)} takes one",
        )
    return predictor.test_set(files, None, **skipping, **_rules(path, predictor))


def _recipe_of(model: str | Path) -> Recipe | None:
    """The recipe of the run that a run or model directory belongs to (its last stage), or None
    without that run."""
    directory = model_directory(model).resolve()
    recipe = directory.parent / RECIPE
    return (
        stages_of(load_recipe(recipe))[-1]
        if directory.name == "model" and recipe.exists()
        else None
    )
