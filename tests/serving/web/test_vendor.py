"""What others wrote is here as they published it, and a wheel holds it."""

import os
import re
import subprocess
import sys
import time
import tomllib
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest

from tests.interfaces.clients import listening

ROOT = Path(__file__).parents[3]
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
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = about["tool"]["setuptools"]["package-data"]["transduct"]
    held = {file for pattern in patterns for file in (ROOT / "transduct").glob(pattern)}
    page = {file for file in (ROOT / "transduct/serving/web").rglob("*") if file.is_file()}
    assert len(page) > 50
    assert page <= held


@pytest.mark.slow
def test_a_wheel_brings_its_page(driver, trained_run, tmp_path, monkeypatch):
    """Built from what git tracks, into an empty folder, without the kernels; a browser opens it."""
    from tests.serving.web.browser import Reader

    def run(*words, **more):
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, **more})

    source, site = tmp_path / "source", tmp_path / "site"
    pip = sys.executable, "-m", "pip", "-q"
    run("git", "-C", ROOT, "checkout-index", "--all", f"--prefix={source}/")
    build = *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source
    run(*build, CC="false")
    (wheel,) = tmp_path.glob("*.whl")
    run(*pip, "install", "--no-deps", "--target", site, wheel)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the folder of the sources is not searched
    script = f"import transduct; assert transduct.__file__.startswith({str(site)!r}); "
    script += "from transduct.interfaces.cli import main; main()"
    call = [sys.executable, "-c", script, "serve", str(trained_run), "--port", "0"]
    with subprocess.Popen(call, stderr=subprocess.PIPE) as process:
        try:
            client, _ = listening(process)
            while client("GET", "/ready")[0] != 200:
                time.sleep(0.1)
            reader = Reader(driver, client.port).open()
            reader["textarea"].send_keys("a b c")
            shown = "return document.querySelector('.output').textContent.trim()"
            reader.until(lambda: reader.run(shown))
            reader.quiet()
        finally:
            process.kill()
