"""The pages of the course: tables from measured rows, and a notebook for each chapter.

`python -m transduct_course.pages docs` fills learn.md and learn.ko.md from the files that
`transduct learn --out docs/learn` wrote, and writes docs/notebooks.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from transduct.storage import write_file
from transduct_course.catalogue import find
from transduct_course.experiment import Result, grouped, table

Language = Literal["english", "korean"]
PAGES: dict[str, Language] = {"learn.md": "english", "learn.ko.md": "korean"}
MARK = re.compile(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
BLOCK = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)
WIDTH = 112  # characters of a line of text
MOST_LINES = 6  # of a table that is not folded
PHRASES: dict[Language, dict[str, str]] = {
    "english": {
        "full": "full size",
        "quick": "quick size",
        "took": "{:.1f} minutes of a core",
        "missing": "Not measured yet",
        "one seed": "{} seed",
        "seeds": "{} seeds",
        "range": "{} to {} seeds",
        "rows": "All {} rows",
        "picture": "svg",
        "notebook": "ipynb",
    },
    "korean": {
        "full": "전체 크기",
        "quick": "빠른 크기",
        "took": "코어 하나로 {:.1f}분",
        "missing": "아직 측정하지 않았다",
        "one seed": "시드 {}개",
        "seeds": "시드 {}개",
        "range": "시드 {}~{}개",
        "rows": "전체 {}행",
        "picture": "ko.svg",
        "notebook": "ko.ipynb",
    },
}


def filled(text: str, folder: Path, language: Language) -> str:
    """A page with what was measured between its marks; without a measurement, how to make it."""
    return MARK.sub(lambda mark: "\n".join(measured(mark[1], folder, language)), text)


def measured(name: str, folder: Path, language: Language) -> Iterator[str]:
    """The picture, the table and the verdicts of an experiment."""
    path, experiment, words = folder / f"{name}.json", find(name), PHRASES[language]
    yield f"<!-- measured: {name} -->"
    if path.exists():
        found = Result.read(experiment, path)
        yield f"![{name.replace('_', ' ')}]({folder.name}/{name}.{words['picture']})\n"
        yield from said(found, language)
        about = [words[found.setting.size], *seeds(found, language)]
        if found.seconds >= 3:
            about.append(words["took"].format(found.seconds / 60))
        yield f"\n`transduct learn {name}` ({', '.join(about)})."
    else:
        yield f"{words['missing']}: `transduct learn {name}`."
    yield "<!-- end -->"


def seeds(result: Result, language: Language) -> Iterator[str]:
    """From how many seeds the rows of the table are."""
    rows = [row for row in result.rows if "seed" in row]
    found = grouped(rows, *result.experiment.keys).values()
    counts = sorted({len({row["seed"] for row in group}) for group in found})
    if counts:
        kind = "range" if len(counts) > 1 else "seeds" if counts[0] > 1 else "one seed"
        yield PHRASES[language][kind].format(counts[0], counts[-1])


def said(result: Result, language: Language) -> Iterator[str]:
    """The table of the main rows, which has all rows folded beneath if they are more, and the
    verdicts."""
    chosen = [*filter(result.experiment.main, result.rows)] or result.rows
    few, every = (table(result.experiment, rows, language) for rows in (chosen, result.rows))
    if 1 < len(few) <= MOST_LINES + 1:
        yield from marked_up(few)
    if len(few) < len(every) or len(few) > MOST_LINES + 1:
        folded = PHRASES[language]["rows"].format(len(every) - 1)
        yield f"\n<details><summary>{folded}</summary>\n"
        yield from marked_up(every)
        yield "\n</details>"
    several = len(result.verdicts) > 1
    yield ""
    for verdict in result.verdicts:
        answer, reason = verdict.told(language)
        if language == "english":
            answer = f"{answer[0].upper()}{answer[1:]}"
        line = f"{'* ' * several}**{answer}**: {reason}."
        yield textwrap.fill(
            line, WIDTH, subsequent_indent="  " * several, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip


def marked_up(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown; the first line is its head."""
    for line in (lines[0], ["---"] * len(lines[0]), *lines[1:]):
        yield f"| {' | '.join(line)} |"


class Markdown(str):
    """What Jupyter shows as a text with tables."""

    @classmethod
    def of(cls, result: Result, language: Language) -> "Markdown":
        """The table and the verdicts of a run."""
        return cls("\n".join(said(result, language)))

    def _repr_markdown_(self) -> str:
        return self


def chapters(text: str) -> Iterator[tuple[str, str]]:
    """The chapters that have an experiment: its name, and the text from the heading on."""
    for chapter in re.split(r"(?m)^(?=##? )", text)[1:]:
        if names := MARK.findall(chapter):
            yield names[0], chapter


def notebook(name: str, chapter: str, language: Language) -> dict[str, Any]:
    """A chapter as a notebook (nbformat 4.5): its text, its code, and its experiment, quick."""
    parts = [("code", "import torch")]
    for number, part in enumerate(BLOCK.split(MARK.sub("", chapter))):
        # Links of the page lead from docs/; notebooks are one folder deeper.
        linked = re.sub(r"\]\((?!https?:|#)", "](../", part)
        parts.append(("code", part) if number % 2 else ("markdown", linked))
    parts += [("code", RUN.format(name=name, language=language)), ("code", PICTURES[language])]
    cells = [
        {
            "cell_type": kind,
            "id": f"{name}-{number}",
            "metadata": {},
            "source": source.strip().splitlines(keepends=True),
            **CELLS[kind],
        }
        for number, (kind, source) in enumerate(part for part in parts if part[1].strip())
    ]
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


CELLS: dict[str, dict[str, Any]] = {
    "markdown": {},
    "code": {"outputs": [], "execution_count": None},
}
RUN = """from transduct_course.catalogue import find
from transduct_course.experiment import Setting, run
from transduct_course.pages import Markdown

result = run(find("{name}"), Setting("quick", report=lambda line: print("·", end="", flush=True)))
Markdown.of(result, "{language}")
"""
PICTURES = {
    "english": "result.picture if result.rows else None",
    "korean": """from transduct_course.korean import in_korean

in_korean(result.picture, result.experiment.korean) if result.rows else None
""",
}


def write(docs: Path) -> None:
    """Judge and draw what was measured, fill the pages of a folder and write its notebooks; those
    of no chapter are removed."""
    made: dict[str, bytes] = {}
    for path in sorted((docs / "learn").glob("*.json")):
        for name, data in Result.read(find(path.stem), path).files().items():
            write_file(path.parent / name, data)
    for page, language in PAGES.items():
        text = filled((docs / page).read_text(encoding="utf-8"), docs / "learn", language)
        write_file(docs / page, text.encode())
        for name, chapter in chapters(text):
            lines = json.dumps(notebook(name, chapter, language), ensure_ascii=False, indent=1)
            made[f"{name}.{PHRASES[language]['notebook']}"] = f"{lines}\n".encode()
    folder = docs / "notebooks"
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.ipynb"):
        if path.name not in made:
            path.unlink()
    for name, data in made.items():
        write_file(folder / name, data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
