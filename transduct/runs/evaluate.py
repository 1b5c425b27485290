"""Score a model on files, or a run on its own test set."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from transduct.config import Recipe, load_recipe, stages_of
from transduct.errors import TransductError
from transduct.predictors.base import (
    Report,
    configuration,
    from_home,
    load,
    model_directory,
    naming_files,
    predictor_class,
    task_of,
)
from transduct.storage import RECIPE


def evaluate(
    path: str | Path,
    files: Mapping[str, str | Path | Sequence[str | Path]] | None = None,
    against: str | Path | None = None,
    device: str | torch.device | None = "auto",
    precision: str = "float32",
    **options: Any,
) -> Report:
    """Score a model on the files given, or on the test set of the run it belongs to.

    Args:
        files: the files to read, by the task's names for them: `source` and `reference` for
            translation, which takes a list of references too, each with one line per source.
        against: another model, for a paired significance test.
        options: how outputs are made: fields of the task's decoding record.
    """
    kinds = [task_of(each) for each in (path, against) if each is not None]
    if len({*kinds}) > 1:
        raise TransductError(
            f"{against}: a model of {kinds[1]}, and {path} is one of {kinds[0]}; compare equals"
        )
    model, other = (
        load(path, device, precision),
        None if against is None else load(against, device, precision),
    )
    given = _paths(files)
    data = _test_set(path, given)
    names = [
        name for names in given.values() for name in (names if isinstance(names, list) else [names])
    ]
    with naming_files(names or ["data.test"]):
        return model.evaluate(data, other, **options)


def scores(
    path: str | Path,
    files: Mapping[str, str | Path],
    device: str | torch.device | None = "auto",
    precision: str = "float32",
) -> Iterator[float]:
    """Forced decoding: yields the log-probability of the first reference of each source."""
    model = load(path, device, precision, verb="score")
    sources, references = _test_set(path, _paths(files))
    try:
        yield from model.scores(sources, [texts[0] for texts in references])
    except TransductError as error:
        raise TransductError(
            f"{' and '.join(map(str, files.values())) or 'data.test'}: {error}"
        ) from error


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


def _test_set(path: str | Path, files: Mapping[str, str | list[str]]) -> Any:
    """The examples in `files`, read as the model's task reads them; without files, the test set of
    the model's run."""
    predictor = predictor_class(path)
    if not files:
        return predictor.test_set({}, _recipe_of(path))
    for name, given in files.items():
        if isinstance(given, list) and name not in predictor.several:
            raise TransductError(
                f"found {len(given)} files for {name}; a model of {task_of(path)} takes one"
            )
    config = configuration(model_directory(path))
    return predictor.test_set(
        files, None, **{key: config[key] for key in predictor.rules if key in config}
    )


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
