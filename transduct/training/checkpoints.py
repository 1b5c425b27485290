"""The checkpoints of a run: written in the background, checked when they are read, and removed when
they are old."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transduct.errors import TransductError
from transduct.storage import (
    EMA,
    FORMAT,
    OPTIMISER,
    STATE,
    WEIGHTS,
    pack,
    pack_json,
    put_in_place,
    read_json,
    read_tensors,
    remove,
    weights_of,
    write_directory,
    write_file,
)
from transduct.training.distributed import Ranks

# copies what has changed to another place; returns what went wrong, if anything did
Copy = Callable[[Ranks], str]


def no_copy(ranks: Ranks) -> str:  # noqa: ARG001
    """Copies nothing."""
    return ""


class Checkpoints:
    """The checkpoints of a run, `checkpoints/step_NUMBER/`.

    Regular checkpoints are those on the schedule. A new best score and an interruption write others
    too. Of those only the best enters the final average, so that an interrupted run ends like an
    uninterrupted one.

    Args:
        ranks: if given, each holds pieces of the tensors and writes its own, in files of its own.
        copy: called in the background after each checkpoint is written.
    """

    def __init__(self, directory: Path, ranks: Ranks | None = None, copy: Copy = no_copy) -> None:
        self.directory, self.ranks, self.copy = directory, ranks, copy
        self._not_copied = ""
        # One thread: checkpoints are written in order, and at most one waits in memory.
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

    def check(self) -> str:
        """Raise the error of the newest checkpoint if its writing has failed; does not wait.
        Returns once why it was not copied, if it was not.

        Raises:
            TransductError: if it could not be written.
        """
        if self._writing is not None and self._writing.done():
            self.wait()
        problem = ""
        if self._writing is None:  # else the thread may be about to say
            problem, self._not_copied = self._not_copied, ""
        return problem

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.directory / f"step_{step}"

    def steps(self, whole: bool = True) -> list[int]:
        """The steps that have a checkpoint, in order. Waits for the one being written.

        Args:
            whole: whether to leave out folders that lack their state, which are damaged.
        """
        self.wait()
        return sorted(
            step for step, path in self._folders().items() if not whole or (path / STATE).exists()
        )

    def save(
        self,
        step: int,
        model: nn.Module,
        optimiser: Mapping[str, Tensor],
        state: Mapping[str, Any],
        averages: Mapping[str, Tensor] | None,
        keep: Iterable[int] | None = None,
    ) -> None:
        """Copy the state and write it as a checkpoint in the background. The old checkpoints stay
        until it is complete.

        `steps`, `forget_after` and `save_state` wait for it; call `wait` before anything else reads
        the checkpoint.

        Args:
            averages: the moving averages of the weights, if there are any.
            keep: the steps whose checkpoints to keep once this one is written; all if not given.
        """
        self.wait()
        # Copied here, before training goes on: the thread writes bytes that no longer change.
        if self.ranks is not None:
            named = {WEIGHTS: weights_of(model), OPTIMISER: optimiser, EMA: averages or {}}
            pieces = {
                f"{file}/{name}": tensor.detach().to("cpu", copy=True)
                for file, tensors in named.items()
                for name, tensor in tensors.items()
            }
            self._writing = self._writer.submit(
                self._copying, self._write_pieces, step, pieces, state, keep
            )
            return
        files = {WEIGHTS: pack(weights_of(model)), OPTIMISER: pack(optimiser)}
        if averages is not None:
            files[EMA] = pack(averages)
        self._writing = self._writer.submit(self._copying, self._write, step, files, state, keep)

    def _copying(self, write: Callable[..., None], *given: Any) -> None:
        """Write a checkpoint, then copy it."""
        write(*given)
        self._not_copied = self.copy(self.ranks or Ranks())

    def _write(
        self,
        step: int,
        files: Mapping[str, bytes],
        state: Mapping[str, Any],
        keep: Iterable[int] | None,
    ) -> None:
        # Of the bytes in memory, so that a disk that returns others is noticed.
        digests = {name: _digest(content) for name, content in files.items()}
        content = {**files, STATE: _packed(state, digests)}
        # without its parents: where a disk went away, nothing is written in its place
        write_directory(self.path(step), content, replace=True, parents=False)
        # Only now: until the new one is whole, the old ones are all there is.
        if keep is not None:
            self.prune({step, *keep})

    def _write_pieces(
        self,
        step: int,
        pieces: dict[str, Tensor],
        state: Mapping[str, Any],
        keep: Iterable[int] | None,
    ) -> None:
        """Write the pieces of this rank; the first writes the state when all have, and puts the
        folder in its place."""
        from torch.distributed import checkpoint

        ranks, path = self.ranks, self.path(step)
        assert ranks is not None
        temporary = path.with_name(f".{path.name}.pieces.part")  # the same for all ranks
        if ranks.rank == 0:
            remove(temporary)
        ranks.wait()
        try:
            writer = checkpoint.HuggingFaceStorageWriter(str(temporary), save_distributed=True)
            checkpoint.save(pieces, storage_writer=writer, process_group=ranks.group)
        except checkpoint.CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            problem = f"rank {rank} cannot write it ({cause}); free some space or fix the disk"
            raise TransductError(f"{path}: {problem}") from error
        own = temporary.glob(f"shard-{ranks.rank + 1:05}-*.safetensors")
        digests = {file.name: file_digest(file) for file in own}
        for each in ranks.exchange(digests)():
            digests |= each
        if ranks.rank == 0:
            write_file(temporary / STATE, _packed(state, digests))
            remove(path)
            put_in_place(temporary, path)
            if keep is not None:
                self.prune({step, *keep})

    def tensors(
        self, step: int, like: Mapping[str, Tensor] | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint by file and name, whoever wrote it.

        Args:
            like: weights by name. Where ranks hold pieces of them, the same pieces are given.

        Raises:
            TransductError: a file is damaged.
        """
        folder, like = self.path(step), like if like and self.ranks else {}
        files = [file for file in (WEIGHTS, OPTIMISER, EMA) if (folder / file).exists()]
        if files or not any(folder.glob("shard-*")):
            return {
                file: {
                    name: _piece(tensor, _weight(file, name, like))
                    for name, tensor in read_tensors(folder / file).items()
                }
                for file in files or [WEIGHTS]
            }
        from torch.distributed import checkpoint

        found: dict[str, dict[str, Tensor]] = {WEIGHTS: {}, OPTIMISER: {}, EMA: {}}
        flat: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each for itself
            reader = checkpoint.HuggingFaceStorageReader(str(folder))
            written: dict[str, Any] = reader.read_metadata().state_dict_metadata
            for key, meta in written.items():
                file, _, name = key.partition("/")
                weight = _weight(file, name, like)
                if weight is None or weight.shape != meta.size:
                    weight = torch.empty(meta.size)
                found[file][name] = flat[key] = torch.empty_like(weight)
            checkpoint.load(flat, storage_reader=reader, no_dist=True)
        return found

    def prune(self, keep: Iterable[int]) -> None:
        """Remove all other checkpoints; what cannot be removed stays until the next pruning."""
        # A full or read-only disk shall not end a training; the next pruning tries again.
        with suppress(OSError):
            self._prune(keep)

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints after this step, from which training takes another course."""
        self._prune([each for each in self.steps() if each <= step])

    def bests(self, steps: Iterable[int]) -> set[int]:
        """The steps that these checkpoints record as the best so far; unreadable checkpoints are
        skipped."""
        bests: set[int] = set()
        for step in steps:
            try:
                best = self.state(step).get("best_step")
            except TransductError:
                continue
            if best is not None:
                bests.add(best)
        return bests

    def state(self, step: int) -> dict[str, Any]:
        """The training state in a step's checkpoint, and under `digests` the SHA-256 of its files,
        if they are known.

        Raises:
            TransductError: it cannot be read, or is not as it was written.
        """
        path = self.path(step) / STATE
        state = read_json(path, "a checkpoint's state")
        # older checkpoints have none
        written, digests = (state.pop("digest", None), state.setdefault("digests", {}))
        # The state knows the digests of the others, and no file knows the state's: it holds its
        # own.
        if written not in (None, _own_digest(state)) or not isinstance(digests, dict):
            raise _changed(path)
        return state

    def save_state(self, step: int, state: Mapping[str, Any]) -> None:
        """Replace the training state in a checkpoint; its weights stay."""
        self.wait()
        write_file(self.path(step) / STATE, _packed(state, self.state(step)["digests"]))

    def last_good(
        self, among: Iterable[int] | None = None, broken: list[str] | None = None
    ) -> int | None:
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
        """Raise TransductError unless a step's checkpoint is complete and its files match their
        digests."""
        folder = self.path(step)
        digests = self.state(step)["digests"]
        names = {*digests, *(path.name for path in folder.glob("*.safetensors"))}
        if not any(name.startswith("shard-") for name in names):
            names |= {WEIGHTS, OPTIMISER}
        for name in sorted(names):
            # First as what it is: that error names what is missing, a digest only that something
            # is.
            read_tensors(folder / name)
            found = file_digest(folder / name)
            if found != digests.get(name, found):
                raise _changed(folder / name)

    def _folders(self) -> dict[int, Path]:
        """The folders of checkpoints by step, intact or not."""
        folders = (
            (path.name.removeprefix("step_"), path) for path in self.directory.glob("step_*")
        )
        return {int(step): path for step, path in folders if step.isdecimal()}

    def _prune(self, keep: Iterable[int]) -> None:
        """Remove all other checkpoints and the leftovers of killed processes."""
        kept = {*keep}
        for step, path in self._folders().items():
            if step not in kept:
                # so that a half-removed folder is no checkpoint
                aside = path.with_name(f".{path.name}.old.part")
                remove(aside)
                path.rename(aside)
        for part in self.directory.glob(".*.part"):
            remove(part)


def _weight(file: str, key: str, like: Mapping[str, Tensor]) -> Tensor | None:
    """The weight that a tensor of a checkpoint belongs to."""
    return like.get(key.rpartition("/")[0] if file == OPTIMISER else key)


def _piece(tensor: Tensor, like: Tensor | None) -> Tensor:
    """The piece of a whole tensor that this rank holds of a weight of that shape."""
    if like is None or like.shape != tensor.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    placed = tensor.to(like.device)
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packed(state: Mapping[str, Any], digests: Mapping[str, str]) -> bytes:
    """A training state as the bytes of its file, with the digests of the other files and of
    itself."""
    content = {"format": FORMAT, **state, "digests": digests}
    return pack_json({**content, "digest": _own_digest(content)})


def _own_digest(state: Mapping[str, Any]) -> str:
    return _digest(json.dumps(state).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _changed(path: Path) -> TransductError:
    return TransductError(f"{path}: holds other bytes than were written to it; copy it again")
