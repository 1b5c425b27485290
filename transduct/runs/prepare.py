"""Prepare the corpus of a recipe once, with any number of workers, for any number of runs.

corpus directory   job.json  tokenizer.json  corpus/  parts/
                   each part is of some lines of a file, or row groups: only those of changed files
                   are made again
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transduct.bulk.engines import chosen
from transduct.config import Recipe
from transduct.data.files import names_of, require_files
from transduct.data.preparing import JOB, PARTS
from transduct.errors import require
from transduct.predictors.base import Notify, from_home, naming_files
from transduct.runs.directory import as_user_errors, locked
from transduct.runs.train import warn_of_sources
from transduct.storage import pack_json, read_object, write_file
from transduct.tasks.base import task_class

# what does not change a corpus, or is compared in it
FREE = ("root", "workers", "train", "valid", "test", "metrics", "bleu_tokenize", "corpus")


def prepare(
    recipe: Recipe,
    directory: str | Path,
    workers: int = 1,
    ray: str | None = None,
    notify: Notify = print,
) -> Path:
    """Prepare the corpus of a recipe in `directory`, or go on with it; return the directory.

    Args:
        workers: processes, or actors of Ray.
        ray: the address of a cluster, "auto" or "local".

    Raises:
        TransductError: the recipe or its data are wrong, or the directory holds something else.
        TrainingFailed: it was interrupted.
    """
    require(
        ":/" not in str(directory),  # a path has lost the second bar of an address
        f"{directory} is an address; prepare in a folder, then copy all of it but {PARTS}/ there",
    )
    directory = Path(from_home(directory))
    require(workers > 0, f"--workers is {workers}, must be at least 1")
    require(not recipe.stages, "the recipe has stages; prepare the recipe of a single one")
    kind = task_class(recipe.task)
    require(
        kind.prepares,
        f"corpora of {recipe.task} are prepared by transduct train alone; leave prepare out",
    )
    task: Any = kind(replace(recipe, data={**recipe.data, "corpus": None}), directory, notify)
    require_files(task.data)
    with locked(directory), as_user_errors(directory, "the same command"):
        _claim(task, directory)
        warn_of_sources(task)
        task.engine, task.parts = chosen(workers, ray), directory / PARTS
        with naming_files(names_of(task.data.train) or ["data.train"]):
            task.prepare()
    return directory


def _claim(task: Any, directory: Path) -> None:
    """Write what the corpus is to be, or check that it is that already.

    Raises:
        TransductError: it is another recipe's, or no corpus.
    """
    data = {key: value for key, value in asdict(task.data).items() if key not in FREE}
    tokenizer = {key: v for key, v in asdict(task.tokenizer_config).items() if key != "dropout"}
    job, path = json.loads(json.dumps({"tokenizer": tokenizer, "data": data})), directory / JOB
    if not path.exists():
        require(
            all(each.name.startswith(".") for each in directory.iterdir()),
            "holds files that are no corpus; give a new folder as --out",
            file=str(directory),
        )
        write_file(path, pack_json(job))
        return
    before = read_object(path, "a corpus that transduct prepare made")
    differing = [
        f"{section}.{key}"
        for section, ours in job.items()
        for key, value in ours.items()
        if before[section].get(key) != value
    ]
    require(
        not differing,
        f"holds a corpus with another {', '.join(differing)}; give another --out",
        file=str(directory),
    )
