"""Translating, scoring and predicting many files: `translate`, `score`, `predict`.

A job is a folder of results. In its folder `.transduct` stand what the job is, the digest of each
input, and the parts that are done. What is done is skipped, so a job that was stopped goes on when
it is called again, and processes on several machines may each do some of its shards.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transduct.bulk import engines
from transduct.bulk.shards import (
    Document,
    Shard,
    files_of,
    format_of,
    join,
    shards_of,
    texts_of,
)
from transduct.data.splits import Engine
from transduct.devices import pick_device
from transduct.errors import TransductError, placing, require
from transduct.predictors.base import json_value, load, model_directory
from transduct.predictors.isolation import isolate_failures
from transduct.storage import pack_json, read_object, remove, require_folder, write_file

STATE = ".transduct"  # the folder of a job beside its results
JOB, INPUT, DONE = "job.json", "input.json", "done.json"
BLOCK = 1 << 22

Stamp = tuple[int, int]  # the size of a file, and the time of its last change
Verb = Literal["translate", "score", "predict", "evaluate"]


@dataclass(frozen=True)
class Call:
    """What is asked of a model for every row.

    Attributes:
        columns: those of the texts; not used for files of lines. `score` and
            `evaluate` take two.
        n_best, scores: further columns of `translate`: alternatives, and log-probabilities.
        skip_errors: whether a row that is wrong gets an empty answer and is counted.
        options: of the verb.
    """

    verb: Verb
    model: str
    columns: tuple[str, ...] = ("text",)
    n_best: int = 1
    scores: bool = False
    skip_errors: bool = False
    device: str = "auto"
    precision: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number, names = "one column", "text"
        if self.verb in ("score", "evaluate"):
            number, names = "two columns", "source,target"
        require(
            len(self.columns) == len(names.split(",")),
            f"{self.verb} reads {number}; write --column {names}",
        )

    @property
    def new(self) -> dict[str, Callable[[Any], Any]]:
        """The new columns, and how each is made of an output."""
        if self.verb == "score":
            return {"score": lambda output: round(output, 6)}
        if self.verb == "predict":
            return {"prediction": _prediction}
        found: dict[str, Callable[[Any], Any]] = {}
        if self.scores:
            found["score"] = lambda output: round(output.score, 6)
        found["translation"] = lambda output: output.text
        if self.n_best > 1:
            found["alternatives"] = lambda output: [
                {"text": each.text, "score": round(each.score, 6)} for each in output.alternatives
            ]
        return found


def _prediction(output: Any) -> str:
    value = json_value(output)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Progress:
    """How far a job is: rows and shards done by this call, shards it has to do, rows that failed in
    this call or before, the first error of this call, and its files without a row."""

    rows: int = 0
    failed: int = 0
    shards: int = 0
    of: int = 0
    error: str = ""
    empty: tuple[str, ...] = ()


class Worker:
    """A loaded model that does shards."""

    def __init__(self, call: Call, out: Path) -> None:
        self.call, self.out = call, out
        self.model = loaded(call)
        self._outputs(False, [])  # what is wrong with the call is of no row

    def __call__(self, shard: Shard) -> tuple[Shard, Progress]:
        """Answer the rows of a shard and keep them as a part of its file.

        Raises:
            TransductError: a row is wrong and not skipped, or the part cannot be written.
        """
        kind, call = format_of(shard.name), self.call
        rows = kind.rows(shard)
        for name in call.new if kind.columns else ():
            require(
                not any(name in row for row in rows),
                f"has a column '{name}' already; rename it",
                file=shard.name,
            )
        columns = [texts_of(shard, rows, column) for column in call.columns]
        found: list[Any] = [
            next((cell for cell in cells if isinstance(cell, TransductError)), cells)
            for cells in zip(*columns)
        ]
        right = [cells for cells in found if isinstance(cells, tuple)]
        answers = iter(isolate_failures(partial(self._outputs, kind.marked), right))
        outputs = [next(answers) if isinstance(cells, tuple) else cells for cells in found]
        errors = [
            output.at(input=None, file=shard.name, line=kind.line(shard, index))
            for index, output in enumerate(outputs)
            if isinstance(output, TransductError)
        ]
        if errors and not call.skip_errors:
            raise errors[0].adding("; or leave such rows empty with --skip-errors")
        results = {
            name: [None if isinstance(o, TransductError) else cell(o) for o in outputs]
            for name, cell in call.new.items()
        }
        if kind.marked:
            parts = [() if isinstance(o, TransductError) else o.parts for o in outputs]
            results = {"translation": parts}
        elif "translation" in results:
            results["translation"] = [text or "" for text in results["translation"]]
        part = f"{shard.place:07}_{len(rows)}_{len(errors)}"
        content = kind.part(shard, rows, results)
        with placing(shard.name):
            write_file(state_of(self.out, shard.name) / part, content)
        return shard, Progress(len(rows), len(errors), 1, 1, str(errors[0]) if errors else "")

    def _outputs(self, marked: bool, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        call, texts = self.call, [row[0] for row in rows]
        if marked:
            return list(self.model.translate(texts, format="marked", **call.options))
        if call.verb in ("translate", "evaluate"):
            return list(self.model.translate(texts, call.n_best, **call.options))
        if call.verb == "score":
            return list(self.model.score(texts, [row[1] for row in rows], **call.options))
        return list(self.model.predict(texts, **call.options))


def loaded(call: Call) -> Any:
    """The model of a call; of `evaluate` one that translates."""
    verb = "translate" if call.verb == "evaluate" else call.verb
    return load(call.model, call.device, call.precision, verb)


def run(
    call: Call,
    inputs: Sequence[str],
    out: str | Path,
    workers: int | None = None,
    ray: str | None = None,
    part: tuple[int, int] | None = None,
) -> Iterator[Progress]:
    """Do a job, or go on with it; yields after each shard how far this call is.

    Args:
        inputs: files, folders or patterns: of text, Parquet, JSON lines, TSV or CSV.
        out: the folder of the results, which have the names and formats of the inputs.
        workers: processes, or actors of Ray; by default one a GPU, else one.
        ray: the address of a cluster, "auto" or "local".
        part: (3, 64) does the third of 64 parts of the shards.

    Raises:
        TransductError: the input, the call or the folder is wrong, or another job's.
    """
    out = Path(out)
    require_folder(out)
    files = files_of(inputs)
    _check(call, files, part, workers)
    inside = any(out.absolute().is_relative_to(Path(each).absolute()) for each in inputs)
    require(
        not inside and not any(file.is_relative_to(out.absolute()) for file in files.values()),
        "inputs and results stand in one folder; give another --out",
    )
    _claim(call, out)
    stamps = {name: _begin(out, name, file) for name, file in files.items()}
    shards = shards_of(files)
    if part is not None:
        shards = shards[part[0] - 1 :: part[1]]
    waiting = [shard for shard in shards if not _is_done(out, shard)]
    done = Progress(failed=sum(_failed(out, name) for name in files), of=len(waiting))
    yield done
    work = partial(Worker, call, out)
    for shard, more in _engine(call, workers, ray)(work, waiting) if waiting else ():
        rows, failed = done.rows + more.rows, done.failed + more.failed
        error, empty = done.error or more.error, done.empty
        empty += () if more.rows else (shard.name,)  # no other shard is without rows
        done = Progress(rows, failed, done.shards + 1, done.of, error, empty)
        if _stamp(shard.file) != stamps[shard.name]:
            _forget(out, shard.name)
            raise TransductError("has changed since the job began; run it again", file=shard.name)
        _finish(out, shard.name, files[shard.name])
        yield done
    for name, file in files.items():
        _finish(out, name, file)


def evaluated(call: Call, inputs: Sequence[str], out: str | Path) -> Any:
    """The report over all the answers of a job that is done, as one process would give it.

    Raises:
        TransductError: other processes still work on a part of it.
    """
    names = files_of(inputs)
    missing = [name for name in names if not (Path(out) / name).exists()]
    require(not missing, f"{len(missing)} files are not done; run the other parts")
    columns: list[list[str]] = [[], [], []]
    for shard in shards_of({name: Path(out) / name for name in names}):
        rows = format_of(shard.name).rows(shard)
        found = [texts_of(shard, rows, name) for name in (*call.columns, "translation")]
        for row in zip(*found):
            if not any(isinstance(cell, TransductError) for cell in row):
                for column, cell in zip(columns, row):
                    column.append(str(cell))
    sources, references, outputs = columns
    return loaded(call).evaluate((sources, [[each] for each in references]), outputs=outputs)


def _engine(call: Call, workers: int | None, ray: str | None) -> Engine:
    import torch

    gpus = torch.cuda.device_count() if pick_device(call.device).type == "cuda" else 0
    return engines.chosen(workers or max(1, gpus), ray, 1 if gpus else 0)


def _check(
    call: Call, files: Mapping[str, Path], part: tuple[int, int] | None, workers: int | None
) -> None:
    right = part is None or 1 <= part[0] <= part[1]
    require(right, "--part is wrong; give such as 3/64, the third of 64 parts")
    require(workers is None or workers > 0, f"--workers is {workers}, must be at least 1")
    for name in files:
        table, document = format_of(name).columns, isinstance(format_of(name), Document)
        require(
            table or len(call.columns) == 1,
            "has no columns; give pairs in Parquet, JSON lines, TSV or CSV",
            file=name,
        )
        require(
            table or call.n_best == 1,
            "a line has one translation; leave --n-best out, or give a table",
            file=name,
        )
        require(
            not document or (call.verb == "translate" and not call.scores),
            "a document is only translated, and comes back whole",
            file=name,
        )


def state_of(out: Path, name: str) -> Path:
    """The folder of what is done of a file."""
    return out / STATE / hashlib.blake2b(os.fsencode(name), digest_size=12).hexdigest()


def _claim(call: Call, out: Path) -> None:
    """Make the folder of a job, or check that it is this job's.

    Raises:
        TransductError: it holds something else, or another job's results.
    """
    model = _digest(sorted(p for p in model_directory(call.model).rglob("*") if p.is_file()))
    job = json.loads(json.dumps({**asdict(call), "model": model, "device": None}))
    path = out / STATE / JOB
    require(out.is_dir() or not out.exists(), f"{out}: this is a file; --out names a folder")
    if path.exists():
        before = read_object(path, "a job")
        other = [key for key in job if before.get(key) != job[key]]
        require(
            not other or not any(out.glob(f"{STATE}/*/[0-9d]*")),  # neither a part nor a file
            f"{out}: holds the results of another job, with another {', '.join(other)}; give "
            "another --out, or remove the folder",
        )
    else:
        require(
            not out.exists() or not any(out.iterdir()),
            f"{out}: is not empty and holds no job; give a new folder as --out",
        )
    write_file(path, pack_json(job), parents=True)


def _begin(out: Path, name: str, file: Path) -> Stamp:
    """Make the folder of a file; what is done of another content is removed. Returns when the file
    was changed last."""
    folder, stamp = state_of(out, name), _stamp(file)
    # a name that is not UTF-8 is shown as far as it can be
    content = {"name": os.fsencode(name).decode(errors="replace"), "digest": _digest([file])}
    path = folder / INPUT
    lost = (folder / DONE).exists() and not (out / name).exists()
    if lost or (path.exists() and read_object(path, "an input") != content):
        _forget(out, name)
    if not path.exists():
        write_file(path, pack_json(content), parents=True)
    return stamp


def _forget(out: Path, name: str) -> None:
    """Remove what is done of a file. What it was done of goes last, so that a kill in between makes
    no part pass for one of another content."""
    folder = state_of(out, name)
    for done in folder.glob("[!.]*"):
        if done.name != INPUT:
            done.unlink(missing_ok=True)
    remove(out / name)
    remove(folder)


def _stamp(file: Path) -> Stamp:
    return file.stat().st_size, file.stat().st_mtime_ns


def _digest(files: Sequence[Path]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for file in files:
        found.update(os.fsencode(f"{file.name}\n{file.stat().st_size}\n"))
        with file.open("rb") as stream:
            while block := stream.read(BLOCK):
                found.update(block)
    return found.hexdigest()


def _is_done(out: Path, shard: Shard) -> bool:
    folder = state_of(out, shard.name)
    return (folder / DONE).exists() or any(folder.glob(f"{shard.place:07}_*"))


def _finish(out: Path, name: str, file: Path) -> None:
    """Write the results of a file once all its parts are there; the parts then go."""
    folder = state_of(out, name)
    if (folder / DONE).exists():
        return
    parts = sorted(folder.glob("[0-9]*_*_*"))
    if len(parts) < len(format_of(name).cuts(file)) - 1:
        return
    failed = _failed(out, name)
    join(name, parts, out / name)
    write_file(folder / DONE, pack_json({"failed": failed}))
    for part in parts:
        remove(part)


def _failed(out: Path, name: str) -> int:
    """How many rows of a file have failed so far."""
    folder = state_of(out, name)
    if (folder / DONE).exists():
        return int(read_object(folder / DONE, "a file that is done")["failed"])
    return sum(int(part.name.split("_")[2]) for part in folder.glob("[0-9]*_*_*"))
