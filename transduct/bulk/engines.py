"""Who does the shards: this process, processes of this machine, or actors of Ray.

Each engine gives a shard to one worker at a time, and does the shard of a worker that was killed
again. What a shard is, and that it is done once, is decided elsewhere.
"""

import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread
from typing import Any

from transduct.data.splits import Engine, Work, in_this_process
from transduct.devices import cores
from transduct.errors import TransductError, needing, require

TRIES = 3  # times in a row that workers may die without a shard done
SECONDS = 10.0  # in which a cluster must answer, and then have what is asked for
LOCAL = "local"  # of `--ray`: a cluster on this machine alone

_loaded: list[Work] = []  # of a worker process


def chosen(workers: int, ray: str | None, gpus: int = 0) -> Engine:
    """The engine for so many workers, or for one a shard if there are fewer.

    Args:
        ray: the address of a cluster; without, workers are processes of this machine.
        gpus: of each actor.
    """

    def engine(make: Callable[[], Work], shards: Sequence[Any]) -> Iterator[Any]:
        count = min(workers, len(shards))
        if ray is not None:
            return on_ray(make, shards, count, ray, gpus)
        return in_this_process(make, shards) if count == 1 else processes(make, shards, count)

    return engine


def processes(make: Callable[[], Work], shards: Sequence[Any], workers: int) -> Iterator[Any]:
    """Do the shards in processes of this machine, each with its share of the cores.

    Raises:
        TransductError: a shard is wrong, or processes were killed again and again.
    """
    context, others = (
        multiprocessing.get_context("forkserver"),
        {*multiprocessing.active_children()},
    )
    context.set_forkserver_preload(["transduct.bulk.jobs"])  # with PyTorch: once for all workers
    threads = max(1, cores() // workers)
    waiting, failures = dict(enumerate(shards)), 0
    while waiting:
        with ProcessPoolExecutor(workers, context, _begin, (make, threads)) as pool:
            running = {pool.submit(_do, shard): place for place, shard in waiting.items()}
            try:
                for future in as_completed(running):
                    result = future.result()
                    del waiting[running[future]]
                    failures = 0
                    yield result
            except BrokenProcessPool as error:
                failures += 1
                if failures == TRIES:
                    raise TransductError(
                        f"a worker was killed {TRIES} times, perhaps for want of memory; use "
                        "fewer with --workers, then run again: what is done stays"
                    ) from error
            finally:  # nothing to do, an error, or Ctrl-C: a shard under way is done anew later
                for worker in {*multiprocessing.active_children()} - others if waiting else ():
                    worker.terminate()
                pool.shutdown(wait=True, cancel_futures=True)


def _begin(make: Callable[[], Work], threads: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends them
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(threads)
    _loaded.append(make())


def _end_with(parent: Any) -> None:
    """End this process when the one that gives it shards is gone, perhaps killed."""
    parent.join()
    os._exit(1)


def _do(shard: Any) -> Any:
    return _loaded[0](shard)


def on_ray(
    make: Callable[[], Work], shards: Sequence[Any], workers: int, address: str, gpus: float
) -> Iterator[Any]:
    """Do the shards in actors of Ray, which replaces those that die.

    Args:
        address: of a cluster, "auto" for the one that runs, or "local" for one on this machine,
            which listens there alone, without dashboard and usage reports.
        gpus: of each actor.

    Raises:
        TransductError: Ray is not installed, cannot be reached or is lost, or a shard is wrong.
    """
    with cluster(address, workers) as ray:
        from ray.util import ActorPool

        require_resources(workers, gpus * workers)
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(_Actor)
        pool: Any = ActorPool([actor.remote(make) for _ in range(workers)])
        try:
            yield from pool.map_unordered(lambda each, shard: each.do.remote(shard), [*shards])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TransductError | OSError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:  # such as a machine's own process of Ray
            raise TransductError(
                f"the cluster of Ray was lost ({type(error).__name__}); see that it runs, then run "
                "again: what is done stays"
            ) from error


@contextmanager
def cluster(address: str, cpus: int) -> Iterator[Any]:
    """Join a cluster of Ray, and leave it in the end; yields the library.

    Args:
        address: see `on_ray`.
        cpus: of a cluster on this machine.

    Raises:
        TransductError: Ray is not installed or cannot be reached.
    """
    with needing("cluster", "ray"):
        import ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if place := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
            # Ray itself would try for minutes
            socket.create_connection((place[1], int(place[2])), SECONDS).close()
        if address == LOCAL:
            ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
            )
        else:
            ray.init(address, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TransductError(
            f"no cluster of Ray at '{address}' ({reason}); start one, or use --ray local"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def require_resources(cpus: float, gpus: float) -> None:
    """Refuse to wait for what the cluster that was joined does not have.

    Raises:
        TransductError: it has fewer CPUs or GPUs than these.
    """
    import ray as library

    ray: Any = library
    until = time.monotonic() + SECONDS
    while True:  # a machine may have just come
        has = {"CPU": 0.0, "GPU": 0.0, **ray.cluster_resources()}
        if has["CPU"] >= cpus and has["GPU"] >= gpus:
            return
        require(
            time.monotonic() < until,
            f"Ray has {has['CPU']:g} CPUs and {has['GPU']:g} GPUs, but {cpus:g} and {gpus:g} are "
            "asked for; ask for fewer --ranks or --workers, or add machines",
        )
        time.sleep(0.2)


class _Actor:
    def __init__(self, make: Callable[[], Work]) -> None:
        self.work = make()

    def do(self, shard: Any) -> Any:
        return self.work(shard)
