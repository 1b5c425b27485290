"""What a person is shown while a model trains, on a terminal and in a file."""

import io
import os
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from transduct.interfaces import progress
from transduct.interfaces.progress import Watcher, count_lines

STEP = {
    "step": 5,
    "loss": 1.25,
    "tokens_per_second": 12345.6,
    "seconds": 3.0,
    "details": {"steps": 15},
}
SCORES = {
    "step": 6,
    "scores": {"bleu": 1.5, "chrf": 20.0},
    "details": {"samples": [("a b", "b", "b a")]},
}
NOTICE = {"step": 7, "notice": "the validation data have changed", "details": {}}
NOT_COPIED = {"step": 8, "backup": "warning: not copied", "details": {}}
PASSED = {"step": 3, "passed_over": ["step_6: not whole"], "details": {}}
AVERAGED = {
    "step": 9,
    "averaged": [6, 9],
    "metric": "chrf",
    "scores_by_count": {1: 3.0, 2: 4.25},
    "details": {},
}
DIVERGED = {"step": 3, "diverged": "step 7: loss nan", "rate_scale": 0.5, "try": 1, "details": {}}


@pytest.fixture
def shown(monkeypatch):
    """What a watcher writes of some events."""

    def show(*events, terminal=False, lines=(), validated=()):
        screen = io.StringIO()

        def console(file, **settings):
            assert file.stream is progress.sys.stderr, "progress belongs on stderr"
            return Console(file=screen, width=80, **settings)

        monkeypatch.setattr(progress, "Console", console)
        monkeypatch.setattr(
            progress, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: terminal))
        )
        with Watcher() as watcher:
            for line in lines:
                watcher.notify(line)
            for event in events:
                watcher(event)
            for more, of in validated:
                watcher.validating(more, of)
        return screen.getvalue()

    return show


@pytest.mark.parametrize(
    "event, text",
    [
        (STEP, "step 5  loss 1.250  12,346 tokens/s  3 s, 6 s left\n"),
        (SCORES, "step 6  validation: bleu 1.5  chrf 20\n    a b\n      -> b\n       = b a\n"),
        (NOTICE, "the validation data have changed\n"),
        (NOT_COPIED, "warning: not copied\n"),
        (PASSED, "a checkpoint is passed over: step_6: not whole\ntraining goes on from step 3\n"),
        (AVERAGED, "averages of checkpoints, chrf: of 1 3, of 2 4.25; taken: step 6, 9\n"),
        (DIVERGED, "training diverged (step 7: loss nan): back to step 3, rate x 0.5\n"),
    ],
)
def test_a_file_gets_a_plain_line_for_each_event(shown, event, text):
    assert shown(event) == text


@pytest.mark.parametrize(
    "line",
    [
        "[bold]no markup[/bold]",
        "no :smile: either",
        "word " * 60 + "end",
        "한국어 " * 50 + "end",
        "a" * 300,
    ],
)
def test_a_line_is_written_as_it_is_however_long(shown, line):
    assert shown(lines=[line]) == line + "\n"


def test_what_a_terminal_would_obey_is_spelled_out(shown):
    assert shown(lines=["left out: a\x1b[2J\x9b.png\nb"]) == "left out: a\\x1b[2J\\x9b.png\nb\n"


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_file_is_no_terminal_whatever_variables_say(shown, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    assert shown(STEP) == "step 5  loss 1.250  12,346 tokens/s  3 s, 6 s left\n"


def test_a_terminal_that_cannot_go_back_in_a_line_gets_lines(shown, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert shown(STEP, terminal=True) == "step 5  loss 1.250  12,346 tokens/s  3 s, 6 s left\n"


def test_of_several_ranks_one_draws_a_bar(shown, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert shown(STEP, terminal=True) == ""


def test_a_terminal_gets_a_bar_and_only_news_as_lines(shown):
    screen = shown(STEP, SCORES, terminal=True)
    assert "━" in screen
    assert " 33%" in screen
    assert "loss 1.250  12,346 tokens/s" in screen
    assert "0:00:06 left" in " ".join(screen.split())
    assert "step 5 " not in screen
    assert "step 6  validation: bleu 1.5 " in screen


def test_the_bar_begins_again_with_another_stage_of_as_many_steps():
    watcher = Watcher()
    last = STEP | {"step": 15}
    watcher(last)
    assert watcher.bar.tasks[0].finished
    watcher(STEP)
    assert not watcher.bar.tasks[0].finished
    assert watcher.bar.tasks[0].completed == 5
    assert watcher.bar.tasks[0].fields["left"] == "0:00:06 left"


@pytest.mark.parametrize("kind, seen", [("xterm", True), ("dumb", False)])
def test_lines_are_counted_on_a_terminal(monkeypatch, kind, seen):
    monkeypatch.setenv("TERM", kind)
    screen, out = io.StringIO(), sys.stdout
    monkeypatch.setattr(
        progress, "Console", lambda file, **settings: Console(file=screen, width=80, **settings)
    )
    with count_lines() as done:
        assert sys.stdout is out, "results go where they went"
        done(1000)
        done(234)
    assert ("1,234 lines  " in screen.getvalue()) == seen
    assert (" a second" in screen.getvalue()) == seen
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K") == seen, "it is wiped away"


def without_reader():
    reads, writes = os.pipe()
    os.close(reads)
    return os.fdopen(writes, "w", encoding="utf-8")


def gone_terminal():
    mine, its = os.openpty()
    os.close(mine)
    return os.fdopen(its, "w", encoding="utf-8")


def full_disk():
    if sys.platform != "linux":
        pytest.skip("there is no /dev/full")
    return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", encoding="utf-8")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("opened", [without_reader, gone_terminal, full_disk])
def test_training_and_translating_go_on_where_nobody_can_see_them(monkeypatch, opened, terminal):
    """As after a logout, behind `2>&1 | head` and on a full disk."""
    with opened() as stream:
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(progress.sys, "stderr", stream)
        with Watcher() as watcher:
            watcher.notify("a" * 10_000)
            for event in (STEP, SCORES, PASSED, DIVERGED):
                watcher(event)
            time.sleep(0.2 * terminal)  # until the bar was drawn again
        with count_lines() as done:
            done(1)
        print("an error of the program", file=sys.stderr, flush=True)


def test_an_early_stop_is_shown(shown):
    assert shown({"step": 6, "stopped": "stopped early at step 6"}) == "stopped early at step 6\n"


def test_a_validation_that_takes_long_is_shown_now_and_then(shown, monkeypatch):
    clock = iter([0.0, 4.0, 11.0, 12.0, 25.0, 26.0, 40.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    parts = [1000, 1000, 1000, 1000, 1000, 3000]  # two validations
    assert shown(validated=[(more, 4000) for more in parts]) == "validating 2,000 of 4,000\n"


def test_a_terminal_shows_a_validation_in_its_bar(shown):
    assert "validating 7 of 9" in shown(validated=[(3, 9), (4, 9)], terminal=True)
