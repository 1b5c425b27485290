"""Markdown keeps its signs, and a translation gets none."""

from functools import partial

import pytest

from tests.formats import unmarked

made, texts_of = partial(unmarked.made, ".md"), partial(unmarked.texts_of, ".md")


def test_each_block_is_one_text_and_code_is_none():
    content = (
        "---\ntitle: x y\n---\n# A *b*\n\n> c\n> d `e` \\*f\\*\n\n- [x] g\n\n| h | i\\|j |\n|-|-|\n"
        "| k | `l` |\n\n    code\n\n```\nmore code\n```\n\n<div>html\n</div>\n\n![l](m) <n@o.pq>\n"
        "r  \ns\n"
    )
    assert texts_of(content) == ["A b", "c d *f*", "g", "h", "i|j", "k", "rs"]


def test_footnotes_and_the_data_at_the_head_stay():
    content = '+++\na = "b c"\n+++\nOne[^1] two.[^b]\n\n[^1]: The note\n\n[^b]: Word\n'
    assert texts_of(content) == ["One two.", "The note", "Word"]
    found = made(content, ["X y.", "z", "w"])
    expected = content.replace("One[^1] two.", "X[^1] y.").replace("The note", "z")
    assert found == expected.replace("Word", "w")
    assert made("---\n---\na b\n", ["c"]) == "---\n---\nc\n"  # an empty head


def test_kinds_of_quotations_and_marks_of_cells_stay():
    assert made("> [!NOTE]\n> a b\n", ["c"]) == "> [!NOTE]\n> c\n"
    cell = "| a b |\n|-|\n| c \\| d **e** \\| f |\n"
    assert made(cell, ["a b", "x | y e | z"]) == cell.replace("c \\| d", "x \\| y").replace(
        "f |", "z |"
    )


def test_windows_lines_and_a_mark_stay():
    content = "\ufeff# One\r\n\r\nTwo two\r\nthree three\r\n"
    assert made(content, ["x", "y y z z"]) == "\ufeff# x\r\n\r\ny y\r\nz z\r\n"


@pytest.mark.parametrize(
    "translation, written",
    [
        ("a*b* _c_ [d] <e>", r"a\*b\* \_c\_ \[d\] \<e>"),
        ("snake_case 5 * 3 < 4 & 5", "snake_case 5 * 3 < 4 & 5"),
        ("1. one", "1\\. one"),
        ("- two", "\\- two"),
        ("# three &amp; ~~x~~", "\\# three \\&amp; \\~~x\\~~"),
        ("==x== ~a", "==x== ~a"),
        ("===", "\\==="),
        (": x !!! y", "\\: x !!! y"),
        ("!!! note", "\\!!! note"),
        (":::", "\\:::"),
    ],
)
def test_signs_in_a_translation_are_no_signs_of_markdown(translation, written):
    assert made("Some words\n", [translation]) == written + "\n"


def test_admonitions_tabs_and_containers_hold_texts():
    content = (
        'a b\n\n!!! note inline "A title"\n    One *two*.\n    Three four.\n\n    - five x\n\n'
        "        ??? tip\n\n            inner y\n\n            ```\n            code z\n"
        "            ```\n\n"
        'out w\n\n=== "Tab v"\n\n\tu t\n\n::: warning\ns r\n:::\n\n# Head q {#head .big}\n'
    )
    assert texts_of(content) == [
        *("a b", "A title", "One two. Three four.", "five x", "inner y", "out w", "Tab v", "u t"),
        *("s r", "Head q"),
    ]
    assert made(content, list) == content
    loud = made(content, lambda texts: [text.upper() for text in texts])
    assert loud.lower() == content.lower()
    assert '!!! note inline "A TITLE"\n    ONE *TWO*.\n    THREE FOUR.\n\n    - FIVE X' in loud


def test_a_definition_is_a_text_and_so_is_its_term():
    content = "Term one\n: the first\n  meaning\n\n: the second\n\n    goes on\n\n`x` y\n:   z z\n"
    assert texts_of(content) == [
        "Term one",
        "the first meaning",
        "the second",
        "goes on",
        " y".strip(),
        "z z",
    ]
    assert made(content, lambda texts: [text.upper() for text in texts]).lower() == content.lower()


def test_a_line_that_would_begin_a_list_is_no_line():
    assert made("a b\nc d\n", ["one 1) x"]) == "one 1) x\n"


def test_a_link_keeps_its_goal():
    content = '[a b](c_(d) "e f") g\n'
    assert made(content, ["x y z"]) in (
        '[x y](c_(d) "e f") z\n', '[x](c_(d) "e f") y z\n'
    )  # fmt: skip


def test_code_and_boxes_around_a_text_stay_where_they_are():
    content = "- [ ] `one` two\\\nthree `four`\n- ![a](b)\n  c d\n"
    assert made(content, ["x y z", "e"]).startswith("- [ ] `one` x")
    assert made(content, ["x y z", "e"]).endswith(" `four`\n- ![a](b)\n  e\n")
