"""The log of a run: `log.jsonl`, one JSON object per line, and TensorBoard events if TensorBoard is
installed."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transduct.errors import disk_error
from transduct.storage import strict_json, write_file

LOG = "log.jsonl"
Event = dict[str, Any]


def ignore(event: Event | str) -> None:
    """Discard an event or a line."""


class RunLog:
    """Writes each event to `log.jsonl` and TensorBoard, and passes it with its details to the
    `report` callback."""

    def __init__(self, directory: Path, report: Callable[[Event], None]) -> None:
        self.path, self.report = directory / LOG, report
        self.board: Any = None
        self.step = 0
        self.first_step: int | None = (
            None  # TensorBoard hides what was written before of this step and later ones
        )

    def write(self, event: Event, details: Mapping[str, Any] | None = None) -> None:
        """Append an event to the log as one line.

        Raises:
            TransductError: the disk is full, or went away.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(strict_json(event) + "\n")
        except OSError as error:
            raise disk_error(self.path, error) from error
        with self._or_without_board():
            self.step = event["step"]
            if self.board is None:
                self.board = _board(self.path.with_name("tensorboard"), self.first_step)
            if self.board:
                for name, value in {**event, **event.get("scores", {})}.items():
                    if isinstance(value, int | float) and name not in ("step", "epoch"):
                        self.board.add_scalar(name, value, self.step)
        self.report({**event, "details": dict(details or {})})

    def forget_after(self, step: int) -> None:
        """Drop the records after a step, which training will repeat, and a line cut short by a
        kill."""
        self.first_step = step + 1
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, TypeError, KeyError):  # not JSON, or not a record of a step
                continue
        write_file(self.path, b"".join(kept))

    def close(self) -> None:
        """Close TensorBoard's event file."""
        with self._or_without_board():
            if self.board:
                self.board.close()

    @contextmanager
    def _or_without_board(self) -> Iterator[None]:
        """Turn TensorBoard off, with a notice, if it fails in the block, as it does once its folder
        is removed."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.board = False
            notice = f"TensorBoard's events are no longer written ({error}); {LOG} has everything"
            self.report({"step": self.step, "notice": notice, "details": {}})


def _board(directory: Path, first_step: int | None) -> Any:
    """A writer of TensorBoard events, or False if TensorBoard is not installed or too old.
    (`find_spec` also finds a plain folder of that name in the working directory, such as a run's
    own.)"""
    if find_spec("tensorboard") is None:
        return False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(directory), purge_step=first_step)
