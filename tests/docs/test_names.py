"""Names in back ticks exist: in the docstrings of the package, and in docs/adding_a_task.md."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from transduct.config import Recipe

ROOT = Path(__file__).parents[2]
FOLDERS = ("transduct", "transduct_bench", "transduct_corpora", "course/transduct_course")
TESTS = [
    ast.parse(path.read_text(encoding="utf-8"))
    for path in (ROOT / "tests").rglob("*.py")
    if path != Path(__file__)
]
SOURCES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
MODULES = {path.relative_to(ROOT).with_suffix("").parts: tree for path, tree in SOURCES.items()}
PLACES = {parts[:length] for parts in MODULES for length in range(1, len(parts) + 1)}
# What stands before a dot and is no module there: sections of a recipe, an object's usual name.
HOLDERS = {field.name for field in fields(Recipe)} | {"config", "report", "transduct"}
NAME = re.compile(r"`([A-Za-z_][\w./]*)(?:\([^`]*\))?`")


def words_of(tree):
    """Every name in a file, and every word of its short texts, such as keys."""
    for node in ast.walk(tree):
        for key in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(word := vars(node).get(key), str):
                yield from word.split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 99:
            yield from re.findall(r"\w+", node.value)


WORDS = {word for tree in (*SOURCES.values(), *TESTS) for word in words_of(tree)}
WORDS |= {part for place in PLACES for part in place} | {
    "tests",
    "py",
    "md",
    "docs",
    "case",
    "pyproject",
    "toml",
}


def exists(name):
    """Whether there is such a file, such a name in its module, or at least such a word."""
    parts = [part for part in re.split(r"[./]", name) if part and not re.search("[A-Z]{4}", part)]
    if re.search(r"\.py$|/\w+\.md$", name) and "NAME" not in name:
        return any((ROOT / folder / name).exists() for folder in ("", *FOLDERS))
    places = [
        (length, place)
        for place in PLACES
        for length in range(1, len(parts))
        if [*place[-length:]] == parts[:length] and parts[0] not in HOLDERS
    ]
    longest = max(places, default=(0, ()))[0]
    return WORDS.issuperset(parts) and (
        not places
        or any(
            (*place, parts[longest]) in PLACES
            or parts[longest] in set(words_of(MODULES.get(place, ast.Module([], []))))
            for length, place in places
            if length == longest
        )
    )


def documented(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_docstrings_exist(path):
    names = {name for text in documented(SOURCES[path]) for name in NAME.findall(text)}
    assert [name for name in sorted(names) if not exists(name)] == []


def test_names_in_the_page_for_authors_exist():
    page = (ROOT / "docs" / "adding_a_task.md").read_text(encoding="utf-8")
    assert [name for name in NAME.findall(page) if not exists(name)] == []


@pytest.mark.parametrize(
    "name, found",
    [
        ("tasks.base.TaskBase", False),
        ("decoding.search.search", True),
        ("decoding/search.py", True),
        ("decoding/searching.py", False),
        ("Tokenizer.encoded_by_nobody", False),
        ("training.steps", True),
        ("config.json", True),
    ],
)
def test_a_planted_name_is_found_missing(name, found):
    assert exists(name) == found
