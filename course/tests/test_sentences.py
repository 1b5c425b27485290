"""Generated sentences read well for 0, 1, all, and numbers that do not change."""

import pytest
from transduct_course.experiment import Words
from transduct_course.sentences import change, ends, out_of

DIVERGED = Words("diverged", "발산")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (change(0.98, 0.36), ("goes from 98% to 36%", "98%에서 36%로 바뀐다")),
        (change(1.0, 0.999), ("stays at 100%", "100%를 유지한다")),
        (ends(1.61, 0.003), ("ends at 1.610 instead of 0.003", "0.003 대신 1.610에서 끝난다")),
        (ends(0.0031, 0.0029), ("ends at 0.003 either way", "어느 쪽이든 0.003에서 끝난다")),
        (
            out_of(0, 3, DIVERGED),
            ("none of the 3 trainings diverged", "학습 3번 가운데 발산한 경우는 없다"),
        ),
        (
            out_of(1, 3, DIVERGED),
            ("1 of the 3 trainings diverged", "학습 3번 가운데 1번이 발산했다"),
        ),
        (out_of(3, 3, DIVERGED), ("all 3 trainings diverged", "학습 3번이 모두 발산했다")),
    ],
)
def test_sentences(made, expected):
    assert made == expected
