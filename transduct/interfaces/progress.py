"""Progress on stderr: of training, a bar on a terminal and plain lines elsewhere; of lines, a count
on a terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from transduct.errors import visible
from transduct.interfaces.program import rank

PATIENCE = 10.0  # seconds between two lines about a validation


class Forgiving:
    """A stream for progress that falls silent for good once its terminal or its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> None:
        """Write a text at once, so that a later flush has nothing to do that could fail."""
        try:
            print(text, end="", file=self.stream, flush=True)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


def _console(**settings: Any) -> Console:
    stream: Any = Forgiving(sys.stderr)
    return Console(file=stream, highlight=False, **settings)


class Watcher:
    """Shows the events of a training run; use it as a context manager."""

    def __init__(self) -> None:
        # Without `force_terminal`, FORCE_COLOR (set by CI services) would make rich take a file for
        # a terminal.
        self.console = _console(emoji=False, force_terminal=sys.stderr.isatty())
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=self.console, disable=rank() != "0" or not self.live)
        self.validated = 0  # inputs of the validation that is being made
        self.shown = time.monotonic()  # when one was last reported
        self.task = self.bar.add_task("training", total=None, status="", left="")

    def __enter__(self) -> "Watcher":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def notify(self, line: str) -> None:
        """Print one line above the bar, without wrapping."""
        self.console.print(visible(line), markup=False, soft_wrap=True)

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one record of the log."""
        step = event["step"]
        if "loss" in event:
            steps, seconds = event["details"]["steps"], event["seconds"]
            left = seconds / step * (steps - step)
            status = f"loss {event['loss']:.3f}  {event['tokens_per_second']:,.0f} tokens/s"
            if step < self.bar.tasks[0].completed:  # another stage, or back to a checkpoint
                self.bar.reset(self.task)
            shown = f"{timedelta(seconds=round(left))} left"
            self.bar.update(self.task, completed=step, total=steps, status=status, left=shown)
            if not self.live:
                self.notify(f"step {step}  {status}  {seconds:.0f} s, {left:.0f} s left")
        elif "scores" in event:
            scores = "  ".join(f"{name} {value:.4g}" for name, value in event["scores"].items())
            self.notify(f"step {step}  validation: {scores}")
            for source, output, reference in event["details"].get("samples", ()):
                self.notify(f"    {source}\n      -> {output}\n       = {reference}")
        elif "averaged" in event:
            counts = ", ".join(
                f"of {count} {score:.4g}" for count, score in event["scores_by_count"].items()
            )
            steps = ", ".join(map(str, event["averaged"]))
            self.notify(
                f"averages of checkpoints, {event['metric']}: {counts}; taken: step {steps}"
            )
        elif said := event.get("notice") or event.get("stopped") or event.get("backup"):
            self.notify(said)
        elif "passed_over" in event:
            for problem in event["passed_over"]:
                self.notify(f"a checkpoint is passed over: {problem}")
            self.notify(f"training goes on from step {step}")
        else:
            self.notify(
                f"training diverged ({event['diverged']}): back to step {step}, rate x "
                f"{event['rate_scale']}"
            )

    def validating(self, more: int, of: int) -> None:
        """Show how far a validation is: on a terminal in place of the loss, elsewhere by a line now
        and then if it takes long."""
        self.validated += more
        status, now = f"validating {self.validated:,} of {of:,}", time.monotonic()
        self.bar.update(self.task, status=status)
        if self.validated >= of:
            self.validated, self.shown = 0, now
        elif now - self.shown >= PATIENCE:
            self.shown = now
            if not self.live and rank() == "0":
                self.notify(status)


@contextmanager
def count_lines() -> Iterator[Callable[[int], None]]:
    """Context manager that shows on a terminal how many lines are done and how fast, and wipes that
    away at the end. Yields the function to call with the number of lines done since its last
    call."""
    console = _console(force_terminal=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    dumb = console.is_dumb_terminal
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, disable=dumb
    ) as shown:
        task = shown.add_task("0 lines", total=None)

        def done(lines: int) -> None:
            shown.advance(task, lines)
            progress = shown.tasks[0]
            rate = progress.completed / (progress.elapsed or 1.0)
            shown.update(task, description=f"{progress.completed:,.0f} lines  {rate:,.1f} a second")

        yield done
