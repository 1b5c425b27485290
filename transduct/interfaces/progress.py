"""Training progress on stderr: a progress bar on a terminal, plain lines elsewhere."""

import sys
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from transduct.interfaces.ending import rank


class Watcher:
    """Shows the events of a training run; use it as a context manager."""

    def __init__(self) -> None:
        # Without `force_terminal`, FORCE_COLOR (set by CI services) would make rich take a file for a terminal.
        self.console = Console(stderr=True, highlight=False, emoji=False, force_terminal=sys.stderr.isatty())
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
        self.task = self.bar.add_task("training", total=None, status="", left="")

    def __enter__(self) -> "Watcher":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def notify(self, line: str) -> None:
        """Print one line above the bar, without wrapping."""
        self.console.print(line, markup=False, soft_wrap=True)

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
        elif "passed_over" in event:
            for problem in event["passed_over"]:
                self.notify(f"a checkpoint is passed over: {problem}")
            self.notify(f"training goes on from step {step}")
        else:
            self.notify(f"training diverged ({event['diverged']}): back to step {step}, rate x {event['rate_scale']}")
