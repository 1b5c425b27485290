"""The record of a run: `log.jsonl`, one JSON object a line, and TensorBoard events where it is installed."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transduct.training.checkpoint import write_file
from transduct.training.memory import peak_memory

LOG = "log.jsonl"
Event = dict[str, Any]


def ignore(event: Event | str) -> None:
    """Watch nothing."""


def strict_json(item: Any) -> str:
    """JSON, with null for NaN and infinity, for which it has no word."""
    return json.dumps(json.loads(json.dumps(item), parse_constant=lambda _: None), ensure_ascii=False)


class RunLog:
    """Writes each event to the log, to TensorBoard and, with its details beside, to whoever watches."""

    def __init__(self, directory: Path, report: Callable[[Event], None]) -> None:
        self.path, self.report = directory / LOG, report
        self.board: Any = None
        self.first_step: int | None = None  # events of this step and later ones, from before, are hidden

    def write(self, event: Event, details: Mapping[str, Any] | None = None) -> None:
        """One line, whole before anything else is done."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(strict_json(event) + "\n")
        if self.board is None and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(self.path.with_name("tensorboard")), purge_step=self.first_step)
        if self.board is not None:
            for name, value in {**event, **event.get("scores", {})}.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self.board.add_scalar(name, value, event["step"])
        self.report({**event, "details": dict(details or {})})

    def forget_after(self, step: int) -> None:
        """Drop the records of steps that will be taken again, and a line that a kill cut short."""
        self.first_step = step + 1
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, TypeError, KeyError):  # no JSON, or no record of a step
                continue
        write_file(self.path, b"".join(kept))

    def close(self) -> None:
        """Finish TensorBoard's file."""
        if self.board is not None:
            self.board.close()


class Meter:
    """Time, tokens and loss since the last record."""

    def __init__(self, seconds: float) -> None:
        self.began = time.perf_counter() - seconds
        self.forget()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def count(self, loss: float, tokens: int) -> None:
        self.losses.append(loss)
        self.tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done meanwhile, such as a validation, takes no time of training's."""
        began = self.seconds
        yield
        self.since += self.seconds - began

    def record(self, step: int, epoch: int, learning_rate: float) -> Event:
        passed = max(self.seconds - self.since, 1e-9)
        event = {
            "step": step,
            "epoch": epoch,
            "seconds": round(self.seconds, 2),
            "loss": sum(self.losses) / len(self.losses),
            "tokens_per_second": round(self.tokens / passed, 1),
            "learning_rate": learning_rate,
            "memory": peak_memory(),
            "waiting": round(self.waited / passed, 4),
        }
        self.forget()
        return event

    def forget(self) -> None:
        """Begin anew: what was counted is in the record, or of steps that training goes back behind."""
        self.since, self.tokens, self.waited = self.seconds, 0, 0.0
        self.losses: list[float] = []
