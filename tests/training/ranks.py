"""Runs of several ranks for test_distributed: `python -m tests.training.ranks FOLDER`.

One process forks them all, because importing PyTorch in each takes longer than what is tested.

Those of `elastic` are started, watched and restarted by torchrun's own agent.
"""

import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils import tensorboard  # noqa: F401 (else each run imports it)

from tests.families import RECIPES, in_folder
from tests.recipes import tiny_recipe
from tests.training import toy
from transduct.errors import TransductError
from transduct.inference.batches import shared_by
from transduct.interfaces.program import run
from transduct.predictors import image_codes, masked_language_modeling
from transduct.runs import directory
from transduct.runs import train as runs
from transduct.tasks.base import task_class
from transduct.tasks.translation import TranslationTask
from transduct.training import step
from transduct.training.distributed import Ranks

COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier"),
    *("broadcast", "gather", "reduce", "reduce_scatter", "scatter"),
)
VALIDATED = (
    *("transformer", "rnn general", "gpt", "masked tokens and next sentence", "sequence"),
    *("tokens", "pictures", "scenes", "image codes", "text to image", "speech"),
)
RECIPE = tiny_recipe(
    model={"dropout": 0.1},
    training={"steps": 9, "warmup": 2, "checkpoint_every": 2, "timeout": 60.0},
)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fork(world, function, *arguments):
    """Run a function once per rank, in processes of their own."""
    for slow in ("torch._dynamo", "torch.distributed.checkpoint"):
        import_module(slow)  # else each rank does, with its first optimiser or checkpoint
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    children = []
    for rank in range(world):
        if not (child := os.fork()):
            os.environ.update({**place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            status = 1
            try:
                function(*arguments)
                status = 0
            finally:  # whatever it was: this process must not go on as its parent does
                if status:
                    traceback.print_exc()
                os._exit(status)
        children.append(child)
    assert not any(os.waitpid(child, 0)[1] for child in children), (function, arguments)


def counted(sent, name, collective, *given, **named):
    """Call a collective, and write its name down."""
    sent.append(name)
    return collective(*given, **named)


def course(out, steps, broken):
    """Train the toy task; leave the weights, and the collectives of this rank."""
    torch.set_num_threads(1)
    ranks, sent = Ranks.join(torch.device("cpu")), []
    for name in COLLECTIVES:
        setattr(distributed, name, partial(counted, sent, name, getattr(distributed, name)))
    seed = step.seed_generators
    if broken:  # as it was before: by the rank, and its own place
        seed = lambda *numbers: torch.manual_seed(1000 * numbers[1] + ranks.rank)  # noqa: E731
    how = {"batches_per_step": 4, "validate": None, "checkpoint_every": 1000}
    with patch.object(step, "seed_generators", seed):
        model, _ = toy.train(out, toy.network(dropout=0.5), steps=steps, **how)
    torch.save(toy.weights(model), out / f"{ranks.rank}.pt")
    (out / f"sent_{ranks.rank}_{steps}.json").write_text(json.dumps(sent))


def family(recipe, *outs, local=None, resume=False):
    """Train a recipe in each folder on this rank."""
    torch.set_num_threads(1)
    if local:
        os.environ["LOCAL_WORLD_SIZE"] = str(local)
    for out in outs:
        runs.train(recipe, out, resume, notify=lambda line: None)


def pieces(recipe, longer, out):
    """Train with pieces at once, in two parts, and on from a checkpoint of one process; then write
    a checkpoint while the disk of one rank is full."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    rank = int(os.environ["RANK"])
    family(longer, out / "once")
    family(recipe, out / "parts")
    if rank == 0:
        shutil.copytree(out / "parts", out / "to_one")
    family(longer, out / "parts", out / "from_one", resume=True)
    write = HuggingFaceStorageWriter.write_data

    def full(*given):
        if rank == 1:
            raise OSError(28, "No space left on device")
        return write(*given)

    HuggingFaceStorageWriter.write_data = full
    try:
        family(recipe, out / "full")
    except TransductError as error:
        (out / f"line_{rank}").write_text(str(error))


def validated(out, world):
    """Score a model of each task alone, with the other ranks, and where one's part is lost; leave
    the scores, and how many batches this rank has computed of how many."""
    torch.set_num_threads(1)
    ranks, found = Ranks.join(torch.device("cpu")), {}
    image_codes.AT_ONCE, masked_language_modeling.BATCH_TOKENS = 1, 40
    valid = {"generate": "reverse", "part": "valid", "count": 2}
    few = tiny_recipe(data={"valid": valid}, training={"batch_tokens": 20})
    for name, recipe in {**{name: RECIPES[name] for name in VALIDATED}, "few": few}.items():
        folder = out / f"{world}_{name}_{ranks.rank}"
        folder.mkdir(parents=True)
        with patch.dict(os.environ, WORLD_SIZE="1"):  # each rank its own
            task = task_class(recipe.task)(in_folder(recipe, folder), folder, str)
            task.prepare()
        if hasattr(task.decoding, "batch_tokens"):
            task.decoding = replace(task.decoding, batch_tokens=64)
        torch.manual_seed(1)
        model, done = task.build_model().eval(), [0, 0]
        for weights in model.parameters():  # so that answers differ
            torch.nn.init.normal_(weights, std=0.5)

        def share(work, items, done=done):
            def counted(some):
                done[0] += len(some)
                return work(some)

            done[1] += len(items)
            return ranks.share(counted, items)

        def losing(work, items, share=share):
            results = share(work, items)
            del results[1::world]
            return results

        scores = [task.evaluate(model).scores]
        for how in (share, losing):
            with shared_by(how):
                try:
                    scores.append(task.evaluate(model).scores)
                except (TransductError, KeyError, ValueError) as error:  # where one is missing
                    scores.append(str(error))
        found[name] = scores, done
    (out / f"scores_{world}_{ranks.rank}").write_text(json.dumps(found))


def elastic(restarts, out, fault, agents=1):
    """Train `RECIPE` on three ranks under torchrun's agent, or one under each of two; leave its
    exit status."""
    out.mkdir(parents=True)
    config = LaunchConfig(
        min_nodes=agents, max_nodes=agents, nproc_per_node=3 if agents == 1 else 1,
        max_restarts=restarts, start_method="fork", run_id="none" if agents == 1 else "two",
        rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{free_port()}", monitor_interval=0.2,
    )  # fmt: skip
    if agents == 2 and not (other := os.fork()):
        elastic_launch(config, train)(out, fault)
        os._exit(0)
    status = 0
    try:
        elastic_launch(config, train)(out, fault)
    except ChildFailedError:
        status = 1
    if agents == 2:
        status += os.waitpid(other, 0)[1]
    (out / "status").write_text(str(status))


def train(out, fault):
    """What a rank does: `transduct train`, and in its first attempt what has been planned."""
    torch.set_num_threads(1)
    rank, calls, loss = int(os.environ["RANK"]), [], TranslationTask.loss
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    os.dup2(os.open(out / f"lines_{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    place, recipe = out / "run", RECIPE

    def disturbed(*given):
        calls.append(rank)
        if first and len(calls) == 4:
            if (fault, rank) in (("kill 0", 0), ("kill", 1), ("forget", 1), ("agents", 1)):
                os.kill(os.getpid(), signal.SIGKILL)
            if (fault, rank) == ("hang", 1):
                time.sleep(1000)
            if (fault, rank) == ("stop", 1):  # also its other threads
                os.kill(os.getpid(), signal.SIGSTOP)
            if (fault, rank) == ("fail", 2):
                raise ValueError("the third rank is unwell")
            if (fault, rank) == ("fail 0", 0):  # while the others wait for its gradients
                raise ValueError("the first rank is unwell")
        return loss(*given)

    TranslationTask.loss = disturbed
    if fault == "forget":
        directory._is_restart = lambda directory: False
    if fault in ("hang", "stop"):
        recipe = tiny_recipe(training={**RECIPE.training, "timeout": 5.0})
    if fault == "apart" and rank == 1:
        place = out / "elsewhere"
    sys.argv[1:] = ["train"]
    try:
        run(lambda *given, **named: runs.train(recipe, place, notify=lambda line: None) and None)
    except SystemExit as error:
        if error.code:  # the agent waits for what a function returns
            raise


def main(out, only=()):
    for how, parts in (("equal", ((4, 3), (2, 6), (3, 9))), ("broken", ((2, 9),))):
        for world, steps in parts if not only else ():
            fork(world, course, out / how, steps, how == "broken")
    for restarts, fault in (
        *((0, "nothing"), (1, "kill"), (1, "kill 0"), (1, "forget")),
        *((0, "hang"), (0, "stop"), (0, "fail"), (0, "fail 0"), (0, "apart")),
    ):
        if not only or fault in only:
            elastic(restarts, out / fault, fault)
    for world in (2, 3) if not only or "validated" in only else ():
        fork(world, validated, out, world)
    if not only or "agents" in only:
        fork(2, family, RECIPE, out / "pair")
        elastic(1, out / "agents", "agents", agents=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
