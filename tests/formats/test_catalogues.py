"""Catalogues get the translations that they lack."""

from tests.formats.unmarked import made
from transduct.formats.catalogues import catalogue

PO = (
    '# one\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#: a.c\n'
    'msgctxt "m"\nmsgid "one\\n"\n"two"\nmsgstr ""\n\nmsgid "a \\"file\\""\nmsgid_plural "files"\n'
    'msgstr[0] ""\nmsgstr[1] ""\n""\n\nmsgid "done"\nmsgstr "fertig"\n\n'
    '#~ msgid "old"\n#~ msgstr ""\n'
)


def test_a_catalogue_gets_the_translations_that_it_lacks():
    assert made(".po", PO) == (
        PO.replace('"two"\nmsgstr ""', '"two"\nmsgstr "«ONE\\nTWO»"')
        .replace('msgstr[0] ""', 'msgstr[0] "«A \\"FILE\\"»"')
        .replace('msgstr[1] ""\n""', 'msgstr[1] "«FILES»"')
    )  # fmt: skip
    crlf = PO.replace("\n", "\r\n")
    assert made(".po", crlf).count("\r\n") == crlf.count("\r\n") - 1
    assert [entry.msgid for entry in catalogue("a", PO)] == ["one\ntwo", 'a "file"', "done"]


def test_the_only_form_of_a_plural_is_that_of_many():
    content = 'msgid "a file"\nmsgid_plural "files"\nmsgstr[0] ""\n'
    assert "«FILES»" in made(".po", content)


def test_several_strings_on_one_line_are_one_text():
    content = (
        'msgid "a \\" \\" " "b"\nmsgstr "" ""\n\n# "x" "y"\nmsgid "" "c"\n"d"\nmsgstr "e""f" "g"\n'
    )
    found = made(".po", content)
    assert found == content.replace('msgstr "" ""', 'msgstr "«A \\" \\" B»"')
