"""The command `transduct learn`; the experiments are imported when it runs."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from transduct.interfaces.options import AsJson
from transduct.interfaces.program import UsageError

if TYPE_CHECKING:
    from transduct_course.experiment import Experiment, Result, Setting


def learn(
    name: Annotated[
        str | None, typer.Argument(help="An experiment; all are listed if none.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Run every experiment.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds to two minutes each.")] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="ROOT", help="The folder of the data sets.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where numbers and pictures are written.")] = Path(
        "runs/learn"
    ),
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page with sliders, and no more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a claim of the lecture notes by an experiment.

    Trains something small, measures it, draws it and says whether the claim holds.

    \b
    Examples:
    transduct learn
    transduct learn scale --quick
    transduct learn --all --data DATA --out runs/learn
    transduct learn --page sliders.html
    """
    from transduct.interfaces.terminal import require_place
    from transduct_course import report, sliders
    from transduct_course.catalogue import NAMES, find
    from transduct_course.experiment import Setting

    if name is not None and everything:
        raise UsageError(f"found both {name} and --all; give one of them")
    if page is not None:
        if name is not None or everything or quick or data is not None or as_json:
            raise UsageError("--page stands alone: it writes a page and runs no experiment")
        sliders.written(page)
        print(f"{page}: open it in a browser")
        return
    if name is None and not everything and (quick or data is not None):
        raise UsageError("name an experiment to run, or give --all; transduct learn lists them")
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: no such folder; give the one that holds the data sets")
    if name is None and not everything:
        known = [find(each) for each in NAMES]
        claims = [{"name": each.name, "claim": each.claim._asdict()} for each in known]
        line = json.dumps({"experiments": claims}, ensure_ascii=False)
        print(*([line] if as_json else report.listed(known)), sep="\n")
        return
    require_place(out)
    setting = Setting("quick" if quick else "full", data, partial(print, file=sys.stderr))
    experiments = [find(each) for each in ([name.lower()] if name else NAMES)]
    found = _run(experiments, setting, out, printed=not as_json)
    if as_json:
        records = [result.as_json() for result in found]
        print(json.dumps({"experiments": records}, ensure_ascii=False))
    if found[-1].cut:  # what was measured until then has been printed and written
        raise KeyboardInterrupt


def _run(
    experiments: "list[Experiment]", setting: "Setting", out: Path, printed: bool
) -> "list[Result]":
    """The results of experiments, each written when it is known; printed too, unless they are to be
    JSON. Experiments that measure the same share it. A cut one is the last."""
    from transduct_course import report
    from transduct_course.seeds import run_by_seed

    found: list[Result] = []
    begun = time()
    for number, experiment in enumerate(experiments):
        if number:
            left = (time() - begun) / number * (len(experiments) - number) / 60
            setting.report(f"{number + 1} of {len(experiments)}; about {left:.0f} minutes left")
        if printed:
            print(*report.introduced(experiment), sep="\n", flush=True)
        same = next((r for r in found if r.experiment.measure is experiment.measure), None)
        result = (
            replace(same, experiment=experiment, seconds=0.0)
            if same
            else run_by_seed(experiment, setting)
        )
        paths = result.save(out)
        found.append(result)
        if printed:
            print(*report.told(result, paths), "", sep="\n", flush=True)
        if result.cut:
            break
    return found
