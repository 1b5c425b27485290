"""Processes by seed find what one finds; what ends one of them is said, and none is left."""

import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
from transduct_course import seeds
from transduct_course.catalogue import find
from transduct_course.experiment import Setting, run

from transduct.errors import TransductError

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns
TABLE = replace(find("hash_table"), by_seed=True)  # full in a second


def dies(name, setting):
    os._exit(3)


def refuses(name, setting):
    raise TransductError(f"{name}: seed {setting.seed} is refused")


def goes_on(name, setting):
    """All seeds have come as far as a row when their user presses Ctrl-C."""
    try:
        if setting.seed == 3:
            time.sleep(0.5)
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
    except KeyboardInterrupt:
        return [{"seed": setting.seed}], "", 1.0


def lacks(name, setting):
    return [], "the data set", 0.0


@pytest.fixture
def instead(monkeypatch):
    """Let something else be done in the processes, which then need no PyTorch of their own."""

    def put(work):
        monkeypatch.setattr(seeds, "_measured", work)
        fork = multiprocessing.get_context("fork")
        monkeypatch.setattr(seeds, "get_context", lambda kind: fork)

    others = {*multiprocessing.active_children()}  # such as a fixture's
    yield put
    assert {*multiprocessing.active_children()} <= others


@pytest.mark.slow
def test_the_rows_are_those_of_one_process(capfd):
    found = seeds.run_by_seed(TABLE, Setting())
    expected = run(TABLE, Setting())
    assert found.rows == expected.rows  # whose seeds are outermost
    assert [row["seed"] for row in found.rows[::8]] == [1, 2, 3]
    assert found.verdicts == expected.verdicts
    assert found.seconds > 0.01  # of three processes
    said = capfd.readouterr().err.splitlines()
    assert len(said) == len(found.rows)
    assert said[0].startswith("hash_table: temperature 8.00")
    assert said[0].endswith((" (seed 1)", " (seed 2)", " (seed 3)"))


@pytest.mark.parametrize("change", [{"size": "quick"}, {"seed": 2}])
def test_what_has_one_seed_has_one_process(change, instead):
    instead(dies)
    setting = Setting(**change)
    whole = replace(TABLE, by_seed=change.get("size") == "quick")
    assert seeds.run_by_seed(whole, setting).rows == run(TABLE, setting).rows


@forks
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (dies, "hash_table: the process of a seed ended before its work"),
        (refuses, r"^hash_table: seed \d is refused$"),
    ],
)
def test_what_ends_a_process_is_the_error(work, expected, instead):
    instead(work)
    with pytest.raises(TransductError, match=expected):
        seeds.run_by_seed(TABLE, Setting())


@forks
def test_what_is_missing_is_said(instead):
    instead(lacks)
    found = seeds.run_by_seed(TABLE, Setting())
    assert (found.lacks, found.verdicts[0].answer) == ("the data set", "not decided")


@forks
def test_interrupting_keeps_rows_and_ends_all(instead):
    instead(goes_on)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist ignores it
    try:
        found = seeds.run_by_seed(TABLE, Setting())
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.cut
    assert found.rows == [{"seed": seed} for seed in (1, 2, 3)]
    assert found.seconds == 3.0


def test_the_process_of_a_seed_measures_it_and_names_it_in_its_lines(capsys):
    rows, lacking, seconds = seeds._measured("hash_table", Setting("miniature", seed=2))
    assert rows == run(TABLE, Setting("miniature", seed=2)).rows
    assert lacking == ""
    assert seconds > 0
    for line in ("1 of 2: a", "1 of 2: a, seed 3"):
        seeds._say(3, line)
    assert capsys.readouterr().err == "1 of 2: a (seed 3)\n1 of 2: a, seed 3\n"
