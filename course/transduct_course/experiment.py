"""An experiment: a claim of the lecture notes, what measures it, and whether it holds.

Everything shown is made from the measured rows alone (table, picture, verdict), so that rows read
back from JSON show the same.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from transduct.drawing.svg import Picture
from transduct.errors import MissingExtra, TransductError
from transduct.kernels.threads import Cores
from transduct.storage import write_file
from transduct.training.log import ignore
from transduct_course.korean import in_korean

Size = Literal["full", "quick", "miniature"]
Answer = Literal["holds", "does not hold", "not decided", "shown"]
Row = dict[str, Any]  # JSON values; what is no column of the table is for the picture
Rows = Sequence[Row]
Measured = Iterator[Row]  # each as soon as it is known
Language = Literal["english", "korean"]
Chosen = TypeVar("Chosen")

IN_KOREAN = {
    "holds": "맞다",
    "does not hold": "맞지 않다",
    "not decided": "아직 알 수 없다",
    "shown": "보였다",
}


class Words(NamedTuple):
    """The same sentence in both languages of the course."""

    english: str
    korean: str


class Verdict(NamedTuple):
    """Whether a claim, or a part of it, holds, and the measured reason.

    Attributes:
        answer: "shown" for what cannot fail, such as a formula put in numbers.
        part: the part of the claim, where it has several.
    """

    answer: Answer
    because: Words
    part: Words | None = None

    @classmethod
    def of(cls, holds: bool | None, because: Words, part: Words | None = None) -> "Verdict":
        """A verdict; None if it is not decided."""
        answers: dict[bool | None, Answer] = {True: "holds", False: "does not hold"}
        return cls(answers.get(holds, "not decided"), because, part)

    @classmethod
    def shown(cls, is_so: bool, because: Words) -> list["Verdict"]:
        """The one verdict on what cannot fail, if the program is right."""
        return [cls("shown" if is_so else "does not hold", because)]

    def told(self, language: Language) -> tuple[str, str]:
        """The part and the answer to it, and the reason."""
        answer = IN_KOREAN[self.answer] if language == "korean" else self.answer
        part = f"{getattr(self.part, language)}: " if self.part else ""
        return f"{part}{answer}", getattr(self.because, language)


class NotRun(Exception):
    """An experiment lacks data or an extra, and nothing is wrong; the message names it."""


@dataclass(frozen=True)
class Setting:
    """How an experiment is run.

    Attributes:
        size: a full run takes up to twenty minutes, a quick one two at most, a miniature seconds.
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

    def each(self, *choices: Iterable[Any]) -> Iterator[Any]:
        """All combinations of the choices, each with every seed. Each is reported before it is
        measured, with its number and the time that is left."""
        found, begun = [*product(*choices, self.seeds)], time.monotonic()
        for number, chosen in enumerate(found):
            left = (time.monotonic() - begun) / max(1, number) * (len(found) - number) / 60
            told = [
                str(p) for each in chosen for p in (each if isinstance(each, tuple) else [each])
            ]
            more = f"; about {left:.0f} minutes left" if number else ""
            line = ", ".join([*told[:-1], f"seed {told[-1]}"])
            self.report(f"{number + 1} of {len(found)}: {line}{more}")
            yield chosen

    def found(self, name: str) -> Path | None:
        """The folder of a data set, if it is there; what is left out without it is reported."""
        if self.data is not None and (self.data / name).is_dir():
            return self.data / name
        self.report(f"left out: what needs the data set {name} (its folder is in --data)")
        return None

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
        measure: yields rows, as soon as each is known. Experiments that have it in common judge
            the same trainings: a run of all measures once.
        draw: the picture of rows, also of the first few.
        judge: a verdict for each part of the claim, on all rows of a run that was not cut short.
        korean: Korean words for those of the table's cells.
        learnt: whether the model of a row has learnt more than a guess; if none has, nothing is
            decided.
        main: whether a row is one of the few that a page shows unfolded; by default all are.
        by_seed: whether it trains for minutes from each seed, so that seeds gain from processes of
            their own.
    """

    name: str
    claim: Words
    about: Words
    keys: Mapping[str, Words]
    values: Mapping[str, Words]
    measure: Callable[[Setting], Iterable[Row]]
    draw: Callable[[Rows], Picture]
    judge: Callable[[Rows], Iterable[Verdict]]
    korean: Mapping[str, str] = field(default_factory=dict)
    learnt: Callable[[Row], bool] | None = None
    main: Callable[[Row], bool] | None = None
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

    @classmethod
    def read(cls, experiment: Experiment, path: Path) -> "Result":
        """What `save` has written. Raises TransductError if it holds no rows of an experiment."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            setting = Setting(found["size"])
            return cls(experiment, setting, found["rows"], found["seconds"], found["not_run"] or "")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TransductError(
                f"{path}: holds no rows of an experiment ({error}); run transduct learn again"
            ) from error

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """One for each part of the claim. Not decided unless all was measured, in more than a
        miniature, and something was learnt."""
        learnt = self.experiment.learnt
        undecided = (
            (self.lacks, Words(f"it needs {self.lacks}", f"필요: {self.lacks}")),
            (self.cut or not self.rows, Words("it was interrupted", "중간에 멈췄다")),
            (self.setting.size == "miniature",
             Words("a miniature only shows that it runs", "아주 작게 돌려 보기만 했다")),
            (learnt and not any(map(learnt, self.rows)),
             Words("no model learnt more than a guess in these steps",
                   "이 단계 수로는 찍는 것보다 잘하게 된 모델이 없다")),
        )  # fmt: skip
        found = [Verdict("not decided", reason) for is_so, reason in undecided if is_so]
        return found[:1] or [*self.experiment.judge(self.rows)]

    @property
    def picture(self) -> Picture:
        """Drawn from the rows; Jupyter shows it."""
        return self.experiment.draw(self.rows)

    def as_json(self) -> dict[str, Any]:
        """All numbers, and the words around them."""
        return {
            "name": self.experiment.name,
            "claim": self.experiment.claim._asdict(),
            "verdicts": [
                {
                    "part": verdict.part._asdict() if verdict.part else None,
                    "answer": verdict.answer,
                    "because": verdict.because._asdict(),
                }
                for verdict in self.verdicts
            ],
            "not_run": self.lacks or None,
            "size": self.setting.size,
            "seconds": round(self.seconds, 1),
            "rows": [finite(row) for row in self.rows],
        }

    def files(self) -> dict[str, bytes]:
        """The numbers and the picture: NAME.json and, if there is something to draw, NAME.svg and,
        in Korean, NAME.ko.svg."""
        name = self.experiment.name
        lines = json.dumps(self.as_json(), ensure_ascii=False)
        made = {f"{name}.json": f"{lines}\n".encode()}
        if self.rows:
            made[f"{name}.svg"] = self.picture.svg().encode()
            korean = in_korean(self.picture, self.experiment.korean)
            made[f"{name}.ko.svg"] = korean.svg().encode()
        return made

    def save(self, folder: Path) -> list[Path]:
        """Write `files`, and NAME.png where matplotlib is installed."""
        folder.mkdir(parents=True, exist_ok=True)
        made = {folder / name: data for name, data in self.files().items()}
        if self.rows:
            with suppress(MissingExtra):  # the SVG shows the same
                made[folder / f"{self.experiment.name}.png"] = self.picture.png()
        for path, data in made.items():
            write_file(path, data)
        return [*made]


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
                names = [*experiment.keys, *experiment.values]
                told = [f"{n} {shown(row[n])}" for n in names if row.get(n) is not None]
                setting.report(f"{experiment.name}: {', '.join(told)}")
    except KeyboardInterrupt:
        result.cut = True
    except NotRun as lack:
        result.lacks = str(lack)
    except MissingExtra as lack:
        result.lacks = f"an extra: {lack}"
    result.seconds = time.process_time() - start
    return result


def table(experiment: Experiment, rows: Rows, language: Language = "english") -> list[list[str]]:
    """The head and the lines of the table: the mean of each value over seeds, and, of several, the
    range as +-, half of what lies between the largest and the smallest."""
    columns = {**experiment.keys, **experiment.values}
    lines = [[getattr(words, language) for words in columns.values()]]
    names = experiment.korean if language == "korean" else {}
    for key, group in grouped(rows, *experiment.keys).items():
        cells = [names.get(part, shown(part, language)) for part in key]
        for name in experiment.values:
            found = [row[name] for row in group if row.get(name) is not None]
            cells.append(over_seeds(found, language))
        lines.append(cells)
    return lines


def over_seeds(values: Sequence[Any], language: Language) -> str:
    """A cell: the mean of numbers and half of their range, or the first of other values."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len({*numbers}) > 1:
        half = (max(numbers) - min(numbers)) / 2
        return f"{shown(fmean(numbers))} ± {shown(half)}"
    return shown((numbers or values)[0], language) if values else "-"


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


def change(before: float, after: float) -> Words:
    """How a share changes: "goes from 98% to 36%", "stays at 100%"."""
    first, last = f"{before:.0%}", f"{after:.0%}"
    if first == last:
        return Words(f"stays at {last}", f"{last}를 유지한다")
    return Words(f"goes from {first} to {last}", f"{first}에서 {last}로 바뀐다")


def ends(value: float, other: float, form: str = ".3f") -> Words:
    """Where one of two losses ends: "ends at 0.53 instead of 0.01", "ends at 0.003 either way"."""
    one, two = format(value, form), format(other, form)
    if one == two:
        return Words(f"ends at {one} either way", f"어느 쪽이든 {one}에서 끝난다")
    return Words(f"ends at {one} instead of {two}", f"{two} 대신 {one}에서 끝난다")
