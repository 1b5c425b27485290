"""Rows become tables, pictures, verdicts and JSON; what stops a run keeps what was measured."""

import json
import math
from dataclasses import replace

import pytest
from transduct_course import experiment
from transduct_course.experiment import (
    Experiment,
    NotRun,
    Result,
    Setting,
    Verdict,
    Words,
    change,
    ends,
    run,
    shown,
    table,
)

from transduct.drawing.plots import curves
from transduct.errors import MissingExtra, TransductError


def words(text):
    return Words(text, f"{text} (한국어)")


def made(measure, judge=lambda rows: [Verdict("holds", words("as claimed"))], **more):
    return Experiment(
        "sum",
        words("one and one is two"),
        words("added"),
        {"kind": words("kind")},
        {"loss": words("loss")},
        measure,
        lambda rows: curves(range(len(rows)), {"loss": [row["loss"] for row in rows]}),
        judge,
        **more,
    )


def answers(result):
    return [verdict.answer for verdict in result.verdicts]


ROWS = [
    {"kind": "a", "seed": 1, "loss": 1.0},
    {"kind": "a", "seed": 2, "loss": 2.0},
    {"kind": "b", "seed": 1, "loss": 0.25},
]


def test_a_run_keeps_the_rows_and_reports_each():
    told = []
    result = run(made(lambda setting: iter(ROWS)), Setting(report=told.append))
    assert result.rows == ROWS
    assert told[0] == "sum: kind a, loss 1.00"
    assert answers(result) == ["holds"]


def test_a_table_has_means_and_half_of_the_range_over_seeds():
    assert table(made(None), ROWS) == [["kind", "loss"], ["a", "1.50 ± 0.500"], ["b", "0.250"]]
    assert table(made(None), ROWS, "korean")[0] == ["kind (한국어)", "loss (한국어)"]


@pytest.mark.parametrize(
    "value, cell",
    [(True, "yes"), (12345, "12,345"), ("gru", "gru"), (0.9999, "1.00"), (0.0, "0"),
     (1234.5, "1,230"), (0.00012, "1.2e-04"), (math.nan, "-"), (-0.25, "-0.250")],
)  # fmt: skip
def test_cells(value, cell):
    assert shown(value) == cell
    assert shown(value, "korean") == {"yes": "예"}.get(cell, cell)


def test_words_in_cells_have_korean_names():
    named = replace(made(None), korean={"a": "가"})
    assert [line[0] for line in table(named, ROWS, "korean")] == ["kind (한국어)", "가", "b"]
    assert [line[0] for line in table(named, ROWS)] == ["kind", "a", "b"]


def test_interrupting_keeps_what_was_measured(tmp_path):
    def measure(setting):
        yield ROWS[0]
        raise KeyboardInterrupt

    result = run(made(measure), Setting())
    assert result.cut
    assert answers(result) == ["not decided"]
    result.save(tmp_path)
    kept = json.loads((tmp_path / "sum.json").read_text())
    assert kept["rows"] == ROWS[:1]
    assert kept["verdicts"][0]["because"]["english"] == "it was interrupted"
    assert (tmp_path / "sum.svg").exists()


def test_what_is_missing_is_told():
    def without_data(setting):
        yield setting.folder("multi30k")

    result = run(made(without_data), Setting())
    assert result.lacks == "the data set multi30k (give the folder that holds it as --data)"
    assert result.as_json()["not_run"] == result.lacks
    assert answers(result) == ["not decided"]

    def without_extra(setting):
        raise MissingExtra("scipy is not installed; run: pip install 'transduct[vision]'")

    assert "pip install" in run(made(without_extra), Setting()).lacks


def test_a_data_set_is_a_folder_of_data_and_what_is_left_out_without_it_is_told(tmp_path):
    told = []
    setting = Setting(data=tmp_path, report=told.append)
    with pytest.raises(NotRun, match="the data set multi30k"):
        setting.folder("multi30k")
    assert not setting.found("multi30k")
    assert not Setting(report=told.append).found("multi30k")
    line = "left out: what needs the data set multi30k (its folder is in --data)"
    assert told == [line, line]
    (tmp_path / "multi30k").mkdir()
    assert setting.found("multi30k")
    assert setting.folder("multi30k") == tmp_path / "multi30k"
    assert len(told) == 2


def test_combinations_are_reported_with_their_number_and_the_time_left():
    told = []
    found = [*Setting("quick", report=told.append).each("ab", (4, 8))]
    assert found == [("a", 4, 1), ("a", 8, 1), ("b", 4, 1), ("b", 8, 1)]
    assert told[0] == "1 of 4: a, 4, seed 1"
    assert told[3] == "4 of 4: b, 8, seed 1; about 0 minutes left"
    assert [*Setting("quick", report=told.append).each([("a", 4)])] == [(("a", 4), 1)]
    assert [*Setting("quick", report=told.append).each()] == [(1,)]
    assert told[4:] == ["1 of 1: a, 4, seed 1", "1 of 1: seed 1"]


def test_other_errors_are_not_swallowed():
    def broken(setting):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(made(broken), Setting())


def test_a_miniature_decides_nothing():
    assert answers(run(made(lambda setting: ROWS), Setting("miniature"))) == ["not decided"]
    assert answers(run(made(lambda setting: ROWS), Setting("quick"))) == ["holds"]


@pytest.mark.parametrize("size", ["full", "quick"])
def test_where_nothing_was_learnt_nothing_is_decided(size):
    """Although the judge sees a difference between two models that both guess."""
    lost = made(lambda setting: ROWS, learnt=lambda row: row["loss"] < 0.2)
    [verdict] = run(lost, Setting(size)).verdicts
    assert verdict.answer == "not decided"
    assert verdict.because.english.startswith("no model learnt more than a guess")
    found = made(lambda setting: ROWS, learnt=lambda row: row["loss"] < 0.3)
    assert answers(run(found, Setting(size))) == ["holds"]


def test_a_verdict_of_a_part_names_it():
    verdict = Verdict.of(False, words("it is not"), words("fast"))
    assert verdict.told("english") == ("fast: does not hold", "it is not")
    assert verdict.told("korean") == ("fast (한국어): 맞지 않다", "it is not (한국어)")
    assert Verdict.of(None, words("who knows")).told("english")[0] == "not decided"


def test_rows_come_back_from_json(tmp_path):
    rows = [{"kind": "a", "loss": 0.1234567891, "curve": [1.0, math.nan], "more": {"x": math.inf}}]
    run(made(lambda setting: rows), Setting()).save(tmp_path)
    found = Result.read(made(None), tmp_path / "sum.json")
    assert found.rows == [
        {"kind": "a", "loss": 0.123457, "curve": [1.0, None], "more": {"x": None}}
    ]
    assert found.files()["sum.json"] == (tmp_path / "sum.json").read_bytes()


def test_rows_are_refused_where_there_are_none(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(TransductError, match=r"x.json: holds no rows of an experiment"):
        Result.read(made(None), tmp_path / "x.json")


def test_without_matplotlib_the_picture_is_an_svg(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    paths = run(made(lambda setting: ROWS), Setting()).save(tmp_path)
    assert {path.suffix for path in paths} == {".json", ".svg"}


def test_sizes_and_seeds():
    settings = [Setting(size) for size in ("full", "quick", "miniature")]
    assert [each.pick(3, 2, 1) for each in settings] == [3, 2, 1]
    assert [len(each.seeds) for each in settings] == [3, 1, 1]
    assert [*Setting(seed=2).seeds] == [2]
    assert [*Setting("quick", seed=3).seeds] == [3]


def test_means_choose_rows():
    assert experiment.mean(ROWS, "loss", kind="a") == 1.5
    assert math.isnan(experiment.mean(ROWS, "loss", kind="c"))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (change(0.98, 0.36), ("goes from 98% to 36%", "98%에서 36%로 바뀐다")),
        (change(1.0, 0.999), ("stays at 100%", "100%를 유지한다")),
        (ends(1.61, 0.003), ("ends at 1.610 instead of 0.003", "0.003 대신 1.610에서 끝난다")),
        (ends(0.0031, 0.0029), ("ends at 0.003 either way", "어느 쪽이든 0.003에서 끝난다")),
    ],
)
def test_sentences(made, expected):
    assert made == expected
