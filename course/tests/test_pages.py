"""The course shows every experiment, in both languages, with the numbers that were measured."""

import json
import re
from dataclasses import replace
from shutil import copytree

import pytest
from transduct_course import pages
from transduct_course.catalogue import NAMES
from transduct_course.experiment import Result, Setting, Verdict, run
from transduct_course.pages import BLOCK, MARK, PAGES, Markdown, chapters, filled, notebook, write

from course.tests.test_experiment import ROWS, made, words
from course.tests.verdicts import DOCS, EXPECTED, execute, run_once, wrong


def read(page):
    return (DOCS / page).read_text(encoding="utf-8")


PARTS = ("notebooks", "learn")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_every_experiment_in_the_order_of_the_catalogue(page):
    assert MARK.findall(read(page)) == [*NAMES]


def test_both_pages_have_the_same_code_links_and_headings():
    def skeleton(page):
        text = MARK.sub("", read(page))
        links = re.findall(r"\]\(([^)]+)\)", text)[1:]  # the first leads to the other page
        return BLOCK.findall(text), [link.replace(".ko.md", ".md") for link in links]

    assert skeleton("learn.md") == skeleton("learn.ko.md")
    assert read("learn.md").count("\n## ") == read("learn.ko.md").count("\n## ")


def test_both_pages_say_how_long_all_chapters_take_together():
    seconds = sum(
        json.loads(path.read_text())["seconds"] for path in (DOCS / "learn").glob("*.json")
    )
    assert f"add up to {seconds / 3600:.1f}\nhours of one core" in read("learn.md")
    assert f"더하면 코어 하나로 {seconds / 3600:.1f}시간" in read("learn.ko.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_chapter_has_a_formula_code_that_prints_and_exercises(page):
    for name, chapter in chapters(read(page)):
        before, after = re.split(MARK, chapter)[::2]
        assert re.search(r"equations(?:\.ko)?\.md#\d+\)", before), name
        assert re.findall(r"\$[^$]+\$", before), name
        assert "print(" in "".join(BLOCK.findall(before)), name
        questions, answers = after.rsplit("<details>", 1)
        assert re.findall(r"(?m)^(\d)\. ", questions)[-2:] == ["1", "2"], name
        assert re.findall(r"(?m)^(\d)\. ", answers) == ["1", "2"], name
        assert {"What surprises", "뜻밖인 점"} & {*re.findall("What surprises|뜻밖인 점", after)}, (
            name
        )


def test_the_code_of_every_chapter_runs(capsys):
    for name, chapter in chapters(read("learn.md")):
        exec("import torch\n" + "".join(BLOCK.findall(chapter)), {})
        assert capsys.readouterr().out, name


def test_pages_and_notebooks_are_those_that_the_measurements_give(tmp_path):
    """After a change: python -m transduct_course.pages docs."""
    copytree(DOCS / "learn", tmp_path / "learn")
    for page in PAGES:
        (tmp_path / page).write_text(read(page), encoding="utf-8")
    write(tmp_path)
    for page in PAGES:
        assert (tmp_path / page).read_text(encoding="utf-8") == read(page)
    new, old = (
        {
            path.name: path.read_bytes()
            for part in PARTS
            for path in (folder / part).glob("*.[ijs]*")
        }
        for folder in (tmp_path, DOCS)
    )
    assert new == old


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ending", [".ipynb", ".ko.ipynb"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("hash_table", "architecture") else pytest.mark.slow)
        for name in NAMES
    ],
)
def test_a_notebook_runs(name, ending):
    names = execute(DOCS / "notebooks" / f"{name}{ending}")
    result = names["result"]
    assert result.lacks or result.picture._repr_svg_().startswith("<svg")
    assert names["Markdown"].of(result, "korean")._repr_markdown_()


def test_every_chapter_is_a_notebook_in_both_languages():
    kept = {path.name for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert kept == {f"{name}{end}" for name in NAMES for end in (".ipynb", ".ko.ipynb")}


def test_a_mark_becomes_picture_table_verdict_and_command(tmp_path, monkeypatch):
    experiment = made(lambda setting: ROWS)
    monkeypatch.setattr(pages, "find", lambda name: experiment)
    run(experiment, Setting("full")).save(tmp_path / "learn")
    text = "before\n<!-- measured: sum -->\nold\n<!-- end -->\nafter"
    lines = filled(text, tmp_path / "learn", "english").splitlines()
    assert lines[:2] == ["before", "<!-- measured: sum -->"]
    assert lines[2] == "![sum](learn/sum.svg)"
    assert lines[4:7] == ["| kind | loss |", "| --- | --- |", "| a | 1.50 ± 0.500 |"]
    assert "**Holds**: as claimed." in lines
    assert "`transduct learn sum` (full size, 1 to 2 seeds)." in lines
    assert filled("\n".join(lines), tmp_path / "learn", "english").splitlines() == lines
    assert "**맞다**" in filled(text, tmp_path / "learn", "korean")


def test_a_claim_of_several_parts_has_a_line_for_each(tmp_path, monkeypatch):
    parts = [Verdict.of(True, words("5 ms"), words("slow")), Verdict.of(False, words("no"))]
    experiment = made(lambda setting: ROWS, lambda rows: parts)
    monkeypatch.setattr(pages, "find", lambda name: experiment)
    run(experiment, Setting("full")).save(tmp_path / "learn")
    text = filled("<!-- measured: sum -->\n<!-- end -->", tmp_path / "learn", "english")
    assert "\n* **Slow: holds**: 5 ms.\n" in text
    assert "\n* **Does not hold**: no.\n" in text


def test_a_page_shows_the_main_rows_and_folds_all():
    chosen = replace(made(None), main=lambda row: row["kind"] == "b")
    text = Markdown.of(Result(chosen, Setting(), ROWS), "english")
    assert text._repr_markdown_() == text  # what Jupyter asks for
    few, folded = text.split("<details><summary>All 2 rows</summary>")
    assert "| b | 0.250 |" in few
    assert "| a |" not in few
    assert "| a | 1.50 ± 0.500 |" in folded.split("</details>")[0]
    assert text.endswith("**Holds**: as claimed.")
    assert "details" not in Markdown.of(Result(made(None), Setting(), ROWS), "korean")
    many = [{"kind": str(i), "loss": 1.0} for i in range(7)]
    assert Markdown.of(Result(made(None), Setting(), many), "korean").startswith(
        "\n<details><summary>전체 7행</summary>"
    )


def test_without_a_measurement_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "find", lambda name: made(None))
    text = "<!-- measured: sum -->\n<!-- end -->"
    assert "Not measured yet: `transduct learn sum`." in filled(text, tmp_path, "english")


def test_a_notebook_has_the_text_the_code_and_the_experiment_of_its_chapter():
    text = (
        "# T\n\n## Sum\n\nSee [here](a.md).\n\n```python\nx = 1\n```\n\n<!-- measured: sum "
        "-->\n<!-- end -->\n"
    )
    [(name, chapter)] = chapters(text)
    cells = notebook(name, chapter, "english")["cells"]
    assert [cell["cell_type"] for cell in cells] == ["code", "markdown", "code", "code", "code"]
    assert "".join(cells[1]["source"]) == "## Sum\n\nSee [here](../a.md)."
    assert cells[2]["source"] == ["x = 1"]
    assert 'find("sum")' in "".join(cells[3]["source"])
    assert cells[3]["source"][-1] == 'Markdown.of(result, "english")'


def test_notebooks_of_the_same_trainings_measure_once():
    runs = []
    kept = run_once(lambda *given: runs.append(given) or Result(*given, ROWS))
    experiment = made(lambda setting: ROWS)
    twin = replace(experiment, name="twin")
    assert kept(experiment, Setting()).rows == kept(twin, Setting()).rows == ROWS
    assert kept(twin, Setting()).experiment is twin
    assert runs == [(experiment, Setting())]


def test_verdicts_are_compared(tmp_path):
    assert set(EXPECTED) == set(NAMES)
    record = {"size": "full", "verdicts": [{"answer": "does not hold"}]}
    (tmp_path / "scale.json").write_text(json.dumps(record))
    found = wrong(tmp_path)
    assert "scale: found ('does not hold',), expected ('holds', 'holds', 'holds', 'holds')" in found
    assert "distance: found no full run" in found
