"""The demo prints all its parts, whatever the model has learnt."""

import re
import signal

import pytest
import yaml

from transduct.errors import TrainingFailed
from transduct.interfaces import demo
from transduct.interfaces.progress import Watcher
from transduct.predictors.base import load
from transduct_corpora.texts import english_number, korean_number


@pytest.fixture
def shrunk(tmp_path, monkeypatch):
    """The demo's own recipe, made to train for three steps; the folder to train in."""
    recipe = yaml.safe_load(demo.RECIPE.read_text(encoding="utf-8"))
    recipe["training"] |= {"steps": 3, "warmup": 1, "batch_tokens": 200, "log_every": 1}
    recipe["model"] |= {"d_model": 16, "d_ff": 16}
    for part in (recipe["data"]["train"][0], recipe["data"]["valid"], recipe["data"]["test"]):
        part["count"] = 20
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(recipe))
    monkeypatch.setattr(demo, "RECIPE", path)
    return tmp_path / "runs" / "demo"


def test_an_interrupted_demo_says_how_to_go_on(shrunk, monkeypatch):
    class Stopping(Watcher):
        def __call__(self, event):
            super().__call__(event)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo, "Watcher", Stopping)
    with pytest.raises(
        TrainingFailed, match="stopped by a signal at step 1; go on with the same command"
    ):
        demo.run(shrunk)


def test_the_demo_shows_its_work_and_shows_it_again(shrunk, capsys):
    demo.run(shrunk)
    shown = capsys.readouterr()
    translations, alignment, following = (
        shown.out.index(part) for part in ("Translations:", "Where the decoder looked", "Next ")
    )
    assert translations < alignment < following
    for text in demo.SHOWN:
        assert f"  {text}\n    -> " in shown.out
    assert f"transduct translate {shrunk / 'model'}\n" in shown.out
    assert re.fullmatch(r"exact match: \d+\.\d %", shown.out.splitlines()[-1])
    assert "Learning to turn English number names into Korean ones" in shown.err
    assert "validation: " in shown.err
    assert "leaves no room" not in shown.err
    assert "warning" not in shown.err.lower()
    assert (shrunk / "alignment.svg").read_text(encoding="utf-8").startswith("<svg")
    demo.run(shrunk)
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "this run is finished" in again.err


@pytest.mark.slow
@pytest.mark.timeout(900)  # two minutes, and other tests beside
def test_it_learns_what_it_promises(tmp_path, capsys):
    demo.run(tmp_path / "demo")
    assert (
        float(
            capsys.readouterr()
            .out.splitlines()[-1]
            .removeprefix("exact match: ")
            .removesuffix(" %")
        )
        >= 99.0
    )
    shown = [korean_number(n) for n in (321_005, 19_084, 10_000, 200_000_001, 987_654_321)]
    assert load(tmp_path / "demo" / "model").predict(demo.SHOWN) == shown
    small = range(100)  # what one types first, and hardly one of the unseen numbers
    found = load(tmp_path / "demo" / "model").translate(
        [english_number(number) for number in small]
    )
    wrong = [number for number in small if found[number].text != korean_number(number)]
    assert len(wrong) <= 1, wrong
