"""The page with sliders: one file with its formulas, a trained translator and both languages."""

import base64
import re
from pathlib import Path

from transduct.storage import write_file

PARTS = Path(__file__).parent / "page"
TRANSLATOR = Path(__file__).parent / "translator"  # a model directory, 8 bits a weight
MARK = re.compile(r"/\*\{(.+?)\}\*/")


def written(out: Path) -> None:
    """Write the page. It is opened from disk and loads nothing."""
    write_file(out, MARK.sub(lambda mark: _part(mark[1]), _text(PARTS / "index.html")).encode())


def _part(name: str) -> str:
    if name == "model.safetensors":
        return base64.b64encode((TRANSLATOR / name).read_bytes()).decode()
    return _text((TRANSLATOR if name.endswith(".json") else PARTS) / name).replace("</", "<\\/")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
