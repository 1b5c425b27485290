"""The labels of pictures in Korean."""

import pytest
from transduct_course.korean import in_korean

from transduct.drawing.svg import Picture, Rectangle, Text


@pytest.mark.parametrize(
    "english, korean",
    [
        ("head 3, bands 41 to 60", "헤드 3, 대역 41 ~ 60"),
        ("layer + attention", "층 + 어텐션"),
        ("Loss at the end, 32 layers", "마지막 손실, 32 층"),
        ("4 numbers (down) at 32 positions (across)", "수 4개(세로), 위치 32개(가로)"),
        ("cross", "cross"),  # a word of a sentence
        ("müde", "müde"),
        ("a cell", "칸"),
    ],
)
def test_a_label_is_translated_part_by_part(english, korean):
    shapes = (Rectangle(0, 0, 1, 1, "red"), Text(2, 3, english))
    found = in_korean(Picture(4, 5, shapes), {"a cell": "칸"})
    assert found.shapes == (shapes[0], Text(2, 3, korean))
