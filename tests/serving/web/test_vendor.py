"""What others wrote is here as they published it, and a wheel holds it."""

import re
import tomllib
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest

FOLDERS = files("transduct.serving") / "web/vendor", Path(__file__).parent / "vendor"


@pytest.mark.parametrize("folder", FOLDERS, ids=["page", "tests"])
def test_each_file_has_its_digest_and_its_licence(folder):
    known = (folder / "README.md").read_text(encoding="utf-8")
    scripts = [each for each in folder.iterdir() if each.name.endswith(".js")]
    found = {sha256(each.read_bytes()).hexdigest() for each in scripts}
    assert set(re.findall("[0-9a-f]{64}", known)) == found
    assert all(each.name in known for each in scripts)
    assert [each for each in folder.iterdir() if "LICENSE" in each.name]


def test_the_wheel_holds_every_file_of_the_page():
    """By the patterns that setuptools takes them by."""
    root = Path(__file__).parents[3]
    about = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = about["tool"]["setuptools"]["package-data"]["transduct"]
    held = {file for pattern in patterns for file in (root / "transduct").glob(pattern)}
    page = {file for file in (root / "transduct/serving/web").rglob("*") if file.is_file()}
    assert len(page) > 50
    assert page <= held
