"""Every experiment runs in miniature, draws, and is found by name."""

import sys

import pytest
from transduct_course.catalogue import NAMES, find
from transduct_course.experiment import Setting, run, table
from transduct_course.report import told

from course.tests import datasets
from transduct.drawing.svg import Picture
from transduct.errors import TransductError


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_runs_and_draws_in_miniature(name, tmp_path):
    experiment = find(name)
    result = run(experiment, Setting("miniature"))
    assert result.rows or result.lacks
    if result.lacks:
        assert "needs" in next(told(result))
        return
    for part in (result.rows, result.rows[:1]):  # also what an interrupted run has
        picture = experiment.draw(part)
        assert isinstance(picture, Picture)
        assert len(picture.shapes) > 5
    assert len(table(experiment, result.rows)) > 1
    # The judge takes rows of this form, although of a miniature nothing is decided.
    assert all(verdict.because.korean for verdict in experiment.judge(result.rows))
    assert {path.suffix for path in result.save(tmp_path)} >= {".json", ".svg"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return datasets.write_all(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("bert_pretraining", "data", {"SST-2", "NSMC", "tags", "multi30k, English to German"}),
        ("speech_heads", "data", {"made-up sounds", "recorded digits"}),
        ("it_the_animal", "model", {"untrained", "trained"}),
    ],
)
def test_an_experiment_reads_the_data_that_is_there(name, key, expected, data):
    if name == "speech_heads":
        pytest.importorskip("soundfile")
    experiment = find(name)
    result = run(experiment, Setting("miniature", data))
    assert {row[key] for row in result.rows} == expected
    assert len(experiment.draw(result.rows).shapes) > 5
    assert all(verdict.because.korean for verdict in experiment.judge(result.rows))
    assert len(table(experiment, result.rows)) > len(expected)


def test_recordings_that_cannot_be_read_are_told_and_the_rest_is_measured(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    told = []
    result = run(find("speech_heads"), Setting("miniature", data, told.append))
    assert {row["data"] for row in result.rows} == {"made-up sounds"}
    assert not result.lacks
    assert any("no recordings: " in line and "speech" in line for line in told)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_says_all_in_both_languages(name):
    experiment = find(name)
    assert experiment.name == name
    said = [experiment.claim, experiment.about]
    for words in (*said, *experiment.keys.values(), *experiment.values.values()):
        assert words.english.isascii() or set(words.english) - set("·√²×°äöüß—é") <= set(
            map(chr, range(128))
        )
    assert all(any("가" <= letter <= "힣" for letter in words.korean) for words in said)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(
        TransductError, match="no experiment is called 'scales'; the nearest is scale "
    ):
        find("scales")
