"""What every task is used for: its model is loaded, scored and compared; and how the package offers
it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

import transduct
from tests.recipes import tiny_recipe
from transduct.errors import TransductError
from transduct.runs import train

SHORT = tiny_recipe(training={"steps": 2})


def test_an_unknown_task_is_refused(tmp_path):
    for name in ("base", "translator", "poetry"):
        with pytest.raises(
            TransductError, match=f"recipe: unknown task '{name}'; known are: image_classification"
        ):
            train.train(replace(SHORT, task=name), tmp_path / "run", notify=str)


# the package itself


@pytest.mark.parametrize(
    ("asked", "found"),
    [({}, transduct.SPINS), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_idle_threads_spin_only_briefly_unless_the_environment_says_otherwise(
    monkeypatch, asked, found
):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    transduct.share_cores()
    assert os.environ.get("GOMP_SPINCOUNT") == found


@pytest.mark.parametrize(
    ("quota", "asked", "found"),
    [
        ("150000 100000\n", None, "2"),
        ("20000 100000\n", None, "1"),
        ("150000 100000\n", "7", "7"),
        ("99900000 100000\n", None, None),
        ("max 100000\n", None, None),
        ("odd\n", None, None),
        (None, None, None),
    ],
)
def test_threads_are_no_more_than_the_cores_that_a_container_may_use(
    monkeypatch, tmp_path, quota, asked, found
):
    monkeypatch.setattr(transduct, "QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", asked or "")
    if asked is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    transduct.share_cores()
    assert os.environ.get("OMP_NUM_THREADS") == found
    assert transduct.cores() == (8 if found is None else 2 if asked else int(found))


def test_looking_up_load_limits_the_spinning_of_threads_too():
    script = "import os, transduct; transduct.load; print(os.environ['GOMP_SPINCOUNT'])"
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == transduct.SPINS
