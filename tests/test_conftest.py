"""`pytest -m gpu` reads GPU tests alone, and these import nothing that is not always installed."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_ignore_collect

ROOT = Path(__file__).parent


@pytest.mark.parametrize(
    "asked, file, ignored",
    [
        ("gpu", "inference/test_captured.py", None),
        ("gpu", "tasks/test_families.py", True),
        ("gpu", "inference", None),
        ("", "tasks/test_families.py", None),
    ],
)
def test_only_files_with_gpu_tests_are_collected_for_them(asked, file, ignored):
    config = SimpleNamespace(getoption=lambda name: asked)
    assert pytest_ignore_collect(ROOT / file, config) is ignored


def modules_of(path):
    """The modules that a file imports as it is read."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_gpu_tests_are_collected_without_extras():
    known, files = (
        {"transduct", "pytest", "torch", "numpy", "triton"},
        [
            path
            for path in ROOT.rglob("test_*.py")
            if "mark.gpu" in path.read_text(encoding="utf-8") and path.name != "test_conftest.py"
        ],
    )
    assert len(files) > 5
    for path in files:
        for module in modules_of(path):
            inside = ROOT.parent / f"{module.replace('.', '/')}.py"
            if module.startswith("tests.") and inside.exists() and inside not in files:
                files.append(inside)
    standard = set(sys.stdlib_module_names)
    found = {name.split(".")[0] for path in files for name in modules_of(path)}
    assert found <= known | standard | {"tests"}
