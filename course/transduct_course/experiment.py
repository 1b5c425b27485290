"""An experiment: a claim of the lecture notes, what measures it, and whether it holds.

Everything shown is made from the measured rows alone (table, picture, verdict), so that rows read
back from JSON show the same.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from transduct.drawing.plots import save
from transduct.drawing.svg import Picture
from transduct.errors import MissingExtra, TransductError
from transduct.kernels.threads import Cores
from transduct.storage import write_file
from transduct.training.log import ignore

Size = Literal["full", "quick", "miniature"]
Answer = Literal["holds", "does not hold", "not decided"]
Row = dict[str, Any]  # JSON values; what is no column of the table is for the picture
Chosen = TypeVar("Chosen")

IN_KOREAN = {"holds": "맞다", "does not hold": "맞지 않다", "not decided": "아직 알 수 없다"}


class Words(NamedTuple):
    """The same sentence in both languages of the course."""

    english: str
    korean: str


class Verdict(NamedTuple):
    """Whether a claim holds, and the measured reason."""

    answer: Answer
    because: Words


class NotRun(Exception):
    """An experiment lacks data or an extra, and nothing is wrong; the message names it."""


@dataclass(frozen=True)
class Setting:
    """How an experiment is run.

    Attributes:
        size: a full run takes some fifteen minutes, a quick one about one, a miniature seconds.
        data: the folder of the data sets, if there is one.
        report: called with progress lines.
        seed: the only seed to train with, instead of all.
    """

    size: Size = "full"
    data: Path | None = None
    report: Callable[[str], None] = ignore
    seed: int | None = None

    def pick(self, full: Chosen, quick: Chosen, miniature: Chosen) -> Chosen:
        """The value for this size."""
        return {"full": full, "quick": quick, "miniature": miniature}[self.size]

    @property
    def seeds(self) -> range:
        """Three seeds show the spread; smaller runs take one."""
        if self.seed is not None:
            return range(self.seed, self.seed + 1)
        return range(1, self.pick(4, 2, 2))

    def has(self, name: str) -> bool:
        """Whether a data set is there; what is left out without it is reported."""
        there = self.data is not None and (self.data / name).is_dir()
        if not there:
            self.report(f"left out: what needs the data set {name} (its folder is in --data)")
        return there

    def folder(self, name: str) -> Path:
        """The folder of a data set. Raises NotRun where it is not given or not there."""
        if self.data is None or not (self.data / name).is_dir():
            raise NotRun(f"the data set {name} (give the folder that holds it as --data)")
        return self.data / name


@dataclass(frozen=True)
class Experiment:
    """A claim and its measurement.

    Attributes:
        about: two sentences, of what is measured.
        keys: the columns that tell rows of the table apart, with their headings.
        values: the measured columns, averaged over the rows that agree in all keys.
        measure: yields rows, as soon as each is known.
        draw: the picture of rows, also of the first few.
        judge: the verdict on all rows of a run that was not cut short.
        korean: Korean words for those of the table's cells.
        by_seed: whether it trains for minutes from each seed, so that seeds gain from processes of
            their own.
    """

    name: str
    claim: Words
    about: Words
    keys: Mapping[str, Words]
    values: Mapping[str, Words]
    measure: Callable[[Setting], Iterable[Row]]
    draw: Callable[[Sequence[Row]], Picture]
    judge: Callable[[Sequence[Row]], Verdict]
    korean: Mapping[str, str] = field(default_factory=dict)
    by_seed: bool = True


@dataclass
class Result:
    """What a run has measured so far."""

    experiment: Experiment
    setting: Setting
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0  # of one core
    lacks: str = ""  # why it was not run
    cut: bool = False  # ended by Ctrl-C

    @property
    def verdict(self) -> Verdict:
        """Not decided unless all was measured, and in more than a miniature."""
        if self.lacks:
            return Verdict("not decided", Words(f"it needs {self.lacks}", f"필요: {self.lacks}"))
        if self.cut or not self.rows:
            return Verdict("not decided", Words("it was interrupted", "중간에 멈췄다"))
        if self.setting.size == "miniature":
            told = Words("a miniature only shows that it runs", "아주 작게 돌려 보기만 했다")
            return Verdict("not decided", told)
        return self.experiment.judge(self.rows)

    @property
    def picture(self) -> Picture:
        """Drawn from the rows; Jupyter shows it."""
        return self.experiment.draw(self.rows)

    def as_json(self) -> dict[str, Any]:
        """All numbers, and the words around them."""
        verdict = self.verdict
        return {
            "name": self.experiment.name,
            "claim": self.experiment.claim._asdict(),
            "verdict": verdict.answer,
            "because": verdict.because._asdict(),
            "not_run": self.lacks or None,
            "size": self.setting.size,
            "seconds": round(self.seconds, 1),
            "rows": [finite(row) for row in self.rows],
        }

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.json and NAME.svg, and NAME.png where matplotlib is installed."""
        paths = [folder / f"{self.experiment.name}.json"]
        folder.mkdir(parents=True, exist_ok=True)
        write_file(paths[0], (json.dumps(self.as_json(), ensure_ascii=False) + "\n").encode())
        if not self.rows:
            return paths
        picture = self.picture
        for path in (paths[0].with_suffix(".svg"), paths[0].with_suffix(".png")):
            try:
                save(picture, path)
            except MissingExtra:  # the SVG shows the same
                continue
            paths.append(path)
        return paths


def run(experiment: Experiment, setting: Setting) -> Result:
    """Measure. Ctrl-C ends it and keeps what has been measured; missing data or extras are
    reported."""
    # Of the processor, so that other programs beside do not count.
    result, start = Result(experiment, setting), time.process_time()
    try:
        with torch.random.fork_rng(), Cores():
            torch.set_num_threads(1)  # models this small gain nothing from a second
            for row in experiment.measure(setting):
                result.rows.append(row)
                names = [name for name in (*experiment.keys, *experiment.values) if name in row]
                told = ", ".join(f"{name} {shown(row[name])}" for name in names)
                setting.report(f"{experiment.name}: {told}")
    except KeyboardInterrupt:
        result.cut = True
    except NotRun as lack:
        result.lacks = str(lack)
    except MissingExtra as lack:
        result.lacks = f"an extra: {lack}"
    result.seconds = time.process_time() - start
    return result


def table(
    experiment: Experiment, rows: Sequence[Row], language: Literal["english", "korean"] = "english"
) -> list[list[str]]:
    """The head and the lines of the table: the mean of each value over seeds, and, of several, the
    range as +-, half of what lies between the largest and the smallest."""
    columns = {**experiment.keys, **experiment.values}
    lines = [[getattr(words, language) for words in columns.values()]]
    names = experiment.korean if language == "korean" else {}
    for key, group in grouped(rows, *experiment.keys).items():
        cells = [names.get(part, shown(part, language)) for part in key]
        for name in experiment.values:
            found = [row[name] for row in group if row.get(name) is not None]
            numbers = [value for value in found if isinstance(value, int | float)]
            if not numbers:
                cells.append(shown(found[0], language) if found else "-")
                continue
            if len({*numbers}) == 1:
                cells.append(shown(numbers[0]))
                continue
            half = (max(numbers) - min(numbers)) / 2
            cells.append(f"{shown(fmean(numbers))} ± {shown(half)}")
        lines.append(cells)
    return lines


def averaged(lines: Iterable[Sequence[float]]) -> list[float]:
    """The mean of curves, as far as the shortest goes."""
    return [fmean(each) for each in zip(*lines, strict=False)]


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows that agree in these keys, in the order in which they first came."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def mean(rows: Iterable[Row], value: str, **chosen: Any) -> float:
    """The mean of a value over the rows that have the chosen keys; NaN if there is none."""
    found = [
        row[value]
        for row in rows
        if row.get(value) is not None and all(row[key] == part for key, part in chosen.items())
    ]
    return fmean(found) if found else math.nan


def shown(value: Any, language: str = "english") -> str:
    """A cell: yes and no, words as they are, numbers with three digits that count."""
    if isinstance(value, bool):
        return {"english": ("no", "yes"), "korean": ("아니요", "예")}[language][value]
    if isinstance(value, int) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if not math.isfinite(value):
        return "-"
    value = float(f"{value:.3g}")
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0}f}"


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them, at any depth; floats keep six
    digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value


def read(path: Path) -> Iterator[Row]:
    """The rows of a run that `Result.save` has written."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransductError(
            f"{path}: holds no rows of an experiment ({error}); run transduct learn again"
        ) from error
    yield from rows
