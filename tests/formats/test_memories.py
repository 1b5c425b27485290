"""Pairs come out of the files of translators as their libraries say."""

import io

import pytest

from tests.refusals import refusal
from transduct.data.sources import TextSource
from transduct.data.text import read_examples, read_pairs
from transduct.formats.memories import pairs_of

UNIT = "<tu>{}</tu>"
VARIANT = '<tuv xml:lang="{}"><prop>p</prop><seg>{}</seg></tuv>'


def tmx(*units, source="de"):
    made = "".join(UNIT.format("".join(VARIANT.format(*each) for each in unit)) for unit in units)
    return f'<tmx version="1.4"><header srclang="{source}"/><body>{made}</body></tmx>'.encode()


def read(kind, data, languages=()):
    return list(pairs_of(kind, "a", io.BytesIO(data), languages))


def test_a_memory_gives_the_source_first_and_no_marks():
    marked = 'a <bpt i="1">&lt;b&gt;</bpt><hi>b</hi><ept i="1">x</ept>\n c'
    data = tmx([("en", marked), ("de-DE", "d")], [("en", "e"), ("de-DE", "f")], [("en", "g")])
    assert read(".tmx", data) == [("d", "a b c"), ("f", "e"), ("", "g")]
    assert read(".tmx", data, ["en", "de"])[1] == ("e", "f")
    assert read(".tmx", tmx([("en", "a"), ("de", "b")], source="*all*")) == [("a", "b")]


def test_a_memory_of_several_languages_needs_two_named():
    data = tmx([("de", "a"), ("en", "b"), ("fr", "c")])
    with refusal("a: holds de, en, fr, expected two languages; name the"):
        read(".tmx", data)
    assert read(".tmx", data, ["fr", "en"]) == [("c", "b")]


def test_a_memory_without_the_named_languages_names_its_own():
    with refusal("a: holds de, en, columns name de, fr; name those of"):
        read(".tmx", tmx([("de", "a"), ("en", "b")]), ["de", "fr"])


def test_xliff_follows_the_named_languages_or_names_its_own():
    body = b"<segment><source>a</source><target>b</target></segment>"
    two = b"<xliff srcLang='de-AT' trgLang='en'><file id='1'>" + body + b"</file></xliff>"
    one = b"<xliff><file source-language='de'>" + body.replace(b"segment", b"trans-unit")
    for data in (two, one + b"</file></xliff>"):
        assert read(".xlf", data, ["de", "en"]) == [("a", "b")]
        assert read(".xlf", data, ["en", "de"]) == [("b", "a")]
        with refusal(r"a: holds de.*, columns name fr, en; name th"):
            read(".xlf", data, ["fr", "en"])


def test_xliff_gives_units_and_segments_with_an_empty_target_where_there_is_none():
    one = b"<xliff xmlns='urn:x'><file><body><trans-unit><source>a <g>b</g><ph>c</ph></source>"
    one += b"<target>d</target></trans-unit><trans-unit><source>e</source></trans-unit></body>"
    assert read(".xlf", one + b"</file></xliff>") == [("a b", "d"), ("e", "")]
    two = b"<xliff><unit><segment><source>a</source><target>b</target></segment></unit></xliff>"
    assert read(".xliff", two) == [("a", "b")]


def test_catalogues_give_what_is_translated_and_not_fuzzy():
    data = b'msgid "a\\n"\n"b"\nmsgstr "c"\n\n#, fuzzy\nmsgid "d"\nmsgstr "e"\n\n'
    data += b'msgid "f"\nmsgstr ""\n\nmsgid "g"\nmsgid_plural "h"\nmsgstr[0] "i"\n'
    data += b'msgstr[1] "j"\n\n#~ msgid "k"\n#~ msgstr "l"\n'
    assert read(".po", data) == [("a b", "c"), ("d", ""), ("f", ""), ("g", "i"), ("h", "j")]
    one = b'msgid "a file"\nmsgid_plural "files"\nmsgstr[0] "c"\n'
    assert read(".po", one) == [("files", "c")]  # the only form of a language is its plural


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"<tmx><body>", "no element found"),
        (b'<!DOCTYPE a [<!ENTITY a "b">]><tmx>&a;</tmx>', "EntitiesForbidden"),
    ],
)
def test_damaged_and_dangerous_xml_is_refused(data, reason):
    with refusal(rf"a: not a whole XML file \({reason}.*save it again"):
        read(".tmx", data)


def test_recipes_name_such_files_as_pairs(tmp_path):
    (tmp_path / "a.tmx").write_bytes(tmx([("de", "a"), ("en", "b")], [("de", "c")]))
    (tmp_path / "a.csv").write_text('de;en\n"x; ""y""\nz";w\n\n')
    [pairs] = read_pairs(TextSource(pairs="a.tmx"), tmp_path)
    assert pairs == [("a", "b"), ("c", "")], "the filters count the second as empty"
    assert read_examples(TextSource(pairs="a.tmx"), tmp_path) == (["a"], [["b"]])
    table = TextSource(pairs="a.csv", columns=["en", "de"])
    assert list(read_pairs(table, tmp_path)) == [[("w", 'x; "y" z')]]
    with refusal(r"a.csv:1: no column 'fr'; set columns to some of: de, en"):
        list(read_pairs(TextSource(pairs="a.csv", columns=["fr"] * 2), tmp_path))
    (tmp_path / "a.csv").write_text("a,b\nc\n")
    with refusal(r"a.csv:2: found 1, expected at least 2 columns; fix"):
        list(read_pairs(TextSource(pairs="a.csv"), tmp_path))
    (tmp_path / "a.csv").write_text(f"a,{'b' * 200_000}\n")
    with refusal(r"a.csv:\d: not CSV \(field larger.*; fix it"):
        list(read_pairs(TextSource(pairs="a.csv"), tmp_path))


def test_lines_are_not_read_from_files_with_a_structure(tmp_path):
    (tmp_path / "a.tmx").write_bytes(tmx([("de", "a"), ("en", "b")]))
    (tmp_path / "b").write_text("a\n")
    with refusal(r"a.tmx: found a translation memory \(TMX\), expected l"):
        list(read_pairs(TextSource(source="a.tmx", target="b"), tmp_path))


@pytest.mark.parametrize("charset", ["ISO-8859-1", "UTF-8", "klingon"])
def test_a_catalogue_is_read_in_the_encoding_that_it_declares(charset):
    head = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={charset}\\n"\n\n'
    data = (head + 'msgid "tired"\nmsgstr "m\u00fcde"\n').encode("latin1")
    if charset == "ISO-8859-1":
        assert ("tired", "m\u00fcde") in read(".po", data)
    else:
        with refusal(f"a: is not in {charset.lower()}, as it should be; save it in UTF-8"):
            read(".po", data)
