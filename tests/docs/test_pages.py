"""The other pages: their commands are commands, their links lead somewhere, and the READMEs'
programs run."""

import argparse
import re
import shlex
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer

from transduct.config import load_recipe, stages_of
from transduct.interfaces import cli
from transduct.tasks.base import task_class

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in
         [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}  # fmt: skip
READMES = ["README.md", "README.ko.md"]
RECORDS = ("docs/log.md", "CHANGELOG.md")  # what was, under the names of then
TESTED = ("docs/using.md", "docs/recipes.md")  # have tests of their own
BLOCK, LINK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL), re.compile(r"\]\(([^)\s]+)\)")
PROGRAM = typer.main.get_command(cli.app)
VERBS = {name: PROGRAM.get_command(None, name) for name in PROGRAM.list_commands(None)}
PLACEHOLDER = re.compile(r"recipes/([A-Z]+|레시피)\.yaml")


def commands(page):
    """The lines of a page's blocks that are no Python, each without what a shell would take from
    it."""
    for kind, text in BLOCK.findall(PAGES[page]):
        for line in text.replace("\\\n", " ").splitlines() if not kind else ():
            words = shlex.split(line, comments=True)
            yield words[: words.index(">")] if ">" in words else words


def spans(page):
    """What stands as code within the sentences and tables of a page."""
    return re.findall(r"`([^`\n]+)`", BLOCK.sub("", PAGES[page]))


def calls(program, page):
    """A page's calls of a program, "transduct" or "python": all in blocks, and those in sentences
    that say of what."""
    shown = [words for words in commands(page) if words[:1] == [program]]
    said = [
        words for span in spans(page) if len(words := span.replace("=...", "=DATA").split()) > 2
    ]
    return shown + [
        words
        for words in said
        if words[0] == program and (program == "python" or words[2][0] != "-")
    ]


CALLS = [
    (page, words)
    for page in PAGES
    if page not in RECORDS + TESTED
    for words in calls("transduct", page)
]
SCRIPTS = [
    (page, words) for page in PAGES if page not in RECORDS for words in calls("python", page)
]
SCRIPTS = [(page, words) for page, words in SCRIPTS if words[1].startswith("benchmarks/")]


@pytest.mark.parametrize(
    "page, words", CALLS, ids=[f"{page}-{' '.join(words[1:4])}" for page, words in CALLS]
)
def test_the_program_takes_the_commands_of_the_page(tmp_path, page, words):
    found = VERBS[words[1]].make_context(words[1], words[2:]).params
    recipe, *overrides = found.get("recipe") or [""]
    if recipe.startswith("recipes/") and not PLACEHOLDER.match(recipe):
        for stage in stages_of(load_recipe(ROOT / recipe, overrides, found["profile"])):
            task_class(stage.task)(stage, tmp_path, print)


def test_there_are_commands():
    """They are found at all, on the pages that have them."""
    assert {*READMES, "docs/beyond_text.md", "docs/results.md", "docs/serving.md"} <= {
        page for page, _ in CALLS
    }
    assert {"docs/paper_tables.md", "docs/speedrun.md", "docs/results.md"} <= {
        page for page, _ in SCRIPTS
    }


@pytest.mark.parametrize(
    "page, words", SCRIPTS, ids=[f"{page}-{' '.join(words[1:3])}" for page, words in SCRIPTS]
)
def test_a_benchmark_takes_the_commands_of_the_page(monkeypatch, page, words):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    main = import_module(Path(words[1]).stem).main
    # what may be left out is given, too
    everything = re.sub(r"[\[\]]|\.\.\.", " ", " ".join(words[1:]))
    monkeypatch.setattr(sys, "argv", re.sub(r"\bN\b", "500", everything).split())
    parse = argparse.ArgumentParser.parse_args

    class Taken(Exception):
        """The script has taken its arguments."""

    def stop(parser, *given):
        parse(parser, *given)
        raise Taken

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Taken):
        main()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_the_help_of_a_benchmark_keeps_its_lines(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("ArgumentParser(") == text.count(
        "formatter_class=argparse.RawDescriptionHelpFormatter"
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(BLOCK.sub("", PAGES[page])):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page):
    """What a link to a heading or a marked place of a page ends in."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | {*re.findall(r'<a id="(\w+)"></a>', text)}


@pytest.mark.parametrize("page", READMES)
def test_the_program_of_the_readme_runs(run, monkeypatch, page):
    [program] = [text for kind, text in BLOCK.findall(PAGES[page]) if kind == "python"]
    [directory] = re.findall(r'load\("(.*?)"\)', program)
    place = run.parent / "place"
    (place / directory).parent.mkdir(parents=True)
    shutil.move(run, place / directory)
    monkeypatch.chdir(place)
    exec(program, {})


def test_both_readmes_have_the_same_programs_commands_titles_and_tables():
    english, korean = (PAGES[page] for page in READMES)
    assert len(BLOCK.findall(english)) == len(BLOCK.findall(korean))
    for mark in (r"^(#+) ", r"^(\|)", r"^(!?)<img", r"`(\w+ --profile \w+)`"):
        assert re.findall(mark, english, re.MULTILINE) == re.findall(mark, korean, re.MULTILINE)
    options = [
        [[word for word in words if word.startswith("--")] for words in commands(page)]
        for page in READMES
    ]
    assert options[0] == options[1]


KEY = re.compile(r"(?<![\w./])(data|tokenizer|model|training|decoding)\.(\w+)(?=[=`])")
NO_KEYS = {"json", "pt", "safetensors", "generate", "score", "translate_marked"}  # files, methods


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RECORDS])
def test_every_key_of_a_recipe_that_a_page_names_exists(page):
    _, *parts = re.split(r"^### `(\w+)`$", PAGES["docs/recipes.md"], flags=re.MULTILINE)
    keys = {
        section: {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)}
        for section, table in zip(parts[::2], parts[1::2], strict=True)
    }
    named = KEY.findall(PAGES[page].replace("**", ""))
    assert [key for section, key in named if key not in keys[section] | NO_KEYS] == []


WIDTH, WORDS, ENTRY = 120, 25, 10  # of a line, of a table's cell, lines of an entry of the log
WRITTEN = [page for page in PAGES if page.startswith(("docs/", "README"))]


def faults(text, log=False):
    """The lines of a page that are too long, cells that hold more than a few words, and entries of
    the log that go on too long."""
    shown = BLOCK.sub("", text)
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    said = re.sub(r"`[^`\n]+`|\$\$.*?\$\$", "", LINK.sub("]", shown), flags=re.DOTALL)
    lines = [line for line in said.splitlines() if not line.startswith(("|", "<"))]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    entries = re.split(r"^## ", text, flags=re.MULTILINE)[1:] if log else []
    return (
        [line for line in lines if len(line) > WIDTH]
        + [cell for cell in cells if len(cell.split()) > WORDS]
        + [each for each in entries if len(each.strip().splitlines()[1:]) > ENTRY + 1]
    )


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_can_be_read(page):
    assert not faults(PAGES[page], log=page == "docs/log.md")


@pytest.mark.parametrize(
    "text",
    [
        "word " * 25,
        "* " + "word " * 25,
        "| a | " + "word " * 26 + "|",
        "| a \\| " + "word " * 25 + "| b |",
        "## An entry\n\n" + "line\n" * 11,
    ],
)
def test_what_cannot_be_read_is_noticed(text):
    assert len(faults(f"# Page\n\nshort\n\n{text}\n", log=True)) == 1


def test_code_tables_links_and_formulas_may_be_long():
    long = "word" * 40
    for text in (
        f"```\n{long}\n```",
        f"| {long} |",
        f"[a]({long})",
        f"`{long}`",
        f"$$\n{long}\n$$",
    ):
        assert not faults(f"# Page\n\n{text}\n", log=True)
    assert not faults("## An entry\n\n" + "line\n" * 10, log=True)
