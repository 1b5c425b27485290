"""Another package adds a command, a task and a corpus by entry points; a small one is made here."""

import pytest
import typer

from transduct import added
from transduct.data.samples import generate
from transduct.errors import TransductError
from transduct.interfaces import cli
from transduct.interfaces.program import UsageError
from transduct.tasks.base import task_class

POINTS = """[transduct.corpora]
short = small_package:SHORT
[transduct.tasks]
first_letter = tests.toy_task.first_letter:FirstLetterTask
half = small_package:Half
[transduct.predictors]
first_letter = tests.toy_task.first_letter:FirstLetter
[transduct.commands]
count = small_package:count
lost = small_package:nothing
"""
MODULE = '''
from transduct.data.samples import TextCorpus

SHORT = TextCorpus(lambda random: ("a" * random.randint(1, 99), "b"))

def count(text: str, twice: bool = False) -> None:
    """Count the letters of a text."""
    print(len(text) * (1 + twice))
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package as pip installs it: a module, and a folder of metadata with entry points."""
    about = tmp_path / "small_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: small-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    (tmp_path / "small_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    added.added.cache_clear()
    yield
    added.added.cache_clear()


def run(*words):
    return typer.main.get_command(cli.app).main([*words], "transduct", standalone_mode=False)


@pytest.mark.usefixtures("package")
def test_a_command_of_another_package_is_listed_and_runs(capsys):
    run("--help")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["count", "Count", "the", "letters", "of", "a", "text."] in lines
    run("count", "seven", "--twice")
    assert capsys.readouterr().out == "10\n"
    with pytest.raises(UsageError, match="No such option"):
        run("count", "seven", "--thrice")


@pytest.mark.usefixtures("package")
def test_a_command_that_cannot_be_loaded_is_listed_and_says_so(capsys):
    run("--help")
    assert "'lost' of small_package:nothing cannot be loaded" in capsys.readouterr().out
    with pytest.raises(UsageError) as found:
        run("lost")
    assert found.value.format_message() == (
        "'lost' of small_package:nothing cannot be loaded (module 'small_package' has no "
        "attribute 'nothing'); install it again"
    )


@pytest.mark.usefixtures("package")
def test_a_corpus_of_another_package_is_generated_by_its_name():
    assert next(generate("short", 1))[1] == "b"


@pytest.mark.usefixtures("package")
def test_a_task_of_another_package_is_known_if_it_answers_and_trains():
    """What it can do is tested in test_toy_task.py, which installs it in the same way."""
    assert task_class("first_letter").__name__ == "FirstLetterTask"
    for name in ("half", "other"):
        with pytest.raises(TransductError, match=f"unknown task '{name}'; .*, first_letter$"):
            task_class(name)


@pytest.mark.parametrize("name, folder", [("learn", "course"), ("bench", ".")])
def test_a_command_of_this_repository_that_is_not_installed_says_how_to(monkeypatch, name, folder):
    monkeypatch.setattr(added, "added", lambda group: {})
    with pytest.raises(UsageError) as found:
        run(name, "--all")
    assert found.value.format_message() == (
        f"'{name}' is not installed; run, in a clone of transduct: pip install --editable {folder}"
    )
    with pytest.raises(UsageError, match="No such command 'teach'"):
        run("teach")
