"""Engines do each shard, the one of a worker that was killed again, and report what is wrong."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.refusals import refusal
from transduct.bulk import engines
from transduct.errors import TransductError

SHARDS = range(4)  # whatever can be sent to a worker


class Echo:
    """Answers the number of a shard; the process dies at one of them, as often as is said."""

    def __init__(self, folder, deaths=0, at=2, wrong=None):
        self.folder, self.deaths, self.at, self.wrong = folder, deaths, at, wrong

    def __call__(self, shard):
        died = len(list(self.folder.iterdir()))
        if shard == self.at and died < self.deaths:
            (self.folder / str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if shard == self.wrong:
            raise TransductError("is wrong", file="x", line=3)
        return shard


def test_all_shards_are_done_here(tmp_path):
    assert list(engines.in_this_process(partial(Echo, tmp_path), SHARDS)) == [0, 1, 2, 3]


def test_processes_do_the_shard_of_a_killed_worker_again(tmp_path):
    found = list(engines.processes(partial(Echo, tmp_path, 1), SHARDS, 2))
    assert sorted(found) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_workers_that_die_again_and_again_end_the_job(tmp_path):
    message = "a worker was killed 3 times, perhaps for want of memory; use fewer with --workers"
    with refusal(message):
        list(engines.processes(partial(Echo, tmp_path, 99), SHARDS[2:3], 1))


def test_an_error_of_a_process_keeps_its_place(tmp_path):
    with pytest.raises(TransductError) as caught:
        list(engines.processes(partial(Echo, tmp_path, wrong=1), SHARDS, 1))
    assert (caught.value.file, caught.value.line) == ("x", 3)


@pytest.fixture(scope="module", autouse=True)
def no_process_of_ray_is_left():
    yield
    left = [line for line in map(_command, Path("/proc").glob("[0-9]*")) if b"raylet" in line]
    assert not left


def _command(folder):
    try:
        mine = (folder / "stat").read_text().split()[3] == str(os.getpid())
        return (folder / "cmdline").read_bytes() if mine else b""
    except OSError:
        return b""


@pytest.mark.slow
def test_ray_does_the_shard_of_a_killed_actor_again(tmp_path):
    make = partial(Echo, tmp_path, 1)
    assert sorted(engines.on_ray(make, SHARDS, 2, "local", 0)) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(TransductError) as caught:
        list(engines.on_ray(partial(Echo, tmp_path, wrong=1), SHARDS, 1, "local", 0))
    assert (caught.value.file, caught.value.line) == ("x", 3)


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_refused(address, tmp_path):
    with refusal(f"no cluster of Ray at '{address}' .*; start one, or use --ray local"):
        list(engines.on_ray(partial(Echo, tmp_path), SHARDS, 1, address, 0))


def test_a_cluster_that_lacks_what_is_asked_for_is_refused(monkeypatch):
    has = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0})
    monkeypatch.setitem(sys.modules, "ray", has)
    monkeypatch.setattr(engines, "SECONDS", 0.0)
    engines.require_resources(4, 0)
    message = "Ray has 4 CPUs and 0 GPUs, but 2 and 2 are asked for; ask for fewer --ranks or"
    with refusal(message):
        engines.require_resources(2, 2)


def test_a_cluster_that_is_lost_is_named(monkeypatch):
    class RayError(Exception):
        pass

    def lost(*_):
        raise RayError

    errors = SimpleNamespace(RayError=RayError, RayTaskError=ZeroDivisionError)
    pool = SimpleNamespace(map_unordered=lost)
    ray = SimpleNamespace(
        exceptions=errors, remote=lambda **_: lambda _: SimpleNamespace(remote=bool)
    )
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace(ActorPool=lambda _: pool))
    monkeypatch.setattr(engines, "cluster", lambda *_: nullcontext(ray))
    monkeypatch.setattr(engines, "require_resources", lambda *_: None)
    message = r"the cluster of Ray was lost \(RayError\); see that it runs, then run again"
    with refusal(message):
        list(engines.on_ray(bool, SHARDS, 2, "auto", 0))


class Endless(Echo):
    """Does its first shard, and no other."""

    def __call__(self, shard):
        if shard:
            threading.Event().wait()
        return shard


class Waiting(Echo):
    """Writes down who does a shard, and does not end."""

    def __call__(self, shard):
        (self.folder / str(os.getpid())).touch()
        threading.Event().wait()


def _wait_for(folder):
    list(engines.processes(partial(Waiting, folder), SHARDS, 2))


def test_workers_end_when_their_driver_is_killed(tmp_path):
    driver = multiprocessing.get_context("forkserver").Process(target=_wait_for, args=(tmp_path,))
    driver.start()
    while len(workers := [*tmp_path.iterdir()]) < 2:
        time.sleep(0.05)
    driver.kill()
    driver.join()
    while any(Path("/proc", worker.name).exists() for worker in workers):
        time.sleep(0.05)


def test_who_stops_early_leaves_no_worker_behind(tmp_path):
    others = {*multiprocessing.active_children()}  # such as a fixture's
    found = engines.processes(partial(Endless, tmp_path), SHARDS, 2)
    assert next(found) == 0
    found.close()
    assert {*multiprocessing.active_children()} <= others
