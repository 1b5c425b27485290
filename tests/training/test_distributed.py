"""Two processes train like one: the same weights up to rounding, and every example once. Gradients
are summed after the backward pass, during it, or where each rank holds pieces of the weights."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.families import RECIPES, in_folder
from tests.recipes import tiny_recipe
from tests.training import toy
from tests.training.ranks import RECIPE, VALIDATED, family, fork, pieces
from tests.training.toy import SIZES, network, train, weights
from transduct.errors import TransductError
from transduct.predictors.base import load
from transduct.runs.train import train as train_recipe
from transduct.storage import WEIGHTS, load_weights, read_tensors
from transduct.tasks.base import task_class
from transduct.training import distributed as module
from transduct.training.checkpoints import Checkpoints
from transduct.training.distributed import Combined, Ranks, combined

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
from transduct.training.step import Stepper

out = Path(sys.argv[1])
ranks = Ranks.join(torch.device("cpu"))
seen, now = [], 0.0

def loss(model, batch):
    global now
    seen.append(batch.number)
    now += 0.5
    return toy.loss(model, batch)

with patch("transduct.training.trainer.time.perf_counter", lambda: now):
    model, state = toy.train(out / "run", loss=loss, steps=6)
found = {"weights": toy.weights(model), "seen": seen, "step": state.step}
found["log"] = [json.loads(line) for line in (out / "run" / "log.jsonl").read_text().splitlines()]
ranks = ranks.within(60.0)
found["told"] = ranks.exchange({"a": ranks.rank + 0.1})()
try:
    ranks.exchange("x" * 3000)
except TrainingFailed as error:
    found["long"] = str(error)
def squares(numbers):
    if 9 in numbers:
        raise TransductError("nine is too much", input=9)
    return [(ranks.rank, number**2) for number in numbers]

found["shared"] = [ranks.share(squares, range(count)) for count in (5, 1, 0)]
found["wrong"] = []
for numbers in ([1, 9, 3], range(2 + ranks.rank)):
    try:
        ranks.share(squares, numbers)
    except (TransductError, TrainingFailed) as error:
        found["wrong"].append(str(error))
found["first"] = ranks.first(1.5 + ranks.rank)
found["any"] = [ranks.any(ranks.rank == 1), ranks.any(False)]
layer = torch.nn.Linear(2, 1)
if ranks.rank == 0:
    layer.weight.grad = torch.ones(1, 2)
    layer.bias.grad = torch.full((1,), 3.0)
else:
    layer.weight.grad = torch.full((1, 2), 4.0)
layer.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
found["loss"] = float(ranks.sum_gradients(layer, torch.tensor(1.0 + ranks.rank)))
found["gradients"] = [layer.weight.grad, layer.bias.grad]
found["frozen"] = layer.frozen.grad

def odd(model, batch):  # one of its weights is used by one rank alone, and one by none
    found = toy.loss(model["net"], batch)["tokens"]
    return {"tokens": (found[0] + ranks.rank * model["odd"].weight.sum(), *found[1:])}

model = torch.nn.ModuleDict({"net": toy.network()})
model.update({name: torch.nn.Linear(1, 1, bias=False) for name in ("odd", "never")})
stepper = Stepper(model, replace(toy.CONFIG, clip=0.0), odd, ranks)
found["odd loss"] = stepper.take([toy.examples(1)] * 2, 1, 0.1, {"tokens": 28.0}).loss()
found["odd"] = [model[name].weight.grad for name in ("odd", "never")]
found["same"] = toy.weights(model)
try:
    toy.train(out / ("run" if ranks.rank == 0 else "elsewhere"), steps=6)
except TransductError as error:
    found["apart"] = str(error)

def stop(event):
    if event["step"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)

write = storage.write_directory

def slow(*given, **named):
    time.sleep(0.3)
    write(*given, **named)

storage.write_directory = slow
try:
    toy.train(out / "stopped", report=stop)
except TrainingFailed as error:
    found["stopped"] = str(error)
    found["kept"] = len([*(out / "stopped" / "checkpoints").glob("step_[45]")]) == 1
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
    time.sleep(0.3)
    saved(*given)

TranslationTask.save = slowly
found["whole"], train_one = [], runs._train_one

def looked_at(*given):
    made = train_one(*given)
    found["whole"].append((made / "config.json").exists())
    return made

runs._train_one = looked_at
staged = replace(tiny_recipe(training={"steps": 2}), stages=[{}, {}])
found["staged"] = str(runs.train(staged, out / "staged", notify=len))
ranks.require_equal("the day", "Monday", "wait")
try:
    ranks.require_equal("the day", ["Monday", "Friday"][ranks.rank], "wait")
except TransductError as error:
    found["unequal"] = str(error)
found["said"] = []
tiny, said = tiny_recipe(training={"steps": 3, "warmup": 2}), found["said"].append
found["model"] = [str(runs.train(tiny, out / "task", resume, said))
                  for resume in (False, True)]
ranks.wait()
torch.save(found, out / f"{ranks.rank}.pt")
distributed.destroy_process_group()
"""


def child(out):
    """What one rank does; it writes errors and warnings to a file."""
    os.dup2(os.open(out / f"lines_{os.environ['RANK']}", os.O_CREAT | os.O_WRONLY), 2)
    sys.argv[1:] = [str(out)]
    exec(CHILD, {"__name__": "child"})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    fork(2, child, out)
    assert "find_unused" not in "".join(path.read_text() for path in out.glob("lines_*"))
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
    """But for fillers: the last of an epoch's five."""
    assert [each["seen"] for each in found] == [[0, 2, 4, 4, 2, 0], [1, 3, 4, 3, 1, 0]]


def test_a_step_is_logged_once_with_the_tokens_of_all_ranks(found):
    """In half a second each."""
    records = [record for record in found[0]["log"] if "loss" in record]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    both = [SIZES[0] + SIZES[1], SIZES[2] + SIZES[3], SIZES[4]]
    backwards = [SIZES[4] + SIZES[3], SIZES[2] + SIZES[1], SIZES[0]]
    assert [record["tokens_per_second"] / 2 for record in records] == [*both, *backwards]


def test_counts_and_gradients_are_summed(found):
    for each in found:
        assert each["told"] == [{"a": 0.1}, {"a": 1.1}]
        assert each["long"] == (
            "a message between ranks has 3002 bytes, at most 2048 are sent; give the loss fewer or "
            "shorter names of terms"
        )
        assert each["loss"] == 3.0
        assert each["first"] == 1.5
        assert each["any"] == [True, False]
        assert [gradient.tolist() for gradient in each["gradients"]] == [[[5.0, 5.0]], [3.0]]
        assert each["frozen"] is None


def test_what_is_shared_is_computed_once_and_known_to_all(found):
    """Also by more ranks than there are parts; what one rank finds wrong is raised on all."""
    for each in found:
        fives = [(0, 0), (1, 1), (0, 4), (1, 9), (0, 16)]
        assert each["shared"] == [fives, [(0, 0)], []]
        unequal = "the ranks have 2 to 3 parts of a validation; give all the same data and options"
        assert each["wrong"] == ["input 10: nine is too much", unequal]


def test_a_weight_that_one_rank_uses_moves_on_all(found):
    """And one that none uses stays."""
    one, other = found
    assert [each["odd"][1] for each in found] == [None, None]
    for each in found:  # of two batches on one rank
        torch.testing.assert_close(each["odd"][0], torch.tensor([[2 / 28]]))
    assert one["odd loss"] == other["odd loss"]
    assert all(map(torch.equal, one["same"], other["same"])), "the ranks differ"


def test_ranks_with_different_values_are_refused_with_both(found):
    message = "the day is Monday on rank 0 and Friday on rank 1; wait"
    assert [each["unequal"] for each in found] == [message] * 2


def test_a_signal_that_reaches_one_rank_stops_all(found):
    """The signal is sent by the `report` callback, which only rank 0 calls."""
    stopped = "stopped by a signal at step {}; go on with --resume"
    assert [each["stopped"] for each in found] in [[stopped.format(step)] * 2 for step in (4, 5)]


def test_stopped_ranks_resume_where_they_were(found):
    for each in found:
        assert all(map(torch.equal, each["resumed"], each["weights"]))


def test_no_rank_ends_before_the_checkpoint_is_written(found):
    """A launcher would take that for a failure and kill the rank that writes."""
    assert [each["kept"] for each in found] == [True, True]


def test_ranks_without_a_shared_folder_are_refused(found):
    said = "the newest checkpoint is 6 on rank 0 and None on rank 1; give an --out that all share"
    assert [each["apart"].partition(" (")[0] for each in found] == [said, said]


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
    assert all("not finite" in each["without"] for each in found)


def test_a_stage_begins_when_the_one_before_is_saved(found):
    """Rank 0 saves it, slowly here, while the other rank has nothing to do."""
    assert found[0]["staged"] == found[1]["staged"]
    assert found[0]["whole"][:2] == found[1]["whole"][:2] == [True, True]
    assert len(load(found[0]["staged"]).predict(["a b"])) == 1


def test_ranks_on_gpus_talk_by_nccl_and_wait_for_a_long_preparation(monkeypatch):
    told = []
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "own_store", lambda: "store")
    monkeypatch.setattr(
        distributed, "init_process_group", lambda *given, **named: told.append((*given, named))
    )
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    device = torch.device("cuda", 1)
    assert Ranks.join(device) == Ranks(1, 2, device)
    [(backends, named)] = told
    assert backends == "cpu:gloo,cuda:nccl"
    assert (named["timeout"].days, named["device_id"], named["store"]) == (1, device, "store")


def test_ranks_of_agents_that_count_their_attempts_differently_find_one_another(monkeypatch):
    """Though the store of torchrun has the address of an attempt that is gone."""
    local = partial(distributed.TCPStore, "127.0.0.1", is_master=True, wait_for_workers=False)
    gone, shared = local(0), local(0)
    shared.set("transduct", str(gone.port))
    del gone
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
    for name, value in zip(names, ("127.0.0.1", str(shared.port), "2", "True")):
        monkeypatch.setenv(name, value)
    stores = []
    for rank, attempt in (("0", "2"), ("1", "1")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        stores.append(module.within_seconds(5.0, module.own_store))
    stores[0].set("a", "b")
    assert stores[1].get("a") == b"b"


def test_alone_there_is_nothing_to_sum(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = Ranks.join(torch.device("cpu"))
    assert ranks == Ranks(rank=0, world=1)
    assert ranks.first(0.5) == 0.5
    assert ranks.exchange({"a": 0.5})() == [{"a": 0.5}]
    assert ranks.within(1.0) is ranks
    ranks.require_equal("the day", "Monday", "wait")
    assert ranks.any(True)
    assert not ranks.any(False)
    assert ranks.sum_gradients(torch.nn.Linear(1, 1), torch.tensor(0.5)) == 0.5
    ranks.wait()


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """What the runs of `tests.training.ranks` have left."""
    out = tmp_path_factory.mktemp("forked")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.ranks", str(out)]
    root = Path(__file__).parents[2]
    subprocess.run(command, env=environment, cwd=root, check=True, timeout=900)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("how", ["equal", "broken"])
def test_a_run_keeps_its_course_on_other_numbers_of_ranks(tmp_path, forked, how):
    """From 4 ranks to 2 and to 3, with dropout; not so if dropout depended on the rank."""
    alone = {"batches_per_step": 4, "validate": None, "checkpoint_every": 1000}
    model, _ = train(tmp_path / "alone", network(dropout=0.5), steps=9, **alone)
    found = torch.load(forked / how / "0.pt", weights_only=True)
    same = all(torch.allclose(*pair, rtol=0, atol=1e-5) for pair in zip(found, weights(model)))
    assert same == (how == "equal")


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 6, 9])
def test_a_step_takes_one_small_message_and_two_sums(forked, steps):
    """Of the gradients, though a rank has two batches, and of the loss. Four more messages are of
    the start and the end."""
    sent = json.loads((forked / "equal" / f"sent_1_{steps}.json").read_text())
    assert Counter(sent) == {"all_reduce": 3 + 3, "all_gather": 3 + 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*VALIDATED, "few"])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_a_validation_and_have_the_scores_of_one_process(forked, world, name):
    """To the last digit; not so if a rank's part is lost. Three ranks have fewer than three
    examples, too."""
    files = [forked / f"scores_{world}_{rank}" for rank in range(world)]
    found = [json.loads(file.read_text())[name] for file in files]
    for [alone, together, lost], _ in found:
        assert together == alone
        assert lost != alone
    computed, of = zip(*(done for _, done in found))
    assert sum(computed) == max(of) == min(of)
    assert max(computed) < max(of), "a rank did all"


@pytest.mark.slow
def test_a_run_under_torchrun_has_the_scores_of_one_process(forked):
    """Its last validation is that of the weights it ends with."""
    run = forked / "nothing" / "run"
    task = task_class("translation")(RECIPE, run, str)
    task.prepare()
    model = task.build_model().eval()
    load_weights(model, read_tensors(run / "model" / WEIGHTS), run)
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    [chosen] = [each for each in records if "scores_by_count" in each]
    scores = task.evaluate(model).scores
    assert scores[chosen["metric"]] == chosen["scores_by_count"][str(len(chosen["averaged"]))]


def lines_of(folder):
    """The last line of each rank."""
    return [path.read_text().splitlines()[-1:] for path in sorted(folder.glob("lines_*"))]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "whole"), [("kill", True), ("kill 0", True), ("forget", False)])
def test_a_run_goes_on_by_itself_when_a_rank_is_killed(forked, fault, whole):
    """To the same bytes, with three ranks; not so if an attempt does not know the one before."""
    folder, weights_file = forked / fault, Path("run", "model", "model.safetensors")
    assert (folder / "status").read_text() == str(int(not whole)), lines_of(folder)
    if whole:
        expected = (forked / "nothing" / weights_file).read_bytes()
        assert (folder / weights_file).read_bytes() == expected
    else:
        assert "holds another run" in "".join(*lines_of(folder)[:1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "ranks", "found"),
    [
        ("hang", (0, 2), "rank 1 has not answered for 5 seconds (training.timeout); stop it, and"),
        ("stop", (0, 2), "rank 1 has not answered for 5 seconds (training.timeout); stop it, and"),
        ("fail", (0, 1, 2), "the third rank is unwell"),
        ("fail 0", (0, 1, 2), "the first rank is unwell"),
        ("apart", (0, 1, 2), "/run on rank 0 and "),
    ],
)
def test_every_rank_that_is_left_names_the_one_that_is_not(forked, fault, ranks, found):
    lines = lines_of(forked / fault)
    assert (forked / fault / "status").read_text() == "1"
    assert all(found in "".join(lines[rank]) for rank in ranks), lines


@pytest.mark.slow
def test_ranks_of_two_agents_go_on_when_one_is_killed(forked):
    """As on two machines: an agent of torchrun on each, here both on one."""
    assert (forked / "agents" / "status").read_text() == "0", lines_of(forked / "agents")
    model = Path("model", "model.safetensors")
    expected = (forked / "pair" / model).read_bytes()
    assert (forked / "agents" / "run" / model).read_bytes() == expected


# how gradients are summed

# Gradients of some biases are 0 but for rounding; Adam would divide that by itself.
STEPS = {
    "steps": 3, "batches_per_step": 2, "validate_every": 0, "average": 1, "timeout": 60.0,
    "epsilon": 1e-3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def weights_in(run):
    return read_tensors(run / "model" / "model.safetensors")


def assert_close(found, expected):
    torch.testing.assert_close(weights_in(found), weights_in(expected), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("world", "captured"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("shard", ["none", "all"])
def test_gradients_travel_after_the_pass_where_hooks_are_of_no_use(world, captured, shard):
    """Alone there is nothing to send, and a replayed graph runs no hooks."""
    found = combined(toy.network(), toy.loss, Ranks(world=world), captured, shard)
    assert type(found) is Combined


def test_one_machine_reads_nothing_of_this():
    """Not FSDP2, not distributed checkpoints and not Ray."""
    code = (
        "import sys, transduct.runs.train, transduct.interfaces.cli;"
        "print([m for m in ('torch.distributed.fsdp', 'torch.distributed.checkpoint', 'ray')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "all"])
@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_train_every_family_like_one_process(tmp_path, name, shard):
    """To rounding, with dropout: what a step draws depends on no rank."""
    recipe = in_folder(RECIPES[name], tmp_path)
    recipe = replace(recipe, training={**recipe.training, **STEPS, "shard": shard})
    train_recipe(recipe, tmp_path / "alone", notify=len)
    fork(2, family, recipe, tmp_path / "two")
    assert_close(tmp_path / "two", tmp_path / "alone")


@pytest.mark.slow
def test_four_ranks_hold_pieces_within_their_machines(tmp_path):
    """Two machines of two ranks."""
    recipe = tiny_recipe(training={**STEPS, "shard": "node", "batches_per_step": 4})
    train_recipe(recipe, tmp_path / "alone", notify=len)
    fork(4, partial(family, local=2), recipe, tmp_path / "four")
    assert_close(tmp_path / "four", tmp_path / "alone")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What two ranks with pieces have left, and one process beside them."""
    out, how = tmp_path_factory.mktemp("pieces"), {**STEPS, "shard": "all", "recompute": True}
    how |= {"ema": 0.5, "validate_every": 2, "checkpoint_every": 2}
    few = {"valid": {"generate": "reverse", "part": "valid", "count": 2}, "max_length": 20}
    recipe, longer = (tiny_recipe(data=few, training={**how, "steps": n}) for n in (2, 4))
    torch.set_num_threads(1)
    train_recipe(recipe, out / "from_one", notify=len)
    train_recipe(longer, out / "alone", notify=len)
    fork(2, pieces, recipe, longer, out)
    train_recipe(longer, out / "to_one", True, notify=len)
    return out


def test_a_run_in_pieces_is_resumed_to_the_same_bytes(sharded):
    once, parts = (weights_in(sharded / name) for name in ("once", "parts"))
    assert all(torch.equal(once[name], parts[name]) for name in once)


@pytest.mark.parametrize("run", ["once", "to_one", "from_one"])
def test_pieces_and_whole_weights_train_alike_and_follow_one_another(sharded, run):
    """Of one process's checkpoint two ranks take pieces, and of theirs it takes whole weights."""
    assert_close(sharded / run, sharded / "alone")


def test_each_rank_writes_its_own_pieces(sharded):
    names = {path.name for path in (sharded / "once" / "checkpoints" / "step_4").iterdir()}
    shards = {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)}
    assert names == {"state.json", *shards}


def test_a_damaged_piece_is_noticed(sharded, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(sharded / "once" / "checkpoints", folder)
    one, other = sorted((folder / "step_4").glob("shard-*"))
    content = bytearray(one.read_bytes())
    content[-1] ^= 1
    one.write_bytes(content)
    checkpoints = Checkpoints(folder)
    with pytest.raises(TransductError, match=r"00001\.safetensors: holds other bytes than"):
        checkpoints.require_whole(4)
    assert checkpoints.last_good() == 2
    shutil.copy(sharded / "once" / "checkpoints" / "step_4" / one.name, one)
    other.unlink()
    with pytest.raises(TransductError, match=r"shard-00002.* cannot be read"):
        checkpoints.require_whole(4)


def test_a_full_disk_of_one_rank_is_named_on_all(sharded):
    for rank in (0, 1):
        line = (sharded / f"line_{rank}").read_text()
        assert "step_0: rank 1 cannot write it ([Errno 28] No space left on device); free" in line
