"""What `transduct learn` prints: claims, tables and verdicts, in English and Korean."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from transduct.drawing.models import aligned
from transduct_course.experiment import Experiment, Result, table


def listed(experiments: Sequence[Experiment]) -> Iterator[str]:
    """A line for each experiment: its name and claim."""
    width = max(len(each.name) for each in experiments)
    for each in experiments:
        yield f"{each.name:{width}}  {each.claim.english}"
        yield f"{'':{width}}  {each.claim.korean}"


def introduced(experiment: Experiment) -> Iterator[str]:
    """What is claimed and what is measured, in both languages."""
    yield f"{experiment.name}: {experiment.claim.english}"
    yield experiment.claim.korean
    yield experiment.about.english
    yield experiment.about.korean


def told(result: Result, paths: Sequence[Path] = ()) -> Iterator[str]:
    """The table, the verdicts in both languages, and where picture and numbers are."""
    name = result.experiment.name
    if result.lacks:
        yield f"{name}: not run: needs {result.lacks}"
        return
    if result.rows:
        yield from aligned(table(result.experiment, result.rows))
    for verdict in result.verdicts:
        yield ": ".join((name, *verdict.told("english")))
        yield ": ".join((name, *verdict.told("korean")))
    if paths:
        yield f"{name}: {', '.join(map(str, paths))}"
