"""What `transduct describe` does and prints."""

import json
from pathlib import Path

from transduct.config import record
from transduct.drawing.models import aligned, described, drawing, parts
from transduct.drawing.plots import check_ending, save
from transduct.errors import TransductError
from transduct.interfaces.terminal import require_folders
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
        print(*aligned(described(weights)), sep="\n")
    if out is not None:
        save(drawing(weights, f"{model}: {about['task']}, {about['family']}"), out)
