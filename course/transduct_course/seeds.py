"""A full run trains from three seeds, each in a process of its own: as fast as there are cores."""

import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context

from transduct.errors import TransductError
from transduct_course.catalogue import find
from transduct_course.experiment import Experiment, Result, Row, Setting, run

Measured = tuple[list[Row], str, float]  # rows, what is lacking, and seconds of a core


def run_by_seed(experiment: Experiment, setting: Setting) -> Result:
    """As `run`. A full run of an experiment in the catalogue has a process for each seed, and its
    rows come seed by seed; seeds know nothing of each other, so the rows are the same. Lines to
    report go to stderr."""
    if setting.size != "full" or not experiment.by_seed:
        return run(experiment, setting)
    result, context = Result(experiment, setting), get_context("spawn")
    others = {*active_children()}
    with ProcessPoolExecutor(len(setting.seeds), context, _begin) as pool:
        parts: list[Future[Measured]] = []
        try:
            for number in setting.seeds:
                alone = replace(setting, seed=number, report=partial(_say, number))
                parts.append(pool.submit(_measured, experiment.name, alone))
            found = [part.result() for part in parts]
        except KeyboardInterrupt:
            result.cut = True
            children = {*active_children()} - others
            for process in children:
                process.terminate()  # its `run` keeps the rows that there are
            found = [part.result() for part in parts if not part.exception()]
            for process in children:
                process.kill()  # to end by itself may take seconds
        except BrokenProcessPool:
            raise TransductError(
                f"{experiment.name}: the process of a seed ended before its work (the memory may "
                "be too small for three at once)"
            ) from None
    result.rows = [row for rows, *_ in found for row in rows]
    result.lacks = next((lacks for _, lacks, _ in found if lacks), "")
    result.seconds = sum(seconds for *_, seconds in found)
    return result


def _begin() -> None:
    """In the process of a seed: Ctrl-C is for the process that waits, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _measured(name: str, setting: Setting) -> Measured:
    """In the process of a seed."""
    result = run(find(name), setting)
    return result.rows, result.lacks, result.seconds


def _say(seed: int, line: str) -> None:
    sys.stderr.write(line if f"seed {seed}" in line else f"{line} (seed {seed})")
    sys.stderr.write("\n")
