"""The tables of docs/recipes.md, read from the records of a recipe; `python -m
tests.docs.reference` writes them.

What a key means is its entry under "Attributes" in the docstring of its record, or else in
`COMMON`. Its first sentence stands in the table, the others below it.
"""

import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from transduct.config import PROFILES, Recipe
from transduct.predictors import base as predictors_base
from transduct.tasks.base import task_class
from transduct.tasks.sections import _Section

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
START = "\n## Every key\n"  # what follows on the page is written here
TASKS = sorted(predictors_base.TASKS, key=lambda name: (name != "translation", name))
WIDTH = 115  # of a line of prose
SECTIONS = ("data", "tokenizer", "training", "decoding")  # and `model`, which has families
WORDS = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}
COMMON = {  # what means the same in many records
    "train": "the corpora to train on",
    "valid": "the corpus to validate on",
    "test": "the corpus that `evaluate` scores where it is given no files",
    "root": "the folder that the paths of files are relative to",
    "workers": "processes that make batches ahead of time; 0 makes them in the training process",
    "d_model": "D, the width of the model",
    "num_heads": "H, the number of heads of each attention",
    "d_ff": "F, the width inside a feed-forward layer",
    "layers": "the number of layers",
    "encoder_layers": "the number of encoder layers",
    "decoder_layers": "the number of decoder layers",
    "dropout": "the dropout rate in training",
    "norm": "whether a layer normalises its input (pre) or its residual sum (post)",
    "norm_kind": "LayerNorm or RMSNorm",
    "activation": "the activation of the feed-forward layers",
    "positions": (
        "how positions are encoded: a vector scheme, or rotary, alibi or relative inside attention"
    ),
    "vocabulary_size": "V, the number of tokens",
    "source_size": "the number of source tokens",
    "target_size": "the number of target tokens",
}
MANY = 3  # tasks that a heading names
SENTENCE = re.compile(r"(?<! al)\. (?=[A-Z0-9\"`(])")  # where one ends and another begins
HEAD = "| key | type | default | meaning |\n| --- | --- | --- | --- |"


def page() -> str:
    """The page as it should be: its beginning, written by hand, and every table."""
    introduction, _, _ = PAGE.read_text(encoding="utf-8").partition(START)
    return (
        f"{introduction}{START}\n"
        + "\n\n".join(["### The recipe itself", recipe(), *sections(), *models()])
        + "\n"
    )


def recipe() -> str:
    """The keys at the top."""
    meaning = "named overrides of everything else here; `--profile NAME` applies one of them"
    rows, _, below = table(Recipe).partition("\n\n")
    last = row(PROFILES, "mapping of names to sections", "`{}`", meaning)
    return f"{rows}\n{last}\n\n{below}"


def sections() -> Iterator[str]:
    """Every section but `model`: a table for each record that a task makes of it, and for the
    records inside."""
    shown: set[type] = set()
    for section in SECTIONS:
        yield f"### `{section}`"
        by_record = {cls: tasks for cls, tasks in users(section).items() if fields(cls)}
        yield without(section, by_record)
        for cls, tasks in by_record.items():
            parent = next((each for each in cls.__mro__[1:] if each in by_record), None)
            yield f"#### {heading(section, tasks)}"
            if len(tasks) > MANY and tasks != TASKS:
                yield filled(f"These are {', '.join(tasks)}.")
            yield (
                f"As [above](#{anchor(heading(section, by_record[parent]))}), and:"
                if parent
                else summary(cls)
            )
            yield table(cls, own=parent is not None)
            for inner in records_inside(cls):
                if inner not in shown:
                    shown.add(inner)
                    yield from (f"#### {title(inner)}", summary(inner), table(inner))


def without(section: str, by_record: dict[type, list[str]]) -> str:
    """Which tasks have nothing in a section."""
    have = {task for tasks in by_record.values() for task in tasks}
    rest = [task for task in TASKS if task not in have]
    return filled(f"These tasks have none: {', '.join(rest)}." if rest else "Each task has one.")


def models() -> Iterator[str]:
    """The section `model`: the keys of all families, which families a task has, and the sizes and
    keys of each."""
    yield from ("### `model`", summary(_Section), table(_Section))
    known = {task: task_class(task).families for task in TASKS}
    rows = [f"| {task} | {', '.join(f'`{name}`' for name in known[task])} |" for task in TASKS]
    yield "\n".join(["| task | families, the first where none is named |", "| --- | --- |", *rows])
    yield (
        "A key that the named size leaves out has its own default. So has every key without a size."
    )
    for name, family in {
        name: family for task in TASKS for name, family in known[task].items()
    }.items():
        tasks = [task for task in TASKS if name in known[task]]
        derived: dict[str, list[str]] = {}
        for task in tasks:
            for key, source in task_class(task).derived.items():
                derived[key] = sorted({*derived.get(key, []), source})
        yield from (f"#### family `{name}`", summary(family.config), sizes(family.sizes))
        said = (
            f"`{key}` ({', '.join(f'`{source}`' for source in by)})" for key, by in derived.items()
        )
        yield filled(f"Set elsewhere: {', '.join(said)}.")
        yield table(family.config, without=derived)


def sizes(named: Mapping[str, Mapping[str, Any]]) -> str:
    """What each named size says."""
    keys = list({key: None for values in named.values() for key in values})
    rows = [
        [f"`{name}`", *(value(v[k]) if k in v else "" for k in keys)] for name, v in named.items()
    ]
    head = [["size", *(f"`{key}`" for key in keys)], ["---"] * (len(keys) + 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in head + rows)


def table(cls: type, own: bool = False, without: Collection[str] = ()) -> str:
    """The keys of a record without some, or those that it adds to the record it extends, and below
    them what needs more than a sentence."""
    hints, meanings = get_type_hints(cls, include_extras=True), meanings_of(cls)
    rows, below = [HEAD], []
    for each in sorted(fields(cls), key=lambda each: each.kw_only):  # what all share comes last
        if each.name not in without and (not own or each.name in cls.__annotations__):
            kinds = choices(TASKS) if each is fields(Recipe)[0] else kind(hints[each.name])
            meaning, *more = SENTENCE.split(meanings[each.name], maxsplit=1)
            rows.append(row(each.name, kinds, default(each), meaning))
            below += [filled(f"* `{each.name}`: {text}.", indent="  ") for text in more]
    return "\n".join(rows) + ("\n\n" + "\n".join(below) if below else "")


def filled(text: str, indent: str = "") -> str:
    """Prose in lines."""
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def row(*cells: str) -> str:
    """One key."""
    first, *rest = (cell.replace("|", "\\|") for cell in cells)
    return f"| `{first}` | {' | '.join(rest)} |"


def users(section: str) -> dict[type, list[str]]:
    """Each record that a task makes of a section, after those it extends, and the tasks that do so
    or extend it."""
    made = {task: records[section] for task in TASKS if section in (records := records_of(task))}
    kinds = sorted(dict.fromkeys(made.values()), key=lambda cls: len(cls.__mro__))
    return {cls: [task for task, each in made.items() if issubclass(each, cls)] for cls in kinds}


def records_of(task: str) -> dict[str, type]:
    """The record that a task makes of each section it has."""
    return {name: kind for name, kind in vars(task_class(task).sections).items() if fields(kind)}


def records_inside(cls: type) -> Iterator[type]:
    """The records that a record's keys hold, and those inside them."""
    for hint in get_type_hints(cls).values():
        for part in parts(hint):
            if is_dataclass(part):
                yield part  # type: ignore[misc]
                yield from records_inside(part)  # type: ignore[arg-type]


def parts(hint: Any) -> Iterator[Any]:
    """A type, or what a union or a list is of."""
    if get_origin(hint) in (Union, UnionType, list):
        for part in get_args(hint):
            yield from parts(part)
    else:
        yield hint


def kind(hint: Any) -> str:
    """A type as one writes it in a recipe, and its range."""
    if get_origin(hint) is Annotated:
        return f"{kind(get_args(hint)[0])}, {hint.__metadata__[0]}"
    if get_origin(hint) in (Union, UnionType):
        options = [part for part in get_args(hint) if part is not type(None)]
        if all(get_origin(option) is Literal for option in options):
            return choices([word for option in options for word in get_args(option)])
        return " or ".join(map(kind, options))
    if get_origin(hint) is Literal:
        return choices(get_args(hint))
    if get_origin(hint) is list:
        of, comma, allowed = kind(get_args(hint)[0]).partition(", ")
        plural = "s" if of in ("whole number", "number", "text", "mapping") else ""
        return f"list of {of}{plural}{', each ' if comma else ''}{allowed}"
    if get_origin(hint) is dict:
        return "mapping"
    return (
        f"[{title(hint).lower()}](#{title(hint).lower().replace(' ', '-')})"
        if is_dataclass(hint)
        else WORDS[hint]
    )


def choices(words: Any) -> str:
    """The values that a key may have."""
    return ", ".join(f"`{word}`" for word in words)


def default(field: Field[Any]) -> str:
    """What holds where a recipe says nothing."""
    if field.default is MISSING and field.default_factory is MISSING:
        return "must be given"
    found = field.default if field.default is not MISSING else field.default_factory()
    if is_dataclass(found):
        return "its defaults"
    return "not given" if found is None else value(found)


def value(found: Any) -> str:
    """A value as a recipe has it."""
    if isinstance(found, list):
        return f"`[{', '.join(map(str, found))}]`"
    return (
        f"`{str(found).lower()}`"
        if isinstance(found, bool)
        else f"`{found}`"
        if found != ""
        else '`""`'
    )


def title(cls: type) -> str:
    """`TextSource` -> "Text source"."""
    return re.sub(r"(?<!^)([A-Z])", r" \1", cls.__name__).capitalize()


def heading(section: str, tasks: list[str]) -> str:
    """The heading of a section of some tasks."""
    if tasks == TASKS:
        return f"`{section}` of every task"
    return f"`{section}` of {', '.join(tasks) if len(tasks) <= MANY else f'{len(tasks)} tasks'}"


def anchor(heading: str) -> str:
    """The link to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def summary(cls: type) -> str:
    """A record's docstring before its keys, in lines."""
    text = inspect.getdoc(cls).partition("Attributes:")[0]  # type: ignore[union-attr]
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    return "\n\n".join(map(filled, paragraphs))


def meanings_of(cls: type) -> dict[str, str]:
    """What the docstrings of a record, and of those it extends, say of each key.

    Raises:
        KeyError: a key has no entry.
    """
    said = dict(COMMON)
    for each in reversed(cls.__mro__[:-1]):
        entries = (each.__doc__ or "").partition("Attributes:")[2]
        for names, meaning in re.findall(
            r"^ {8}(\w[\w, ]*): (.*(?:\n {9,}.*)*)", entries, re.MULTILINE
        ):
            said |= dict.fromkeys(names.split(", "), " ".join(meaning.split()).rstrip("."))
    if missing := [each.name for each in fields(cls) if each.name not in said]:
        raise KeyError(
            f"{cls.__module__}.{cls.__name__}: no entry under Attributes for {', '.join(missing)}"
        )
    return said


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
