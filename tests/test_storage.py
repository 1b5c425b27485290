"""Files are written atomically; files that are read are checked, and never executed."""

import errno
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.faults import disk, failing
from tests.training.toy import examples, loss, network, trained, weights
from transduct import storage
from transduct.errors import TransductError
from transduct.storage import (
    average,
    files_in,
    fill,
    load_weights,
    new_directory,
    pack,
    read_json,
    read_tensors,
    remove,
    remove_leftovers,
    require_folder,
    weights_of,
    write_directory,
    write_file,
)
from transduct.training.optim import load_optimiser, make_optimiser, optimiser_tensors

# writing


def test_the_files_of_a_folder_are_those_that_were_written_and_of_no_folder_in_it_that_is_not_named(
    tmp_path,
):
    content = {"a.json": b"1", "one/b": b"2", "two/b": b"3"}
    write_directory(tmp_path / "model", content)
    assert files_in(tmp_path / "model") == {"a.json": b"1"}
    assert files_in(tmp_path / "model", ["one", "two"]) == content


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


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_whatever_stops_a_folder_from_being_replaced_leaves_the_old_one_and_nothing_else(
    tmp_path, monkeypatch, function
):
    directory = tmp_path / "model"
    write_directory(directory, {"a": b"old"})
    with monkeypatch.context() as patch:
        if function == "fsync":
            patch.setattr(storage.os, "fsync", failing(KeyboardInterrupt(), 1, os.fsync))
        else:  # the old one is aside, the new one not yet in its place
            patch.setattr(storage, "put_in_place", failing(KeyboardInterrupt(), 0, None))
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

    monkeypatch.setattr(storage.os, "fsync", synced)
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


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_file_systems_that_cannot_sync_are_written_to_all_the_same(tmp_path, monkeypatch, number):
    monkeypatch.setattr(storage.os, "fsync", failing(disk(number), 0, None))
    write_file(tmp_path / "a", b"1")
    write_directory(tmp_path / "model", {"b": b"2"})
    assert files_in(tmp_path) | files_in(tmp_path / "model") == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("function", ["os.fsync", "Path.replace"])
def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch, function):
    path = tmp_path / "recipe.yaml"
    write_file(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(f"transduct.storage.{function}", failing(disk(errno.ENOSPC), 0, None))
        with pytest.raises(TransductError, match=r"recipe\.yaml: the disk is full"):
            write_file(path, b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [
        ("recipe.yaml", b"old")
    ]
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_an_error_without_an_errno_keeps_its_message(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", failing(OSError("odd"), 0, None))
    with pytest.raises(TransductError, match=r"a: cannot be written \(odd\); choose another place"):
        write_file(tmp_path / "a", b"1")


def test_no_file_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    write_file(tmp_path / "a", b"1")
    write_directory(tmp_path / "model", {"b": b"2"})
    assert len(os.listdir("/proc/self/fd")) <= before


def test_an_address_is_no_folder():
    with pytest.raises(TransductError, match="s3:/a/b is an address; give a folder as --out"):
        require_folder(Path("s3://a/b"))
    require_folder(Path("a:b/c"))


def test_leftovers_are_removed_of_processes_that_are_gone_alone(tmp_path, monkeypatch):
    gone = 2**22 + 1  # above the numbers that Linux gives
    names = [f".out.{gone}.part", f".out.{os.getpid()}.part", f".out.2.{gone}.part", ".out.x.part"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:]}

    def foreign(*_):
        raise PermissionError

    monkeypatch.setattr(os, "kill", foreign)
    remove_leftovers(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:]}


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "folder" / "in").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("folder", "file"):
        (tmp_path / f"to_{name}").symlink_to(tmp_path / name)
        remove(tmp_path / f"to_{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    for name in ("folder", "file", "nothing"):
        remove(tmp_path / name)
    assert not [*tmp_path.iterdir()]


# reading


def test_tensors_come_back_to_the_bit(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.tensor(7),
        "c": torch.zeros(0, 2),
        "d": torch.ones(2).bfloat16(),
    }
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
    [
        b"",
        b"\0" * 7,
        b"\0" * 64,
        WHOLE[:-1],
        WHOLE[:20],
        WHOLE[:8],
        WHOLE + b"more",
        (1 << 62).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        b"PK\x03\x04" + b"\0" * 200,
    ],
)
def test_what_is_no_whole_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(
        TransductError,
        match=r"x: not a whole safetensors file \(.*it may be truncated or of another",
    ):
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


def test_a_pointer_of_git_lfs_is_refused(tmp_path):
    (tmp_path / "x").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 295000000\n"
    )
    for reads, what in (
        (read_tensors, "a safetensors file"),
        (lambda path: read_json(path, "a recipe"), "a recipe"),
    ):
        message = f"x: a pointer of Git LFS, not {what}; fetch the files with: git lfs pull"
        with pytest.raises(TransductError, match=message):
            reads(tmp_path / "x")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        TransductError,
        match=r"x: cannot be read \(No such file or directory\); expected a safetens",
    ):
        read_tensors(tmp_path / "x")
    with pytest.raises(
        TransductError, match=r"x: cannot be read \(No such file or directory\); expected a recipe"
    ):
        read_json(tmp_path / "x", "a recipe")


@pytest.mark.parametrize(
    "content, said",
    [
        ("{", "not valid JSON"),
        ("\ud800", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "has no 'format'"),
        ('{"format": 0}', "format 0"),
        ('{"format": 2}', "format 2"),
        ('{"format": "1"}', "format '1'"),
        ('{"format": true}', "format True"),
        ('{"model_type": "marian"}', "Hugging Face's; make a model of ours of it"),
        (
            '{"model_type": "t5"}',
            "Hugging Face's; make a model of ours of it: transduct convert",
        ),
    ],
)
def test_json_of_another_kind_or_version_is_refused(tmp_path, content, said):
    (tmp_path / "x").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(TransductError) as caught:
        read_json(tmp_path / "x", "a configuration")
    assert str(caught.value).startswith(f"{tmp_path / 'x'}: {said}")
    assert "Hugging Face" in said or "expected a configuration" in str(caught.value)


def test_json_of_this_version_is_read(tmp_path):
    (tmp_path / "x").write_text('{"format": 1, "a": "é"}', encoding="utf-8")
    assert read_json(tmp_path / "x", "a configuration") == {"format": 1, "a": "é"}


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda w: w.pop("0.bias"),
            "x: lacks weight '0.bias'; the file does not belong to this configuration",
        ),
        (
            lambda w: w.update(a=torch.ones(1)),
            "x: has an unknown weight 'a'; the file does not belong to this conf",
        ),
        (
            lambda w: w.update({"0.bias": torch.ones(8, dtype=torch.int32)}),
            "x: weight '0.bias' holds int32; the file do",
        ),
        (
            lambda w: w.update({"0.bias": torch.ones(9)}),
            "x: weight '0.bias' is (9,), the configuration says (8,); the",
        ),
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


@pytest.mark.parametrize("copy", [False, True])
def test_a_model_is_filled_without_a_copy_unless_asked_for(copy):
    given, x = (
        {name: weight.clone() for name, weight in weights_of(trained()[0]).items()},
        torch.randn(4, 3),
    )
    with torch.device("meta"):
        model = network()
    fill(model, given, Path("x"), copy)
    assert torch.equal(model(x), trained()[0](x))
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, nn.Parameter)
        assert (parameter.data_ptr() != given[name].data_ptr()) == copy
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


@pytest.mark.parametrize(
    "kind, saved", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
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


# optimisers and averages


def test_an_optimiser_does_not_go_on_in_a_file_that_will_be_removed(tmp_path):
    model, optimiser = trained()
    (tmp_path / "x").write_bytes(pack(optimiser_tensors(model, optimiser)))
    read = read_tensors(tmp_path / "x")
    load_optimiser(model, optimiser, read)
    places = {tensor.data_ptr() for tensor in read.values()}
    assert not places & {
        tensor.data_ptr() for state in optimiser.state.values() for tensor in state.values()
    }


def test_an_optimiser_goes_on_as_if_nothing_had_happened():
    model, optimiser = trained(3)
    copy = network()
    with torch.no_grad():
        load_weights(copy, weights_of(model), Path("x"))
    fresh = make_optimiser(copy, (0.9, 0.98), 1e-9, 0.0)
    load_optimiser(
        copy,
        fresh,
        {key: value.clone() for key, value in optimiser_tensors(model, optimiser).items()},
    )
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
    found = average(map(read_tensors, paths))
    for name, given in (("a", values), ("b", [value.bfloat16() for value in values])):
        torch.testing.assert_close(found[name], torch.stack(given).double().mean(0))
    assert torch.equal(average(map(read_tensors, paths[:1]))["a"], values[0].double())


def test_a_run_has_begun_once_it_has_a_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step_2.old.part").mkdir()
    assert not storage.has_begun(tmp_path)
    (tmp_path / "checkpoints" / "step_2").mkdir()
    assert storage.has_begun(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        PermissionError(errno.EACCES, "Permission denied", "/data/in.txt"),
        FileNotFoundError(errno.ENOENT, "No such file", "beside.txt"),
    ],
)
def test_errors_of_other_files_are_not_called_those_of_a_new_folder(error, tmp_path):
    with pytest.raises(type(error)) as found, new_directory(tmp_path / "new"):
        raise error
    assert found.value is error
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [None, "/.", "/inside"])
def test_errors_of_a_new_folder_name_it(name, tmp_path):
    out = tmp_path / "new"
    message = rf"^{re.escape(str(out))}: cannot be written \(Permission denied\); choose another"
    with pytest.raises(TransductError, match=message), new_directory(out) as folder:
        raise PermissionError(errno.EACCES, "Permission denied", name and f"{folder}{name}")
