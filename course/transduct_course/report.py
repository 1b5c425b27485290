"""What `transduct learn` prints: claims, tables and verdicts, in English and Korean."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap

from transduct.drawing.models import aligned
from transduct.drawing.svg import text_columns
from transduct_course.experiment import Experiment, Result, table

WIDTH, NARROWEST = 100, 10  # columns of a table in a terminal, and of a head that is not wrapped


def listed(experiments: Sequence[Experiment]) -> Iterator[str]:
    """A line for each experiment: its name and claim."""
    width = max(len(each.name) for each in experiments)
    for each in experiments:
        lines = [line for text in each.claim for line in wrapped(text, width + 2)]
        for name, line in zip_longest([each.name], lines, fillvalue=""):
            yield f"{name:{width}}  {line}"


def introduced(experiment: Experiment) -> Iterator[str]:
    """What is claimed and what is measured, in both languages."""
    name = f"{experiment.name}: {experiment.claim.english}"
    for text in (name, experiment.claim.korean, *experiment.about):
        yield from wrapped(text)


def told(result: Result, paths: Sequence[Path] = ()) -> Iterator[str]:
    """The table, the verdicts in both languages, and where picture and numbers are."""
    name = result.experiment.name
    if result.lacks:
        yield f"{name}: not run: needs {result.lacks}"
        return
    if result.rows:
        yield from fitted(table(result.experiment, result.rows), len(result.experiment.keys))
    for verdict in result.verdicts:
        yield from wrapped(": ".join((name, *verdict.told("english"))))
        yield from wrapped(": ".join((name, *verdict.told("korean"))))
    if paths:
        yield f"{name}: {', '.join(map(str, paths))}"


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Lines of a text that fit beside an indent; Hangul is two columns wide."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_columns(longer) > WIDTH - indent:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def fitted(lines: Sequence[Sequence[str]], keys: int) -> Iterator[str]:
    """A table of at most WIDTH columns. Heads take several lines; values that do not fit beside the
    keys follow below, beside the keys again."""
    columns = [*zip(*lines, strict=True)]
    heads = [
        wrap(head, max(NARROWEST, *map(len, cells)), break_long_words=False)
        for head, *cells in columns
    ]
    tall = max(map(len, heads))
    columns = [
        (*[""] * (tall - len(head)), *head, *cells)
        for head, (_, *cells) in zip(heads, columns, strict=True)
    ]
    chosen = columns[:keys]
    for column in columns[keys:]:
        widths = (max(map(len, each)) + 2 for each in (*chosen, column))
        if len(chosen) > keys and sum(widths) - 2 > WIDTH:
            yield from aligned([*zip(*chosen, strict=True)])
            yield ""
            chosen = columns[:keys]
        chosen.append(column)
    yield from aligned([*zip(*chosen, strict=True)])
