"""What is printed of an experiment."""

from transduct_course.experiment import Setting, run
from transduct_course.report import introduced, listed, told

from course.tests.test_experiment import ROWS, made


def test_a_list_has_names_and_claims_in_both_languages():
    assert [*listed([made(None)])] == [
        "sum  one and one is two",
        "     one and one is two (한국어)",
    ]


def test_an_introduction_says_claim_and_measure():
    assert [*introduced(made(None))] == [
        "sum: one and one is two",
        "one and one is two (한국어)",
        "added",
        "added (한국어)",
    ]


def test_a_result_is_a_table_a_verdict_and_paths(tmp_path):
    result = run(made(lambda setting: ROWS), Setting())
    assert [*told(result, [tmp_path])] == [
        "kind          loss",
        "   a  1.50 ± 0.500",
        "   b         0.250",
        "sum: holds: as claimed",
        "sum: 맞다: as claimed (한국어)",
        f"sum: {tmp_path}",
    ]
