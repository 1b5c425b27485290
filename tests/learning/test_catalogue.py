"""Every experiment runs in miniature, draws, and is found by name."""

import pytest

from transduct.drawing.svg import Picture
from transduct.errors import TransductError
from transduct.learning.catalogue import NAMES, find
from transduct.learning.experiment import Setting, run, table
from transduct.learning.report import told


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
    # The verdict takes rows of this form, although of a miniature it is never shown.
    assert experiment.judge(result.rows).answer in ("holds", "does not hold", "not decided")
    assert {path.suffix for path in result.save(tmp_path)} >= {".json", ".svg"}


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
