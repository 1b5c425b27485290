"""Two processes train like one: the same weights up to rounding, and every example once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.training.toy import SIZES, network, train, weights
from transduct.predictors.base import load
from transduct.training.distributed import Ranks

# What each rank does: trains the toy task, tries the sums by hand, is stopped by a signal that
# reaches one rank only,
# and trains a recipe to the end; it leaves what it found.
CHILD = """
import json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
import torch
from torch import distributed
from tests.recipes import tiny_recipe
from tests.training import toy
from transduct.errors import TrainingFailed
from transduct.errors import NotFinite, TransductError
from transduct.runs import train as runs
from transduct.tasks.translation import TranslationTask
from transduct import storage
from transduct.training.distributed import Ranks

out = Path(sys.argv[1])
ranks = Ranks.join(torch.device("cpu"))
seen, now = [], 0.0

def loss(model, batch):
    global now
    seen.append(batch.number)
    now += 0.5
    return toy.loss(model, batch)

with patch("transduct.training.log.time.perf_counter", lambda: now):
    model, state = toy.train(out / "run", loss=loss, steps=6)
found = {"weights": toy.weights(model), "seen": seen, "step": state.step}
found["log"] = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
found["total"] = ranks.total({"a": 1.0 + ranks.rank} if ranks.rank == 0 else {"a": 5.0, "b": 2.0})
found["nothing"] = ranks.total({})
found["first"] = ranks.first(1.5 + ranks.rank)
found["any"] = [ranks.any(ranks.rank == 1), ranks.any(False)]
layer = torch.nn.Linear(2, 1)
if ranks.rank == 0:
    layer.weight.grad = torch.ones(1, 2)
    layer.bias.grad = torch.full((1,), 3.0)
else:
    layer.weight.grad = torch.full((1, 2), 4.0)
layer.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
ranks.sum_gradients(layer)
found["gradients"] = [layer.weight.grad, layer.bias.grad]
found["frozen"] = layer.frozen.grad
try:
    toy.train(out / ("run" if ranks.rank == 0 else "elsewhere"), steps=6)
except TransductError as error:
    found["apart"] = str(error)

def stop(event):
    if event["step"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)

write = storage.write_directory

def slow(*given, **named):
    time.sleep(1.0)
    write(*given, **named)

storage.write_directory = slow
try:
    toy.train(out / "stopped", report=stop)
except TrainingFailed as error:
    found["stopped"] = str(error)
    found["kept"] = (out / "stopped" / "checkpoints" / "step_3").exists()
storage.write_directory = write
found["resumed"] = toy.weights(toy.train(out / "stopped", steps=6)[0])
step = 0

def parting(model):  # by the other rank's validations each is better than the one before
    global step
    step += 1
    return toy.Report({"loss": 1.0 - 1e-7 * step * ranks.rank}, {})

_, state = toy.train(out / "parted", validate=parting, best="loss", patience=2, validate_every=1)
found["parted"] = (state.step, state.best_step, state.best_score)

def without_numbers(model):
    if ranks.rank == 1:
        raise NotFinite
    return toy.validate(model)

try:
    toy.train(out / "without", validate=without_numbers, divergence_tries=0)
except TrainingFailed as error:
    found["without"] = str(error)
saved = TranslationTask.save

def slowly(*given):
    time.sleep(1.0)
    return saved(*given)

TranslationTask.save = slowly
found["whole"], train_one = [], runs._train_one

def looked_at(*given):
    made = train_one(*given)
    found["whole"].append((made / "config.json").exists())
    return made

runs._train_one = looked_at
staged = replace(tiny_recipe(training={"steps": 2}), stages=[{}, {}])
found["staged"] = str(runs.train(staged, out / "staged", notify=len))
found["agree"] = [ranks.agree(5), ranks.agree(ranks.rank)]
found["said"] = []
tiny, said = tiny_recipe(training={"steps": 3, "warmup": 2}), found["said"].append
found["model"] = [str(runs.train(tiny, out / "task", resume, said))
                  for resume in (False, True)]
ranks.wait()
torch.save(found, out / f"{ranks.rank}.pt")
distributed.destroy_process_group()
"""


def run_ranks(script, *words, world=2):
    """Run the script once per rank, as torchrun would. Returns what each wrote to stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    common = {**os.environ, **place, "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert not any(process.returncode for process in processes), "\n".join(said)
    return said


LOST = """
import sys
from torch import distributed
from transduct.training.distributed import Ranks
from transduct.devices import pick_device

ranks = Ranks.join(pick_device("cpu"))
if ranks.rank == 1:
    try:
        ranks.wait()
    except RuntimeError as error:
        assert str(error) == "another rank has ended; its output, or torchrun's, says why", error
    else:
        raise AssertionError("it waited for nobody")
"""


def test_a_rank_whose_peer_has_ended_reports_it():
    run_ranks(LOST)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    run_ranks(CHILD, out)
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_ranks_end_with_the_weights_of_one_process(tmp_path, found):
    """The one process takes the batches as micro-batches; at the end of an epoch one rank has
    none."""
    model, state = train(tmp_path / "run", steps=6, accumulate=2)
    for each in found:
        assert each["step"] == state.step == 6
        torch.testing.assert_close(each["weights"], weights(model), rtol=0, atol=1e-6)
    assert all(map(torch.equal, found[0]["weights"], found[1]["weights"])), "the ranks differ"
    assert not torch.allclose(weights(model)[0], weights(network())[0], atol=1e-3), (
        "nothing was learnt"
    )


def test_every_batch_is_seen_by_one_rank_an_epoch(found):
    assert [each["seen"] for each in found] == [[0, 2, 4, 4, 2, 0], [1, 3, 3, 1]]


def test_a_step_is_logged_once_with_the_tokens_of_all_ranks(found):
    """In half a second each, about as many on the other rank as on this."""
    records = [record for record in found[0]["log"] if "loss" in record]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["tokens_per_second"] for record in records] == [
        2 * 2 * SIZES[n] for n in found[0]["seen"]
    ]


def test_counts_and_gradients_are_summed(found):
    for each in found:
        assert each["total"] == {"a": 6.0, "b": 2.0}
        assert each["nothing"] == {}
        assert each["first"] == 1.5
        assert each["any"] == [True, False]
        assert [gradient.tolist() for gradient in each["gradients"]] == [[[5.0, 5.0]], [3.0]]
        assert each["frozen"] is None


def test_ranks_agree_where_all_have_the_same_number(found):
    assert [each["agree"] for each in found] == [[True, False]] * 2


def test_a_signal_that_reaches_one_rank_stops_all(found):
    """The signal is sent by the `report` callback, which only rank 0 calls."""
    assert [each["stopped"] for each in found] == [
        "stopped by a signal at step 3; go on with --resume"
    ] * 2


def test_stopped_ranks_resume_where_they_were(found):
    for each in found:
        assert all(map(torch.equal, each["resumed"], each["weights"]))


def test_no_rank_ends_before_the_checkpoint_is_written(found):
    """A launcher would take that for a failure and kill the rank that writes."""
    assert [each["kept"] for each in found] == [True, True]


def test_ranks_without_a_shared_folder_are_refused(found):
    said = "not every rank finds the same checkpoints; give an --out that all share"
    assert [each["apart"].rpartition(": ")[2] for each in found] == [said, said]


def test_the_first_rank_prepares_and_saves_and_all_train(found):
    first, other = found
    assert [line.split(":")[0] for line in first["said"][:3]] == [
        "tokenizer.json",
        "corpus prepared",
        "model",
    ]
    assert "this run is finished" in first["said"][3]
    assert other["said"] == []
    assert first["model"] == other["model"]
    assert len(load(first["model"][0]).predict(["a b"])) == 1
    assert " of at most 400 tokens" in (Path(first["model"][0]) / "card.md").read_text(), (
        "200 for each rank"
    )


def test_ranks_agree_although_their_scores_differ_by_rounding(found):
    """Rank 0 decides: it sees no improvement, so patience ends the run of both."""
    assert [each["parted"] for each in found] == [(3, 3, 1.0)] * 2


def test_what_one_rank_finds_without_numbers_none_goes_on_with(found):
    assert "another rank found no numbers" in found[0]["without"]
    assert "not finite" in found[1]["without"]


def test_a_stage_begins_when_the_one_before_is_saved(found):
    """Rank 0 saves it, slowly here, while the other rank has nothing to do."""
    assert found[0]["staged"] == found[1]["staged"]
    assert found[0]["whole"][:2] == found[1]["whole"][:2] == [True, True]
    assert len(load(found[0]["staged"]).predict(["a b"])) == 1


def test_ranks_on_gpus_talk_by_nccl_and_wait_for_a_long_preparation(monkeypatch):
    told = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        distributed,
        "init_process_group",
        lambda name, timeout, device_id: told.append((name, timeout.days, device_id)),
    )
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    device = torch.device("cuda", 1)
    assert Ranks.join(device) == Ranks(1, 2, device)
    assert told == [("nccl", 1, device)]


def test_alone_there_is_nothing_to_sum(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = Ranks.join(torch.device("cpu"))
    assert ranks == Ranks(rank=0, world=1)
    assert ranks.first(0.5) == 0.5
    assert ranks.total({"a": 0.5}) == {"a": 0.5}
    assert ranks.any(True)
    assert not ranks.any(False)
    ranks.sum_gradients(torch.nn.Linear(1, 1))
    assert ranks.agree(3)
    ranks.wait()
