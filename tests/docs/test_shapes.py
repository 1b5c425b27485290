"""docs/shapes.md lists every letter that a shape comment of the package uses."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMENT = re.compile(r"#\s+\(([^)]*)\)")  # "# (B, H, T, S)" at the end of a line


def letters_in(text: str) -> set[str]:
    """The capital letters that stand alone in the shape comments of a text."""
    return {letter for shape in COMMENT.findall(text) for letter in re.findall(r"\b[A-Z]\b", shape)}


def test_every_letter_is_listed():
    listed = set(re.findall(r"`([A-Z])`", (ROOT / "docs" / "shapes.md").read_text()))
    for path in sorted((ROOT / "transduct").rglob("*.py")):
        assert letters_in(path.read_text()) <= listed, path


def test_a_letter_is_found_where_it_stands():
    assert letters_in("y = x.view(2, 3)  # (B, 2 * Z, head)\n# (not a shape)") == {"B", "Z"}
