"""Checkpoints and model directories, written atomically as safetensors and JSON; nothing is pickled."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from transduct.errors import TransductError

FORMAT = 1  # of checkpoints and model directories; every released version stays loadable
WEIGHTS, OPTIMISER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
CONFIG, STATE = "config.json", "state.json"


def write_directory(directory: Path, files: Mapping[str, bytes], replace: bool = False) -> None:
    """Write `files` as a folder that appears whole or not at all. Names may contain subfolders.

    Args:
        replace: whether to replace an existing folder.

    Raises:
        TransductError: if the folder exists, the disk is full or the path cannot be written.
    """
    with new_directory(directory, replace) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@contextmanager
def new_directory(directory: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `directory` to be filled, then sync it to disk and rename it to `directory`. See
    `write_directory`."""
    beside, aside = (directory.with_name(f".{directory.name}.{os.getpid()}.{name}") for name in ("part", "old.part"))
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        for path in (beside, *beside.rglob("*")):
            sync(path)
        if replace and directory.exists():
            directory.rename(aside)
        put_in_place(beside, directory)
    except OSError as error:
        raise disk_error(directory, error) from error
    finally:
        if aside.exists() and not directory.exists():
            aside.rename(directory)
        for leftover in (beside, aside):
            shutil.rmtree(leftover, ignore_errors=True)


def files_in(directory: Path, folders: Sequence[str] = ()) -> dict[str, bytes]:
    """The contents of the files in a directory and in these folders of it, by relative path."""
    paths = [path for folder in ("", *folders) for path in (directory / folder).iterdir() if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def require_absent(out: Path) -> None:
    """Raise TransductError if the path exists."""
    if out.exists():
        raise TransductError(f"{out}: exists already; choose another name")


def put_in_place(beside: Path, directory: Path) -> None:
    """Rename a finished folder to its final name.

    Raises:
        TransductError: if the name is taken, perhaps since a moment ago.
    """
    try:
        beside.rename(directory)
    except OSError:
        require_absent(directory)
        raise
    sync(directory.parent)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically, or leave the old one.

    Raises:
        TransductError: if the disk is full or the path cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        sync(beside)
        beside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def sync(path: Path) -> None:
    """Flush a file's contents, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems do not support it
            raise
    finally:
        os.close(handle)


def disk_error(path: Path, error: OSError) -> TransductError:
    """The error for a failed write; the old contents are still in place."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransductError(f"{path}: the disk is full; nothing was changed there: free some space and run again")
    return TransductError(f"{path}: cannot be written ({error.strerror or error}); choose another place")


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name; a shared parameter appears once."""
    return {name: p.detach() for name, p in model.named_parameters()}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    return save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def pack_json(content: Mapping[str, Any]) -> bytes:
    """A mapping as the bytes of a JSON file."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        TransductError: if the file is missing, truncated or of another kind, such as a pickle; it is never executed.
    """
    try:
        _check_file(path, "a safetensors file")
        path.open("rb").close()  # for Python's error message, which is clearer than the library's
        return load_tensors(path)
    except OSError as error:
        raise TransductError(f"{path}: cannot be read ({error.strerror}); expected a safetensors file") from error
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise TransductError(
            f"{path}: not a whole safetensors file ({error}); it may be truncated or of another kind: copy it again"
        ) from error


def _check_file(path: Path, what: str) -> None:
    """Reject a pipe or a device, on which reading would block."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TransductError(f"{path}: not a regular file; expected {what}")


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises TransductError if there is none."""
    try:
        _check_file(path, what)
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TransductError(f"{path}: cannot be read ({error.strerror}); expected {what}") from error
    except (ValueError, RecursionError) as error:
        raise TransductError(f"{path}: not valid JSON ({error}); expected {what}") from error
    if not isinstance(content, dict):
        raise TransductError(f"{path}: holds no JSON object; expected {what}")
    return content


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file that transduct wrote. Raises TransductError also if its format number is unknown."""
    content = read_object(path, what)
    found = content.get("format")
    if found is None and "model_type" in content:
        raise TransductError(f"{path}: Hugging Face's; make a model of ours of it: transduct convert {path.parent} OUT")
    if found is None:
        raise TransductError(
            f"{path}: has no 'format', so transduct did not write it, or wrote it for another tool; expected {what}"
        )
    if type(found) is not int or not 1 <= found <= FORMAT:
        raise TransductError(
            f"{path}: format {found!r}, this version reads 1 to {FORMAT}; expected {what}, "
            "or install the transduct that wrote it"
        )
    return content


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy weights into a model with the same names and shapes.

    Raises:
        TransductError: if a name is missing or unknown, or a shape differs.
    """
    own = weights_of(model)
    _compare(own, weights, source)
    for name, parameter in own.items():
        parameter.copy_(weights[name])


def fill(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Replace a model's parameters for inference by these weights, without copying; shared parameters stay shared.

    Raises:
        TransductError: as `load_weights`.
    """
    own = dict(model.named_parameters())
    _compare(own, weights, source)
    new = {id(p): nn.Parameter(weights[name].to(p.dtype), requires_grad=False) for name, p in own.items()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]


def _compare(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    if odd := sorted(own.keys() ^ weights.keys()):
        where = "lacks" if odd[0] in own else "has an unknown"
        raise TransductError(f"{source}: {where} weight '{odd[0]}'; the file does not belong to this configuration")
    for name, parameter in own.items():
        if parameter.is_floating_point() != weights[name].is_floating_point():
            found = str(weights[name].dtype).removeprefix("torch.")
            raise TransductError(f"{source}: weight '{name}' holds {found}; the file does not belong to this model")
        if parameter.shape != weights[name].shape:
            raise TransductError(
                f"{source}: weight '{name}' is {tuple(weights[name].shape)}, the configuration "
                f"says {tuple(parameter.shape)}; the file does not belong to this configuration"
            )


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, computed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_tensors(path).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: tensor / len(paths) for name, tensor in total.items()}


class Checkpoints:
    """The checkpoints of a run, `checkpoints/step_N/`.

    Regular checkpoints are those on the schedule. A new best score and an interruption write others too. Of those only
    the best enters the final average, so that an interrupted run ends like an uninterrupted one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def wait(self) -> None:
        """Wait for the checkpoint being written.

        Raises:
            TransductError: if it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raise the error of the newest checkpoint if its writing has failed; does not wait.

        Raises:
            TransductError: if it could not be written.
        """
        if self._writing is not None and self._writing.done():
            self.wait()

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.directory / f"step_{step}"

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order. Waits for the one being written."""
        self.wait()
        return sorted(step for step, path in self._folders().items() if (path / STATE).exists())

    def save(
        self,
        step: int,
        model: nn.Module,
        optimiser: Mapping[str, Tensor],
        state: Mapping[str, Any],
        ema: Any,
        keep: Iterable[int] | None = None,
    ) -> None:
        """Copy the state and write it as a checkpoint in the background. The old checkpoints stay until it is complete.

        `steps`, `forget_after` and `save_state` wait for it; call `wait` before anything else reads the checkpoint.

        Args:
            keep: the steps whose checkpoints to keep once this one is written; all if not given.
        """
        self.wait()
        files = {WEIGHTS: pack(weights_of(model)), OPTIMISER: pack(optimiser)}
        if ema is not None:
            files[EMA] = pack(ema.weights)
        self._writing = self._writer.submit(self._write, step, files, state, keep)

    def _write(
        self, step: int, files: Mapping[str, bytes], state: Mapping[str, Any], keep: Iterable[int] | None
    ) -> None:
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        write_directory(self.path(step), {**files, STATE: _state(state, digests)}, replace=True)
        if keep is not None:
            self._prune({step, *keep})

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints after this step, from which training takes another course."""
        self._prune([each for each in self.steps() if each <= step])

    def bests(self, steps: Iterable[int]) -> set[int]:
        """The steps that these checkpoints record as the best so far; unreadable checkpoints are skipped."""
        bests = set()
        for step in steps:
            try:
                bests.add(read_json(self.path(step) / STATE, "a checkpoint's state")["best_step"])
            except TransductError:
                continue
        return bests - {None}

    def save_state(self, step: int, state: Mapping[str, Any]) -> None:
        """Replace the training state in a checkpoint; its weights stay."""
        self.wait()
        path = self.path(step) / STATE
        write_file(path, _state(state, _digests(path)))

    def last_good(self, among: Iterable[int] | None = None, broken: list[str] | None = None) -> int | None:
        """The newest step with an intact checkpoint.

        Args:
            among: the steps to look at; all if not given.
            broken: collects what is wrong with newer ones.
        """
        for step in sorted(self._folders() if among is None else among, reverse=True):
            try:
                self.require_whole(step)
            except TransductError as error:
                if broken is not None:
                    broken.append(str(error))
                continue
            return step
        return None

    def require_whole(self, step: int) -> None:
        """Raise TransductError unless a step's checkpoint is complete and its files match their digests."""
        folder = self.path(step)
        digests = _digests(folder / STATE)
        for name in sorted({WEIGHTS, OPTIMISER, *digests, *(path.name for path in folder.glob("*.safetensors"))}):
            read_tensors(folder / name)
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != digests.get(name, found):
                raise TransductError(f"{folder / name}: holds other bytes than were written to it; copy it again")

    def _folders(self) -> dict[int, Path]:
        """The folders of checkpoints by step, intact or not."""
        folders = ((path.name.removeprefix("step_"), path) for path in self.directory.glob("step_*"))
        return {int(step): path for step, path in folders if step.isdecimal()}

    def _prune(self, keep: Iterable[int]) -> None:
        """Remove all other checkpoints and the leftovers of killed processes."""
        kept = {*keep}
        for step, path in self._folders().items():
            if step not in kept:
                aside = path.with_name(f".{path.name}.old.part")  # so that a half-removed folder is no checkpoint
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
        for part in self.directory.glob(".*.part"):
            shutil.rmtree(part)


def _state(state: Mapping[str, Any], digests: Mapping[str, str]) -> bytes:
    return pack_json({"format": FORMAT, **state, "digests": digests})


def _digests(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint, from its state; empty for older checkpoints."""
    digests: dict[str, str] = read_json(path, "a checkpoint's state").get("digests", {})
    return digests


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name: `NAME/exp_avg`, `NAME/exp_avg_sq`, `NAME/step`."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def load_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimiser's state by a copy of these tensors, which may be mapped from a file to be removed."""
    optimiser.state.clear()
    parameters = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        optimiser.state[parameter][kind] = tensor.to(parameter.device, copy=True)
