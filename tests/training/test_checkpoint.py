"""Files are written atomically; files that are read are checked, and never executed."""

import errno
import json
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.toy import examples, loss, network, weights
from transduct.errors import TransductError
from transduct.training import checkpoint
from transduct.training.checkpoint import (
    Checkpoints,
    average,
    files_in,
    fill,
    load_optimiser,
    load_weights,
    optimiser_tensors,
    pack,
    read_json,
    read_tensors,
    weights_of,
    write_directory,
    write_file,
)
from transduct.training.optim import MovingAverage, make_optimiser


def trained(steps=2):
    """A model and its optimiser after a few steps."""
    model = network()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.0)
    for number in range(steps):
        optimiser.zero_grad()
        loss(model, examples(number % 5))["tokens"][0].backward()
        optimiser.step()
    return model, optimiser


def save(checkpoints, step, model, optimiser, ema=None, keep=None):
    checkpoints.save(step, model, optimiser_tensors(model, optimiser), {"step": step}, ema, keep)
    checkpoints.wait()


@pytest.fixture
def held(tmp_path):
    """Checkpoints of the steps 3 and 12, moving averages included."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (12, 3):
        model, optimiser = trained(step)
        save(checkpoints, step, model, optimiser, MovingAverage(model, 0.9))
    return checkpoints


# writing


def test_the_files_of_a_folder_are_those_that_were_written_and_of_no_folder_in_it_that_is_not_named(tmp_path):
    content = {"a.json": b"1", "one/b": b"2", "two/b": b"3"}
    write_directory(tmp_path / "model", content)
    assert files_in(tmp_path / "model") == {"a.json": b"1"}
    assert files_in(tmp_path / "model", ["one", "two"]) == content


def disk(number):
    return OSError(number, os.strerror(number))


def failing(error, after, function):
    """`function`, which raises the error after this many calls."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) > after:
            raise error
        return function(*arguments)

    return call


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize(
    "number, said",
    [
        (errno.ENOSPC, "the disk is full; nothing was changed there: free some space and run again"),
        (errno.EDQUOT, "the disk is full; nothing was changed there: free some space and run again"),
        (errno.EIO, "cannot be written (Input/output error); choose another place"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_leaves_those_before(held, monkeypatch, after, number, said):
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", failing(disk(number), after, os.fsync))
        with pytest.raises(TransductError) as caught:
            save(held, 20, model, optimiser, MovingAverage(model, 0.9), keep=[])
    assert str(caught.value) == f"{held.path(20)}: {said}"
    assert [path.name for path in sorted(held.directory.iterdir())] == ["step_12", "step_3"]
    assert held.last_good(held.steps()) == 12


def test_a_checkpoint_that_cannot_be_renamed_is_not_there(held, monkeypatch):
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.ENOSPC), 0, Path.rename))
        with pytest.raises(TransductError, match="the disk is full"):
            save(held, 20, model, optimiser)
    assert held.steps() == [3, 12]
    assert not list(held.directory.glob(".*"))


@pytest.mark.parametrize("after", range(3))
def test_a_crash_in_the_middle_of_writing_is_as_if_it_had_not_begun(held, monkeypatch, after):
    """Nothing is cleaned up after a crash, so what it leaves must do no harm."""
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", failing(KeyboardInterrupt(), after, os.fsync))
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            save(held, 20, model, optimiser)
    assert list(held.directory.glob(".step_20.*.part"))
    assert held.last_good(held.steps()) == 12
    save(held, 20, model, optimiser, keep=held.steps())
    assert not list(held.directory.glob(".*"))
    assert held.last_good(held.steps()) == 20


def test_what_is_written_is_what_there_was_when_it_was_asked_for(held, monkeypatch):
    """Training goes on while a checkpoint is written; reading checkpoints waits for it."""
    model, optimiser = trained(1)
    save(held, 20, model, optimiser)
    expected = (held.path(20) / "model.safetensors").read_bytes()
    busy, write = threading.Event(), checkpoint.write_directory

    def slow(*arguments, replace):
        busy.wait(60)
        write(*arguments, replace=replace)

    monkeypatch.setattr(checkpoint, "write_directory", slow)
    held.save(21, model, optimiser_tensors(model, optimiser), {"step": 21}, None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert not held.path(21).exists()
    busy.set()
    assert held.steps() == [3, 12, 20, 21]
    assert (held.path(21) / "model.safetensors").read_bytes() == expected


def test_what_could_not_be_written_is_said_once(held, monkeypatch):
    model, optimiser = trained(1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.ENOSPC), 0, Path.rename))
        held.save(20, model, optimiser_tensors(model, optimiser), {"step": 20}, None)
        with pytest.raises(TransductError, match="the disk is full"):
            held.steps()
    assert held.steps() == [3, 12]


def test_a_failure_to_write_is_said_as_soon_as_it_is_known(held, monkeypatch):
    model, optimiser = trained(1)
    held.check()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", failing(disk(errno.ENOSPC), 0, Path.rename))
        held.save(20, model, optimiser_tensors(model, optimiser), {"step": 20}, None)
        held._writer.submit(str).result()  # the writer does one after the other
        with pytest.raises(TransductError, match="the disk is full"):
            held.check()
    held.check()


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    directory = tmp_path / "deep" / "model"
    write_directory(directory, {"a": b"1", "b": b"2"})
    write_directory(directory, {"a": b"3"}, replace=True)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {"a": b"3"}
    assert [path.name for path in directory.parent.iterdir()] == ["model"]


def test_a_directory_that_came_in_the_meantime_is_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    with pytest.raises(TransductError, match="out: exists already; choose another name"):
        write_directory(tmp_path / "out", {"a": b"1"})
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious"]


@pytest.mark.parametrize("after", [0, 1])
def test_a_directory_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch, after):
    directory, rename, calls = tmp_path / "model", Path.rename, []

    def once(path, target):
        calls.append(target)
        if len(calls) == after + 1:
            raise disk(errno.ENOSPC)
        return rename(path, target)

    write_directory(directory, {"a": b"1"})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", once)
        with pytest.raises(TransductError, match="the disk is full; nothing was changed there"):
            write_directory(directory, {"a": b"2"}, replace=True)
    assert (directory / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_while_a_checkpoint_is_replaced_the_old_one_is_kept_aside(held, monkeypatch):
    """Nothing is removed before the new one is in its place."""
    model, optimiser = trained(1)
    seen, remove = [], checkpoint.shutil.rmtree

    def watched(path, **options):
        seen.append((path.name.endswith(".old.part"), held.last_good()))
        remove(path, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", watched)
    save(held, 12, model, optimiser, MovingAverage(model, 0.9))
    assert {step for _, step in seen} == {12}
    assert seen[-1][0]


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_whatever_stops_a_folder_from_being_replaced_leaves_the_old_one_and_nothing_else(
    tmp_path, monkeypatch, function
):
    directory = tmp_path / "model"
    write_directory(directory, {"a": b"old"})
    with monkeypatch.context() as patch:
        if function == "fsync":
            patch.setattr(checkpoint.os, "fsync", failing(KeyboardInterrupt(), 1, os.fsync))
        else:  # the old one is aside, the new one not yet in its place
            patch.setattr(checkpoint, "put_in_place", failing(KeyboardInterrupt(), 0, None))
        with pytest.raises(KeyboardInterrupt):
            write_directory(directory, {"a": b"new"}, replace=True)
    assert files_in(directory) == {"a": b"old"}
    assert [*tmp_path.iterdir()] == [directory]


def test_all_is_on_the_disk_before_it_is_there_and_its_name_after(tmp_path, monkeypatch):
    done, fsync, rename = [], os.fsync, Path.rename

    def synced(handle):
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(path, target):
        done.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(checkpoint.os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(Path, "replace", renamed)
    write_directory(tmp_path / "model", {"a": b"1", "1/b": b"2"})
    before, after = done[: done.index("renamed")], done[done.index("renamed") + 1 :]
    assert sorted(before)[1:] == ["1", "a", "b"], "and the folder itself, by the name it has so far"
    assert after == [tmp_path.name]
    done.clear()
    write_file(tmp_path / "c", b"3")
    assert done[1:] == ["renamed", tmp_path.name]
    assert done[0].startswith(".c.")


def test_file_systems_that_cannot_sync_are_written_to_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.os, "fsync", failing(disk(errno.EINVAL), 0, None))
    write_file(tmp_path / "a", b"1")
    write_directory(tmp_path / "model", {"b": b"2"})
    assert files_in(tmp_path) | files_in(tmp_path / "model") == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("function", ["os.fsync", "Path.replace"])
def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch, function):
    path = tmp_path / "recipe.yaml"
    write_file(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(f"transduct.training.checkpoint.{function}", failing(disk(errno.ENOSPC), 0, None))
        with pytest.raises(TransductError, match=r"recipe\.yaml: the disk is full"):
            write_file(path, b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("recipe.yaml", b"old")]
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


# reading


def test_tensors_come_back_to_the_bit(tmp_path):
    tensors = {"a": torch.randn(3, 4), "b": torch.tensor(7), "c": torch.zeros(0, 2), "d": torch.ones(2).bfloat16()}
    tensors["e"] = torch.arange(6).view(2, 3).T  # not contiguous
    (tmp_path / "x").write_bytes(pack(tensors))
    found = read_tensors(tmp_path / "x")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


class Malice:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


WHOLE = pack({"a": torch.arange(10.0)})


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, b"\0" * 64, WHOLE[:-1], WHOLE[:20], WHOLE[:8], WHOLE + b"more",
     (1 << 62).to_bytes(8, "little") + b"{}", (100).to_bytes(8, "little") + b"{}", b"PK\x03\x04" + b"\0" * 200],
)  # fmt: skip
def test_what_is_no_whole_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(TransductError, match=r"x: not a whole safetensors file \(.*it may be truncated or of another"):
        read_tensors(tmp_path / "x")


def test_a_pickle_is_refused_and_not_run(tmp_path):
    bait = tmp_path / "it was run"
    plain = pickle.dumps(Malice(bait))
    for content in (plain, len(plain).to_bytes(8, "little") + plain):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(TransductError, match="not a whole safetensors file"):
            read_tensors(tmp_path / "x")
    torch.save(Malice(bait), tmp_path / "x")
    with pytest.raises(TransductError, match="not a whole safetensors file"):
        read_tensors(tmp_path / "x")
    assert not bait.exists()
    pickle.loads(plain).close()
    assert bait.exists(), "the bait itself does not work"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(TransductError, match="x: not a regular file; expected a safetensors file"):
        read_tensors(tmp_path / "x")
    with pytest.raises(TransductError, match="x: not a regular file; expected a recipe"):
        read_json(tmp_path / "x", "a recipe")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TransductError, match=r"x: cannot be read \(No such file or directory\); expected a safetens"):
        read_tensors(tmp_path / "x")
    with pytest.raises(TransductError, match=r"x: cannot be read \(No such file or directory\); expected a recipe"):
        read_json(tmp_path / "x", "a recipe")


@pytest.mark.parametrize(
    "content, said",
    [("{", "not valid JSON"), ("\ud800", "not valid JSON"), ("[]", "holds no JSON object"), ("{}", "has no 'format'"),
     ('{"format": 0}', "format 0"), ('{"format": 2}', "format 2"), ('{"format": "1"}', "format '1'"),
     ('{"format": true}', "format True")],
)  # fmt: skip
def test_json_of_another_kind_or_version_is_refused(tmp_path, content, said):
    (tmp_path / "x").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(TransductError) as caught:
        read_json(tmp_path / "x", "a configuration")
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: {said}")
    assert "expected a configuration" in str(caught.value)


def test_json_of_this_version_is_read(tmp_path):
    (tmp_path / "x").write_text('{"format": 1, "a": "é"}', encoding="utf-8")
    assert read_json(tmp_path / "x", "a configuration") == {"format": 1, "a": "é"}


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda w: w.pop("0.bias"), "x: lacks weight '0.bias'; the file does not belong to this configuration"),
        (lambda w: w.update(a=torch.ones(1)), "x: has an unknown weight 'a'; the file does not belong to this conf"),
        (
            lambda w: w.update({"0.bias": torch.ones(8, dtype=torch.int32)}),
            "x: weight '0.bias' holds int32; the file do",
        ),
        (lambda w: w.update({"0.bias": torch.ones(9)}), "x: weight '0.bias' is (9,), the configuration says (8,); the"),
    ],
)
def test_weights_of_another_model_are_refused(change, said):
    model, other = network(), dict(weights_of(trained()[0]))
    before = weights(model)
    change(other)
    with pytest.raises(TransductError) as caught, torch.no_grad():
        load_weights(model, other, Path("x"))
    assert said in str(caught.value)
    if "lacks" in said or "unknown" in said:
        assert all(map(torch.equal, before, weights(model)))
    model = network()
    before = list(model.parameters())
    with pytest.raises(TransductError) as caught:
        fill(model, other, Path("x"))
    assert said in str(caught.value)
    assert all(one is two for one, two in zip(before, model.parameters(), strict=True))


def test_a_model_is_filled_without_a_copy():
    given, x = {name: weight.clone() for name, weight in weights_of(trained()[0]).items()}, torch.randn(4, 3)
    with torch.device("meta"):
        model = network()
    fill(model, given, Path("x"))
    assert torch.equal(model(x), trained()[0](x))
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, nn.Parameter)
        assert parameter.data_ptr() == given[name].data_ptr()
        assert not parameter.requires_grad


def test_what_is_one_parameter_stays_one_when_it_is_filled():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    model[1].weight = model[2].weight = model[0].weight
    given = {name: torch.randn_like(weight) for name, weight in weights_of(model).items()}
    fill(model, given, Path("x"))
    assert model[0].weight is model[1].weight is model[2].weight
    assert model[0].bias is not model[1].bias
    assert model[2].bias is None
    assert sorted(weights_of(model)) == ["0.bias", "0.weight", "1.bias"]


@pytest.mark.parametrize("kind, saved", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_a_filled_model_keeps_its_type(kind, saved):
    model = network().to(kind)
    integers = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    model.register_parameter("integers", integers)
    given = {name: weight.to(saved) for name, weight in weights_of(trained()[0]).items()}
    fill(model, {**given, "integers": torch.tensor([3, -127, 127], dtype=torch.int8)}, Path("x"))
    assert model.integers.tolist() == [3, -127, 127]
    assert {p.dtype for p in model.parameters()} == {kind, torch.int8}
    assert torch.equal(model[0].weight, given["0.weight"].to(kind))


def test_shared_weights_are_saved_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert sorted(weights_of(model)) == ["0.bias", "0.weight", "1.bias"]


# checkpoints


def test_saved_loaded_and_saved_again_are_the_same_bytes(held):
    model = network()
    optimiser = make_optimiser(model, (0.9, 0.98), 1e-9, 0.0)
    ema = MovingAverage(model, 0.9)
    path = held.path(12)
    with torch.no_grad():
        load_weights(model, read_tensors(path / "model.safetensors"), path)
    load_optimiser(model, optimiser, read_tensors(path / "optimizer.safetensors"))
    ema.weights = read_tensors(path / "ema.safetensors")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert before.keys() == {"model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"}
    save(held, 12, model, optimiser, ema)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_an_optimiser_does_not_go_on_in_a_file_that_will_be_removed(held):
    model = network()
    optimiser, read = (
        make_optimiser(model, (0.9, 0.98), 1e-9, 0.0),
        read_tensors(held.path(12) / "optimizer.safetensors"),
    )
    load_optimiser(model, optimiser, read)
    places = {tensor.data_ptr() for tensor in read.values()}
    assert not places & {tensor.data_ptr() for state in optimiser.state.values() for tensor in state.values()}


def test_an_optimiser_goes_on_as_if_nothing_had_happened():
    model, optimiser = trained(3)
    copy = network()
    with torch.no_grad():
        load_weights(copy, weights_of(model), Path("x"))
    fresh = make_optimiser(copy, (0.9, 0.98), 1e-9, 0.0)
    load_optimiser(copy, fresh, {key: value.clone() for key, value in optimiser_tensors(model, optimiser).items()})
    for each, its in ((model, optimiser), (copy, fresh)):
        its.zero_grad()
        loss(each, examples(4))["tokens"][0].backward()
        its.step()
    assert all(map(torch.equal, weights(model), weights(copy)))


def test_an_optimiser_that_goes_back_to_the_beginning_forgets_what_came_after():
    model, optimiser = trained(3)
    load_optimiser(model, optimiser, {})
    assert optimiser_tensors(model, optimiser) == {}


def test_an_average_is_the_mean(tmp_path):
    values = [torch.randn(4, 3) for _ in range(5)]
    paths = [tmp_path / str(i) for i in range(5)]
    for path, value in zip(paths, values):
        path.write_bytes(pack({"a": value, "b": value.bfloat16()}))
    found = average(paths)
    for name, given in (("a", values), ("b", [value.bfloat16() for value in values])):
        torch.testing.assert_close(found[name], torch.stack(given).double().mean(0))
    assert torch.equal(average(paths[:1])["a"], values[0].double())


def test_what_is_named_otherwise_is_no_checkpoint_and_stays(held):
    for name in ("step_3_before_tuning", "step_old", "step_"):
        (held.directory / name).mkdir()
        (held.directory / name / "state.json").write_text("{}")
    assert held.steps() == [3, 12]
    held.forget_after(3)
    assert sorted(path.name for path in held.directory.iterdir()) == [
        "step_", "step_3", "step_3_before_tuning", "step_old",
    ]  # fmt: skip


def test_steps_are_in_the_order_of_numbers(held):
    assert held.steps() == [3, 12]
    assert held.path(3) == held.directory / "step_3"
    assert Checkpoints(held.directory / "nowhere").steps() == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"])
def test_a_checkpoint_cut_short_is_passed_over(held, name):
    for step, rest in ((12, 3), (3, None)):
        path = held.path(step) / name
        path.write_bytes(path.read_bytes()[:-5])
        assert held.last_good(held.steps()) == rest


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors"])
def test_a_checkpoint_with_another_bit_is_passed_over(held, name):
    """The file is valid, but a flipped bit has changed a number in it."""
    path, broken = held.path(12) / name, []
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    read_tensors(path)
    assert held.last_good(held.steps(), broken) == 3
    assert broken == [f"{path}: holds other bytes than were written to it; copy it again"]
    held.save_state(12, {"step": 12})
    assert held.last_good(held.steps()) == 3, "what is said of the run hides it"
    content[-2] ^= 1
    path.write_bytes(content)
    assert held.last_good(held.steps()) == 12


def test_a_checkpoint_from_before_there_were_digests_is_whole(held):
    (held.path(12) / "state.json").write_text('{"format": 1, "step": 12}')
    assert held.last_good(held.steps()) == 12
    (held.path(12) / "ema.safetensors").write_bytes(b"")
    assert held.last_good(held.steps()) == 3


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "ema.safetensors"])
def test_a_checkpoint_that_lacks_a_file_is_passed_over(held, name):
    (held.path(12) / name).unlink()
    assert held.last_good(held.steps()) == 3


def test_only_those_asked_for_are_looked_at(held):
    assert held.last_good([3]) == 3
    assert held.last_good([]) is None


def test_pruning_leaves_what_is_to_be_kept(held):
    save(held, 20, *trained(1), keep=[3, 99])
    assert held.steps() == [3, 20]
    assert not held.path(12).exists()


def test_pruning_takes_what_a_kill_left_of_checkpoints(held):
    for name in ("step_6", ".step_12.old.part", ".step_9.7.part"):  # the first lacks its state
        (held.directory / name).mkdir()
        (held.directory / name / "model.safetensors").touch()
    save(held, 20, *trained(1), keep=[3])
    assert sorted(path.name for path in held.directory.iterdir()) == ["step_20", "step_3"]


def test_a_kill_while_a_checkpoint_is_pruned_leaves_none_half(held, monkeypatch):
    def killed(path, **_):
        assert path.name.startswith("."), "half of it could be taken for a checkpoint"

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    save(held, 20, *trained(1), keep=[3])
    assert held.steps() == [3, 20]


def test_the_state_can_be_replaced_without_the_weights(held):
    before = (held.path(3) / "model.safetensors").read_bytes()
    held.save_state(3, {"step": 3, "tries": 1})
    after = json.loads((held.path(3) / "state.json").read_text())
    assert after.pop("digests").keys() == {"model.safetensors", "optimizer.safetensors", "ema.safetensors"}
    assert after == {"format": 1, "step": 3, "tries": 1}
    assert (held.path(3) / "model.safetensors").read_bytes() == before
