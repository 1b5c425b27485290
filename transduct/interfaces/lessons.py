"""What `transduct learn` and `transduct describe` do and print."""

import json
from collections.abc import Callable
from pathlib import Path

from transduct.config import record
from transduct.drawing.plots import check_ending, save
from transduct.errors import TransductError
from transduct.interfaces.terminal import require_folders, require_place
from transduct.learning import report
from transduct.learning.architecture import described, drawing, parts
from transduct.learning.catalogue import NAMES, find
from transduct.learning.experiment import Setting, Size
from transduct.learning.seeds import run_by_seed
from transduct.predictors.base import configuration, model_directory
from transduct.predictors.options import Languages
from transduct.storage import CONFIG, WEIGHTS, read_tensors


def describe(model: str, out: Path | None, as_json: bool) -> None:
    """Print a model's task, settings and parts, and draw it into `out`."""
    check_ending(out)
    require_folders(out)
    directory = model_directory(model)
    config = configuration(directory)
    if not (directory / WEIGHTS).exists():
        raise TransductError(
            f"{directory}: holds no {WEIGHTS}, as an ensemble does; describe one of its members"
        )
    weights = read_tensors(directory / WEIGHTS)
    shape = {name: value for name, value in config.get("model", {}).items() if value is not None}
    about = {"task": config["task"], "family": config.get("family", "-"), **shape}
    if held := config.get("languages"):
        languages = record(Languages, held, "languages", str(directory / CONFIG)).shown()
        about["languages"] = languages if as_json else ", ".join(languages)
    if as_json:
        held = [
            {
                "name": part.name,
                "shape": part.shape,
                "layers": len(part.layers),
                "parameters": part.parameters,
            }
            for part in parts(weights)
        ]
        print(json.dumps({"about": about, "parts": held}, default=str))
    else:
        print(*(f"{name}: {value}" for name, value in about.items()), "", sep="\n")
        print(*report.aligned(described(weights)), sep="\n")
    if out is not None:
        save(drawing(weights, f"{model}: {about['task']}, {about['family']}"), out)


def learn(
    name: str | None,
    everything: bool,
    size: Size,
    data: Path | None,
    out: Path,
    as_json: bool,
    say: Callable[[str], None],
) -> None:
    """List all experiments, or run one or all and print what each found.

    Raises:
        KeyboardInterrupt: Ctrl-C came; what was measured until then has been printed and written.
    """
    if name is None and not everything:
        known = [find(each) for each in NAMES]
        claims = [{"name": each.name, "claim": each.claim._asdict()} for each in known]
        lines = [json.dumps({"experiments": claims}, ensure_ascii=False)]
        print(*(lines if as_json else report.listed(known)), sep="\n")
        return
    require_place(out)
    setting, found = Setting(size, data, say), []
    for experiment in [find(each) for each in ([name] if name else NAMES)]:
        if not as_json:
            print(*report.introduced(experiment), sep="\n", flush=True)
        result = run_by_seed(experiment, setting)
        paths = result.save(out)
        found.append(result)
        if not as_json:
            print(*report.told(result, paths), "", sep="\n", flush=True)
        if result.cut:
            break
    if as_json:
        records = [result.as_json() for result in found]
        print(json.dumps({"experiments": records}, ensure_ascii=False))
    if found[-1].cut:
        raise KeyboardInterrupt
