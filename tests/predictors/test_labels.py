"""Labels in messages."""

from transduct.predictors.labels import shown_labels


def test_few_labels_are_shown_of_many_and_the_beginning_of_long_ones():
    assert shown_labels(["x", "y"]) == "x, y"
    assert shown_labels(["a" * 41, "b" * 40]) == f"{'a' * 40}..., {'b' * 40}"
    assert shown_labels(list("abcdefghijkl")) == "a, b, c, d, e, f, g, h, i, j, k, l"
    assert shown_labels(list("abcdefghijklm")) == "a, b, c, d, e, f, g, h, i, j, k, l, ..."
