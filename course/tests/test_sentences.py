"""Generated sentences read well for 0, 1, all, and numbers that do not change."""

import pytest
from transduct_course.sentences import change, ends


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
