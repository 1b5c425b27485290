"""Points of the benchmark of growth: a batch is what it should be, and time and memory are those of
the run."""

import json
import subprocess
import sys
from pathlib import Path

import growth_points
import pytest
from growth_points import Work, median_seconds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_batch_is_of_one_sentence_at_least():
    assert Work(length=64, tokens=128).sentences == 2
    assert Work(length=64, tokens=32).sentences == 1


def test_a_long_run_is_not_repeated(monkeypatch):
    def runs(seconds):
        clock, done = [0.0], []

        def run():
            done.append(1)
            clock[0] += seconds[len(done) - 1]

        monkeypatch.setattr(growth_points.time, "process_time", lambda: clock[0])
        return median_seconds(run), len(done)

    assert runs([9.0, 1.0, 1.0, 3.0, 0.5, 0.5]) == (9.0, 1)
    assert runs([0.75, 0.125, 0.125, 0.25, 0.5, 0.5]) == (0.25, 6)
    assert runs([2.0, 4.0]) == (4.0, 2)


# What other tests have told the C library of this process would count, so another one measures.
MEASURE = """
import json
import torch
from growth_points import cost
held = torch.ones(8 * 2**20)  # 32 MiB
print(json.dumps([cost(lambda: torch.ones(16 * 2**20), 7), cost(lambda: held[0], 7)]))
"""


@pytest.mark.skipif(
    not growth_points.REFERENCES.exists(),
    reason="only Linux tells the highest memory and forgets it",
)
def test_memory_is_what_comes_on_top():
    call = [sys.executable, "-c", MEASURE]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=BENCHMARKS)
    large, nothing = json.loads(done.stdout)
    assert large["MiB"] == pytest.approx(64, abs=4)
    assert nothing == {
        "count": 7,
        "seconds": pytest.approx(0.0, abs=0.1),
        "MiB": pytest.approx(0, abs=4),
    }
