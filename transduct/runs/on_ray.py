"""Training on a cluster of Ray: Ray Train starts the ranks, and starts all again when one ends.

Not in `runs.train`, which each rank runs as torchrun's ranks do.
"""

import os
import re
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transduct.bulk.engines import cluster, require_resources
from transduct.config import Recipe, stages_of
from transduct.errors import TrainingFailed, TransductError, needing, require
from transduct.predictors.base import from_home
from transduct.runs.train import train
from transduct.storage import remove
from transduct.training.distributed import BACKENDS, PATIENCE

RESTARTS = 1000  # a run on machines that may be taken away has many


def train_on_ray(
    recipe: Recipe, directory: str | Path, resume: bool, address: str, ranks: str
) -> Path:
    """Train a recipe on a cluster of Ray; see `train`.

    Args:
        address: of a cluster, "auto" for the one that runs, or "local" for one on this machine.
        ranks: their number, or the least and the most, such as 4:16.

    Raises:
        TransductError: the call or the recipe is wrong, or Ray cannot be reached.
        TrainingFailed: training diverged or was stopped.
    """
    parts = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", ranks)
    least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (1, 0)
    message = f"--ranks is '{ranks}'; give a number, or the least and the most, such as 4:16"
    require(least <= most, message)
    with needing("cluster", "ray"):
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
        from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError
    directory = Path(from_home(directory)).absolute()
    scratch = directory.with_name(f".{directory.name}.ray.part")
    device = str(stages_of(recipe)[0].training.get("device", "auto"))
    call = {"recipe": recipe, "directory": directory, "scratch": scratch, "resume": resume}
    remove(scratch)
    scratch.mkdir(parents=True)
    # Ray waits so long for the machines of the ranks. A run of a fixed number ends then.
    # Another one goes on with the machines that are left, of which Ray may learn late.
    fixed = least == most
    limit: Any = {"controller_failure_limit": 0 if fixed else RESTARTS}
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600" if fixed else "60")
    try:
        with cluster(address, most + 1) as ray:
            # what the machines of the cluster have, whatever this one has
            gpus = bool(ray.cluster_resources().get("GPU")) if device == "auto" else device != "cpu"
            require_resources(least, least if gpus else 0)
            trainer = TorchTrainer(
                partial(_rank, uuid.uuid4().hex),
                train_loop_config=call,
                torch_config=TorchConfig(
                    BACKENDS["cuda" if gpus else "cpu"], timeout_s=int(PATIENCE.total_seconds())
                ),
                scaling_config=ScalingConfig(
                    num_workers=least if fixed else (least, most),  # type: ignore[arg-type]
                    use_gpu=gpus,
                ),
                run_config=RunConfig(
                    name="ranks",
                    storage_path=str(scratch),
                    failure_config=FailureConfig(RESTARTS, **limit),
                ),
            )
            trainer.fit()
        if refused := [path.read_text() for path in sorted(scratch.glob("refused_*"))]:
            raise TransductError(refused[0])
    except ControllerError as error:  # else it would wait for a machine that is lost for ever
        reason = str(error.controller_failure).partition(". ")[0]
        raise TrainingFailed(
            f"Ray cannot start {ranks} ranks ({reason}); see that the cluster has their machines, "
            "or give fewer --ranks, and go on with {resume}"
        ) from error
    except TrainingFailedError as error:
        *_, reason = str(error).strip().splitlines()
        raise TrainingFailed(f"{reason}; go on with {{resume}}") from error
    finally:
        remove(scratch)
    return directory / "model"


def _rank(launcher: str, call: Mapping[str, Any]) -> None:
    """What each rank does. A refusal is left in a file, because trying again would not help."""
    os.environ["TORCHELASTIC_RUN_ID"] = launcher  # the next attempt resumes what this one begins
    rank, scratch = os.environ["RANK"], call["scratch"]
    try:
        train(call["recipe"], call["directory"], call["resume"])
    except TrainingFailed:
        raise
    except TransductError as error:
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / f"refused_{rank}").write_text(str(error))
