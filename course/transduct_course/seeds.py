"""A full run trains from three seeds, each in a process of its own: as fast as there are cores."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from transduct.errors import TransductError
from transduct.training.log import ignore
from transduct_course.catalogue import find
from transduct_course.experiment import Experiment, Result, Row, Setting, run


def run_by_seed(experiment: Experiment, setting: Setting) -> Result:
    """As `run`. A full run of an experiment in the catalogue has a process for each seed, and its
    rows come seed by seed; seeds know nothing of each other, so the rows are the same."""
    if setting.size != "full" or not experiment.by_seed:
        return run(experiment, setting)
    context, before, result = get_context("spawn"), _of_children(), Result(experiment, setting)
    rows: dict[int, list[Row]] = {seed: [] for seed in setting.seeds}
    pipes, processes = {}, []
    for seed in rows:
        own, far = context.Pipe(duplex=False)
        alone = replace(setting, seed=seed, report=ignore)
        process = context.Process(
            target=_measure, args=(experiment.name, alone, far), name=f"seed {seed}", daemon=True
        )
        process.start()
        far.close()  # so that the pipe ends with its process
        pipes[own] = seed
        processes.append(process)
    try:
        while pipes:
            for pipe in wait([*pipes]):
                assert isinstance(pipe, Connection)
                seed = pipes[pipe]
                try:
                    kind, what = pipe.recv()
                except EOFError:
                    raise TransductError(
                        f"{experiment.name}: the process of seed {seed} ended before its work (the "
                        "memory may be too small for three at once)"
                    ) from None
                match kind:
                    case "row":
                        rows[seed].append(what)
                    case "line":
                        named = f"seed {seed}" in what
                        setting.report(what if named else f"{what} (seed {seed})")
                    case "error":
                        raise TransductError(what)
                    case _:  # the end
                        result.lacks = result.lacks or what
                        del pipes[pipe]
    except KeyboardInterrupt:
        result.cut = True
    finally:
        for process in processes:
            process.terminate()
            process.join()
    result.rows = [row for found in rows.values() for row in found]
    result.seconds = _of_children() - before
    return result


def _measure(name: str, setting: Setting, pipe: Connection) -> None:
    """In the process of a seed: send each row as soon as it is known, and each line to report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    experiment = find(name)

    def sent(setting: Setting) -> Iterator[Row]:
        for row in experiment.measure(setting):
            pipe.send(("row", row))
            yield row

    told = replace(setting, report=lambda line: pipe.send(("line", line)))
    try:
        pipe.send(("end", run(replace(experiment, measure=sent), told).lacks))
    except TransductError as error:
        pipe.send(("error", str(error)))


def _of_children() -> float:
    """The processor's seconds of all processes that were started here and have ended."""
    used = os.times()
    return used.children_user + used.children_system
