"""What is printed of an experiment."""

from transduct_course.catalogue import NAMES, find
from transduct_course.experiment import Setting, run
from transduct_course.report import WIDTH, fitted, introduced, listed, told

from course.tests.test_experiment import ROWS, made
from transduct.drawing.svg import text_columns


def test_a_list_has_names_and_claims_in_both_languages():
    assert [*listed([made(None)])] == [
        "sum  one and one is two",
        "     one and one is two (한국어)",
    ]


def test_lines_fit_a_terminal_in_both_languages():
    """Hangul is two columns wide."""
    known = [find(name) for name in NAMES]
    lines = [*listed(known), *(line for each in known for line in introduced(each))]
    assert max(map(text_columns, lines)) <= WIDTH
    text = "".join("".join(lines).split())
    assert all("".join(each.claim.korean.split()) in text for each in known)


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


def test_a_table_fits_a_terminal():
    head = ["model", *[f"value {i} of a very long name" for i in range(9)]]
    lines = [*fitted([head, ["gru", *["0.123 ± 0.00456"] * 9]], 1)]
    assert max(map(len, lines)) <= WIDTH
    assert [line.split()[0] for line in lines if "gru" in line] == ["gru", "gru"]
    assert lines[0].split() == ["value", "0", "of", "a", "value", "1", "of", "a"] + [
        word for i in range(2, 5) for word in ("value", str(i), "of", "a")
    ]


def test_no_word_of_a_head_is_broken():
    lines = [*fitted([["what", "its probability"], ["step 1", "0.5"]], 1)]
    assert [line.split() for line in lines] == [
        ["its"],
        ["what", "probability"],
        ["step", "1", "0.5"],
    ]
