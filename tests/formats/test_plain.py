"""Lines, tables and JSON keep all but their words."""

import json

from tests.formats import unmarked


def made(kind, content, translate=lambda texts: [f'{text.upper()}, "é"' for text in texts]):
    return unmarked.made(kind, content, translate)


def up(texts):
    return [text.upper() for text in texts]


def test_lines_keep_their_ends_and_blanks():
    content = "\ufeff one two\r\n\r\n\tthree\rfour\n42\n"
    assert made(".txt", content, up) == content.upper()


def test_a_cell_is_quoted_if_it_must_be_and_names_of_columns_stay():
    content = '\n"id",note\n"a b",c d\n,"say ""x y"""\n1,"one\r\n\ntwo"\n,\u2028\n'
    assert made(".csv", content) == (
        '\n"id",note\n"A B, ""é""","C D, ""é"""\n,"SAY ""X Y"", ""é"""\n'
        '1,"ONE, ""é""\r\n\nTWO, ""é"""\n,\u2028\n'
    )
    assert made(".csv", "a;b\nx y;c\n", lambda _: ["p;q", "r,s"]) == 'a;b\n"p;q";r,s\n'
    assert made(".csv", "") == ""
    # the first row that is not empty names the columns, even if its last cell is empty
    empty = ",,\nid,note,\n1,a b,\n"
    assert made(".csv", empty, up) == empty.replace("a b", "A B")
    spaced = "a, b\n1,  c d \n"  # quotes around a cell are around its blanks, too
    assert made(".csv", spaced, lambda _: ["e, f"]) == 'a, b\n1,"  e, f "\n'
    quoted = '"a, b, c";"d"\n"x, y";"z w"\n'  # marks within quotes are none
    assert made(".csv", quoted, up) == '"a, b, c";"d"\n"X, Y";"Z W"\n'


def test_values_of_json_are_spelt_as_the_file_is():
    content = '{"a b": ["one two\\nthree\\\\nfour", {"x": "y \\"z\\""}, "\\u00e9a b"], "n": "a_1"}'
    found = made(".json", content)
    assert json.loads(found) == {
        "a b": ['ONE TWO, "é"\nTHREE\\NFOUR, "é"', {"x": 'Y "Z", "é"'}, 'ÉA B, "é"'],
        "n": "a_1",
    }
    assert found.isascii()
    assert made(".json", '["é b"]') == '["É B, \\"é\\""]'
