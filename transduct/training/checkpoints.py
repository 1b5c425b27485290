"""Where a run is, and its checkpoints: written in the background, checked when they are read, and
removed when they are old."""

import hashlib
import json
import warnings
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

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
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.step import Diverged

WATCHED, FAR = 50, 2.0  # steps, and a factor; see `State.after`


class Report(Protocol):
    """The result of a validation."""

    @property
    def scores(self) -> Mapping[str, float]:
        """Name to number."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Samples, intervals and the like, shown beside the scores."""

    @property
    def lower_is_better(self) -> Container[str]:
        """The names of the scores that improve as they fall."""

    def hopeless(self, name: str) -> bool:
        """Whether a score is the worst possible: 0, or 100 % of errors. A loss never is."""


@dataclass(frozen=True)
class State:
    """Everything a run needs besides weights and optimiser state to resume exactly.

    Attributes:
        chosen_by: the `training.best` that `best_step`, `best_score` and `without_progress` refer
            to.
        rates: the learning-rate settings that `rate_scale` and `tries` refer to.
        window: of the epoch, which `batch` refers to.
        order: the seed and token budget that the epoch was planned with, which `batch` refers to.
        validated_on: a digest of the validation data that `best_step`, `best_score` and
            `without_progress` refer to.
        best_loss: the loss with `best_score`, which decides between equal scores.
        unvalidated: whether the validation that was due at `step` is still to be made.
        losses: the losses since the last multiple of `WATCHED` steps.
        recent: a moving average of the losses.
        lowest: the loss that the run has reached; see `after`.
        threads: CPU threads per rank; sums over parts of a tensor depend on them.
        scaling: the loss scale of float16; see `Stepper.scaling`.
    """

    step: int = 0
    epoch: int = 0
    window: int = 0
    batch: int = 0
    seconds: float = 0.0
    rate_scale: float = 1.0
    tries: int = 0
    best_step: int | None = None
    best_score: float | None = None
    best_loss: float | None = None
    without_progress: int = 0
    unvalidated: bool = False
    chosen_by: str | None = None
    rates: list[Any] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)
    validated_on: str = ""
    losses: list[float] = field(default_factory=list)
    lowest: float | None = None
    recent: float | None = None
    threads: int = 0
    scaling: list[float] = field(default_factory=list)

    def after(self, loss: float, step: int) -> "State":
        """The state with the loss of a step, the first whose loss it lacks.

        A run has diverged if the median loss of `WATCHED` steps, counted from a multiple of that,
        is more than `FAR` times the lowest so far, plus 1. The lowest is that of the medians
        before, and of the first step, which precedes every update.

        Raises:
            Diverged: that is so. It may have begun in the steps before those.
        """
        lowest, losses = loss if self.lowest is None else self.lowest, [*self.losses, loss]
        recent = loss if self.recent is None else self.recent + (loss - self.recent) / WATCHED
        if step % WATCHED:
            return replace(self, losses=losses, lowest=lowest, recent=recent)
        usual = median(losses)
        if len(losses) == WATCHED and usual > FAR * lowest + 1.0:
            raise Diverged(
                f"step {step}: loss {usual:.4g} for {WATCHED} steps, it was {lowest:.4g}",
                step - 2 * WATCHED,
            )
        return replace(self, losses=[], lowest=min(lowest, usual), recent=recent)

    def under(self, config: TrainingConfig) -> "State":
        """The state with everything reset that changed settings have made meaningless."""
        state, rates = self, [config.schedule, config.learning_rate, config.warmup]
        order = [config.seed, config.batch_tokens]
        if self.chosen_by != config.best:  # different scores cannot be compared
            state = state.without_best()
        if self.rates != rates:  # changed after a divergence, as its error advises
            state = replace(state, rate_scale=1.0, tries=0)
        if self.order != order and (self.window or self.batch):  # the rest cannot be determined
            state = replace(state, epoch=state.epoch + 1, window=0, batch=0)
        return replace(state, chosen_by=config.best, rates=rates, order=order)

    def without_best(self) -> "State":
        """The state without its best score, which later ones cannot be compared with."""
        return replace(self, best_step=None, best_score=None, best_loss=None, without_progress=0)


@dataclass(frozen=True)
class Finished(State):
    """The state at the end of a run, and what its final weights are made of.

    Attributes:
        averaged: the steps of the checkpoints whose weights were averaged.
        average_scores: by the number of checkpoints averaged, the validation score of that average;
            empty if nothing was validated.
        average_metric: the name of that score.
    """

    averaged: list[int] = field(default_factory=list)
    average_scores: dict[int, float] = field(default_factory=dict)
    average_metric: str = ""


class Checkpoints:
    """The checkpoints of a run, `checkpoints/step_NUMBER/`.

    Regular checkpoints are those on the schedule. A new best score and an interruption write others
    too. Of those only the best enters the final average, so that an interrupted run ends like an
    uninterrupted one.

    Args:
        ranks: if given, each holds pieces of the tensors and writes its own, in files of its own.
    """

    def __init__(self, directory: Path, ranks: Ranks | None = None) -> None:
        self.directory, self.ranks = directory, ranks
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
            self._writing = self._writer.submit(self._write_pieces, step, pieces, state, keep)
            return
        files = {WEIGHTS: pack(weights_of(model)), OPTIMISER: pack(optimiser)}
        if averages is not None:
            files[EMA] = pack(averages)
        self._writing = self._writer.submit(self._write, step, files, state, keep)

    def _write(
        self,
        step: int,
        files: Mapping[str, bytes],
        state: Mapping[str, Any],
        keep: Iterable[int] | None,
    ) -> None:
        # Of the bytes in memory, so that a disk that returns others is noticed.
        digests = {name: _digest(content) for name, content in files.items()}
        write_directory(self.path(step), {**files, STATE: _packed(state, digests)}, replace=True)
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
        beside = path.with_name(f".{path.name}.pieces.part")  # the same for all ranks
        if ranks.rank == 0:
            remove(beside)
        ranks.wait()
        try:
            writer = checkpoint.HuggingFaceStorageWriter(str(beside), save_distributed=True)
            checkpoint.save(pieces, storage_writer=writer, process_group=ranks.group)
        except checkpoint.CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            problem = f"rank {rank} cannot write it ({cause}); free some space or mend the disk"
            raise TransductError(f"{path}: {problem}") from error
        own = beside.glob(f"shard-{ranks.rank + 1:05}-*.safetensors")
        digests = {file.name: file_digest(file) for file in own}
        for each in ranks.exchange(digests)():
            digests |= each
        if ranks.rank == 0:
            write_file(beside / STATE, _packed(state, digests))
            remove(path)
            put_in_place(beside, path)
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
            held: dict[str, Any] = reader.read_metadata().state_dict_metadata
            for key, meta in held.items():
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
