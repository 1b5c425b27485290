"""What a person is shown while a model trains, on a terminal and in a file."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from transduct.interfaces import progress
from transduct.interfaces.progress import Watcher

STEP = {"step": 5, "loss": 1.25, "tokens_per_second": 12345.6, "seconds": 3.0, "details": {"steps": 15}}
SCORES = {"step": 6, "scores": {"bleu": 1.5, "chrf": 20.0}, "details": {"samples": [("a b", "b", "b a")]}}
PASSED = {"step": 3, "passed_over": ["step_6: not whole"], "details": {}}
DIVERGED = {"step": 3, "diverged": "step 7: loss nan", "rate_scale": 0.5, "try": 1, "details": {}}


@pytest.fixture
def shown(monkeypatch):
    """What a watcher writes of some events."""

    def show(*events, terminal=False, lines=()):
        screen = io.StringIO()

        def console(stderr, **settings):
            assert stderr, "progress belongs on stderr"
            return Console(file=screen, width=80, **settings)

        monkeypatch.setattr(progress, "Console", console)
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: terminal)))
        with Watcher() as watcher:
            for line in lines:
                watcher.notify(line)
            for event in events:
                watcher(event)
        return screen.getvalue()

    return show


@pytest.mark.parametrize(
    "event, text",
    [
        (STEP, "step 5  loss 1.250  12,346 tokens/s  3 s, 6 s left\n"),
        (SCORES, "step 6  validation: bleu 1.5  chrf 20\n    a b\n      -> b\n       = b a\n"),
        (PASSED, "a checkpoint is passed over: step_6: not whole\ntraining goes on from step 3\n"),
        (DIVERGED, "training diverged (step 7: loss nan): back to step 3, rate x 0.5\n"),
    ],
)
def test_a_file_gets_a_plain_line_for_each_event(shown, event, text):
    assert shown(event) == text


@pytest.mark.parametrize(
    "line", ["[bold]no markup[/bold]", "no :smile: either", "word " * 60 + "end", "한국어 " * 50 + "end", "a" * 300]
)
def test_a_line_is_written_as_it_is_however_long(shown, line):
    assert shown(lines=[line]) == line + "\n"


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
