"""The speedrun: its recipe holds what it says, and its miniature goes all the way on a CPU."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from speedrun import recipe_of, run, since_start

from transduct.predictors.base import Report
from transduct.tasks.translation import TranslationTask

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speedrun.py"
WORDS = {
    "a": "ein",
    "dog": "hund",
    "cat": "kater",
    "runs": "rennt",
    "sleeps": "schläft",
    "and": "und",
}


@pytest.fixture
def data(tmp_path):
    """As much like Multi30k as a miniature needs."""
    for split, count in (("train", 200), ("val", 4), ("test_2016_flickr", 4)):
        lines = [[list(WORDS)[(7 * i + i * j) % 6] for j in range(1 + i % 9)] for i in range(count)]
        for language, words in (("en", {}), ("de", WORDS)):
            text = "".join(
                " ".join(words.get(word, word) for word in line) + "\n" for line in lines
            )
            (tmp_path / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


@pytest.mark.parametrize("miniature", [False, True])
def test_its_recipe_is_a_recipe(tmp_path, miniature):
    task = TranslationTask(recipe_of(tmp_path, miniature, {"steps": 7}), tmp_path, str)
    assert (task.training.steps, task.training.capture, task.training.compile) == (7, True, False)
    assert task.data.root == str(tmp_path)
    assert task.data.test is not None


def test_the_clock_starts_with_the_process():
    one = since_start()
    assert 0.0 < one <= since_start()


@pytest.mark.parametrize(
    "bleu, seconds, reached", [(37.1, 40.0, True), (37.0, 20.0, False), (38.0, 41.0, False)]
)
def test_the_goal_is_a_score_within_a_time(data, monkeypatch, bleu, seconds, reached):
    monkeypatch.setattr("transduct.runs.train.train", lambda *_, **__: None)
    monkeypatch.setattr("transduct.runs.evaluate.evaluate", lambda _: Report({"bleu": bleu}))
    monkeypatch.setattr("speedrun.since_start", lambda: seconds)
    assert run(data, data, True, {}, print)["reached"] is reached


@pytest.mark.slow
def test_the_miniature_ends_with_a_score_and_the_seconds_of_each_phase(data, tmp_path):
    call = [sys.executable, SCRIPT, data, "--miniature", "--out", tmp_path / "out"]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=SCRIPT.parents[1])
    found = json.loads(done.stdout)
    assert list(found["seconds"]) == [
        "imports",
        "first steps",
        "last step",
        "model saved",
        "scored",
    ]
    assert list(found["seconds"].values()) == sorted(found["seconds"].values())
    assert (found["steps"], found["reached"]) == (12, False)
    assert 0.0 <= found["bleu"] <= 100.0
    assert (tmp_path / "out" / "run" / "model" / "config.json").exists()
