"""Processes by seed find what one finds; what ends one of them is told, and none is left."""

import multiprocessing
import os
import time
from dataclasses import replace

import pytest
from transduct_course import seeds
from transduct_course.catalogue import find
from transduct_course.experiment import Setting, run

from transduct.errors import TransductError

forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns
TABLE = replace(find("hash_table"), by_seed=True)  # full in a second


def dies(name, setting, pipe):
    os._exit(3)


def refuses(name, setting, pipe):
    pipe.send(("error", f"{name}: seed {setting.seed} is refused"))


def goes_on(name, setting, pipe):
    pipe.send(("row", {"seed": setting.seed}))
    pipe.send(("line", "a row is known"))
    time.sleep(600)


def lacks(name, setting, pipe):
    pipe.send(("end", "the data set"))


@pytest.fixture
def instead(monkeypatch):
    """Let something else be done in the processes, which then need no PyTorch of their own."""

    def put(work):
        monkeypatch.setattr(seeds, "_measure", work)
        fork = multiprocessing.get_context("fork")
        monkeypatch.setattr(seeds, "get_context", lambda kind: fork)

    return put


@pytest.mark.slow
def test_the_rows_are_those_of_one_process():
    told = []
    found = seeds.run_by_seed(TABLE, Setting(report=told.append))
    expected = run(TABLE, Setting())
    assert found.rows == expected.rows  # whose seeds are outermost
    assert [row["seed"] for row in found.rows[::8]] == [1, 2, 3]
    assert found.verdicts == expected.verdicts
    assert found.seconds > 1  # of three processes that import PyTorch
    assert len(told) == len(found.rows)
    assert told[0].startswith("hash_table: temperature 8.00")
    assert told[0].endswith((" (seed 1)", " (seed 2)", " (seed 3)"))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("change", [{"size": "quick"}, {"seed": 2}])
def test_what_has_one_seed_has_one_process(change, instead):
    instead(dies)
    setting = Setting(**change)
    whole = replace(TABLE, by_seed=change.get("size") == "quick")
    assert seeds.run_by_seed(whole, setting).rows == run(TABLE, setting).rows


def test_a_setting_of_one_seed_trains_from_it_alone():
    assert [*Setting(seed=2).seeds] == [2]
    assert [*Setting("quick", seed=3).seeds] == [3]
    assert [*Setting().seeds] == [1, 2, 3]


@forks
def test_a_process_that_dies_is_told(instead):
    instead(dies)
    expected = r"hash_table: the process of seed \d ended before its work"
    with pytest.raises(TransductError, match=expected):
        seeds.run_by_seed(TABLE, Setting())
    assert multiprocessing.active_children() == []


@forks
def test_an_error_of_a_process_is_the_error(instead):
    instead(refuses)
    with pytest.raises(TransductError, match=r"^hash_table: seed \d is refused$"):
        seeds.run_by_seed(TABLE, Setting())


@forks
def test_what_is_missing_is_told(instead):
    instead(lacks)
    found = seeds.run_by_seed(TABLE, Setting())
    assert (found.lacks, found.verdicts[0].answer) == ("the data set", "not decided")


@forks
def test_interrupting_keeps_rows_and_ends_all(instead):
    def interrupt(line):
        raise KeyboardInterrupt

    instead(goes_on)
    found = seeds.run_by_seed(TABLE, Setting(report=interrupt))
    assert found.cut
    assert found.rows
    assert multiprocessing.active_children() == []


def test_the_process_of_a_seed_sends_rows_lines_and_its_end(monkeypatch):
    own, far = multiprocessing.Pipe(duplex=False)
    monkeypatch.setattr(seeds.signal, "signal", lambda *_: None)  # of this process
    seeds._measure("hash_table", Setting("miniature", seed=2), far)
    far.close()
    sent = []
    while own.poll():
        sent.append(own.recv())
        if sent[-1][0] == "end":
            break
    rows = [what for kind, what in sent if kind == "row"]
    assert rows == run(TABLE, Setting("miniature", seed=2)).rows
    assert sent[-1] == ("end", "")


def test_an_error_in_the_process_of_a_seed_is_sent(monkeypatch):
    def fails(experiment, setting):
        raise TransductError("line 3: is empty")

    own, far = multiprocessing.Pipe(duplex=False)
    monkeypatch.setattr(seeds.signal, "signal", lambda *_: None)
    monkeypatch.setattr(seeds, "run", fails)
    seeds._measure("hash_table", Setting(), far)
    assert own.recv() == ("error", "line 3: is empty")
