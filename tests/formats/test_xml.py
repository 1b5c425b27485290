"""Paragraphs of office documents are one text each; files of translators get what they lack."""

import pytest

from tests.formats.test_documents import FILES, read, shouted
from tests.formats.unmarked import translated
from tests.refusals import refusal
from transduct.formats.documents import Document
from transduct.formats.marked import Mark, plain
from transduct.formats.xml import MICROSOFT, OPEN_DOCUMENT, paragraphs

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
T = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"


def word(inner):
    return f'<x:document xmlns:x="{W}"><x:p>{inner}</x:p></x:document>'


def shown(segment):
    signs = {"open": "<", "close": ">", "alone": "|"}
    return "".join(part if isinstance(part, str) else signs[part.kind] for part in segment)


def file(name):
    return next(each for each in FILES if each.name == name)


def test_runs_of_a_paragraph_are_one_text_and_styles_are_marks():
    assert [shown(each) for each in read(file("word.docx")).segments] == [
        "The rules of the house",
        "Please |close| the <front door> at night| and see page |.",
        "A linked word",
        "<New text >|stays here.",
        "A field to fill in",
        "After the page break",
        "Keep <out>",
        "Keep <out>",
        "The sign beside it",
        "is a sum & no word.",
        "Floor",
        "Last words.",
        "After ten <o'clock>",
        "House rules",
    ]


def test_text_in_a_box_or_a_note_is_a_text_of_its_own():
    texts = [shown(each) for each in read(file("libreoffice_report.odt")).segments]
    assert "The wheel was <last> seen to turn in 1931." in texts
    assert any(each.startswith("The mill stands <at the bend of the ><<small r") for each in texts)
    assert "Words in a box" in texts
    assert not any("owner" in each for each in texts)  # a comment


def test_a_moved_mark_takes_its_style_along():
    look = "<x:rPr><x:b/></x:rPr>"
    run = "<x:r>{}<x:t>{}</x:t></x:r>"
    content = word(run.format("", "a ") + run.format(look, "b") + run.format("", " c d"))
    [place] = paragraphs(MICROSOFT, "a", content.replace("x:", "w:").replace(":x=", ":w="))
    first, bold, text, end, last = place.segment
    made = "".join(map(str, place.written([bold, "B", end, " & c ", "a"])))
    preserved = '<w:t xml:space="preserve">'
    assert made == (
        f"<w:r><w:rPr><w:b/></w:rPr>{preserved}B</w:t></w:r><w:r>{preserved} &amp; c a</w:t></w:r>"
    )
    assert (first, text, last) == ("a ", "b", " c d")


def test_namespaces_count_and_not_their_prefixes():
    content = word("<x:r><x:t>a b</x:t></x:r><y:r xmlns:y='urn:math'><y:t>c</y:t></y:r>")
    assert [shown(each.segment) for each in paragraphs(MICROSOFT, "a", content)] == ["a b"]
    assert paragraphs(MICROSOFT, "a", content.replace(W, "urn:other")) == []


def test_cdata_and_references_are_read_and_spelt_anew():
    content = f'<t:p xmlns:t="{T}">a<![CDATA[ <b> ]]>&#x63; &amp;<!-- d --></t:p>'
    [place] = paragraphs(OPEN_DOCUMENT, "a", content)
    assert place.segment == ["a <b> c &"]
    assert "".join(map(str, place.written(["x < y"]))) == "x &lt; y"


@pytest.mark.parametrize(
    "content, reason",
    [
        ("<a><b></a>", "mismatched tag"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "EntitiesForbidden"),
        ("", "no element found"),
        ("<!DOCTYPE a SYSTEM 'x>y'><a>b", "no element found"),
    ],
)
def test_damaged_and_harmful_xml_is_refused(content, reason):
    with refusal(rf"a: not a whole XML file \({reason}.*\); save it again"):
        Document(".xlf", "a", content.encode())


def test_units_without_a_translation_get_one():
    before = file("app.xlf").read_bytes().decode("latin-1")
    made = translated(read(file("app.xlf")), list).decode("latin-1")
    first = '<source>Save <g id="1">all</g> files<x id="2"/></source>'
    tags = '<bpt id="1">&lt;b&gt;</bpt>Delete<ept id="1">&lt;/b&gt;</ept> it'
    assert made == (
        before.replace(first, f"{first}\r\n        {first.replace('source', 'target')}")
        .replace('<target state="new"/>', '<target state="new">The café &amp; the bar</target>')
        .replace("<target></target>", f"<target>{tags}</target>")
    )
    page = file("page.xliff").read_bytes().decode()
    source = '<source>Hello <pc id="1">dear <ph id="2"/>reader</pc>.</source>'
    assert translated(read(file("page.xliff")), list).decode() == page.replace(
        source, f"{source}\n    {source.replace('source', 'target')}"
    )


@pytest.mark.parametrize(
    "languages, unit, made",
    [
        (("", ""), "{en}<tuv lang='de'><seg/></tuv>", "{en}<tuv lang='de'><seg>a b</seg></tuv>"),
        (("en", "de"), "{en} ", '{en}<tuv xml:lang="de"><seg>a b</seg></tuv> '),
        (("EN", "fr"), "{en}{de}", '{en}{de}<tuv xml:lang="fr"><seg>a b</seg></tuv>'),
        (("en", "de"), "{en}{de}", "{en}{de}"),
        (("", ""), "{en}", "{en}"),
        (("de", "fr"), "{en}{de}", '{en}{de}<tuv xml:lang="fr"><seg>c d</seg></tuv>'),
        (("en", "en"), "{en}", "{en}"),
    ],
)
def test_a_memory_gets_the_language_that_is_asked_for(languages, unit, made):
    en = '<tuv xml:lang="en-GB"><seg>a b</seg></tuv>'
    de = '<tuv xml:lang="de"><seg>c d</seg></tuv>'
    before, after = (f"<tmx><tu>{each.format(en=en, de=de)}</tu></tmx>" for each in (unit, made))
    assert translated(Document(".tmx", "a", before.encode(), languages), list).decode() == after


def test_marks_of_segments_and_highlights_go_along():
    """Of XLIFF's `seg-source`, and TMX's `hi`, whose text is translated."""
    unit = "<trans-unit><source>a. b!</source><seg-source>{}</seg-source>{}</trans-unit>"
    inner = '<mrk mtype="seg" mid="1">a.</mrk> <mrk mtype="seg" mid="2">b!</mrk>'
    made = translated(Document(".xlf", "a", unit.format(inner, "").encode()), list).decode()
    assert made == unit.format(inner, f"<target>{inner}</target>")
    tmx = '<tmx><tu><tuv lang="en"><seg>a <hi>b</hi></seg></tuv></tu></tmx>'
    [segment] = Document(".tmx", "a", tmx.encode(), ("en", "de")).segments
    assert shown(segment) == "a <b>"


def test_prefixes_of_xliff_are_kept():
    content = (
        '<l:xliff xmlns:l="urn:oasis:names:tc:xliff:document:1.2"><l:trans-unit>'
        "<l:source>a b</l:source>{}</l:trans-unit></l:xliff>"
    )
    made = translated(Document(".xlf", "a", content.format("").encode()), list).decode()
    assert made == content.format("<l:target>a b</l:target>")


def test_ruby_is_part_of_its_sentence_and_its_reading_stays():
    run = "<x:r><x:t>{}</x:t></x:r>"
    ruby = (
        f"<x:r><x:rPr/><x:ruby><x:rubyPr/><x:rt>{run.format('kana')}</x:rt>"
        f"<x:rubyBase>{run.format('b')}</x:rubyBase></x:ruby></x:r>"
    )
    content = word(run.format("a ") + ruby + run.format(" c"))
    [place] = paragraphs(MICROSOFT, "a", content)
    assert shown(place.segment) == "a <|<||<b>>> c"
    assert plain(place.segment) == "a b c"


def test_html_in_cdata_keeps_its_tags():
    unit = "<xliff><trans-unit><source>{}</source>{}</trans-unit></xliff>"
    data = "<![CDATA[<p>a &amp; <b>b</b><br>c\n</p><p>d]]>"
    segments = Document(".xlf", "a", unit.format(data, "<target/>").encode()).segments
    assert [*map(shown, segments)] == ["a & <b>", "c", "d"]
    made = translated(Document(".xlf", "a", unit.format(data, "").encode()), list).decode()
    assert made == unit.format(data, f"<target>{data}</target>")
    file = Document(".xlf", "a", unit.format(data, "<target/>").encode())
    made = translated(file, lambda _: ["A & B", "]]> C", "D"]).decode()
    loud = "<target><![CDATA[<p>A &amp; <b>B</b><br>]]&gt; C\n</p><p>D]]></target>"
    assert made == unit.format(data, loud)


def test_marks_of_capitals_are_where_they_were():
    made = Document(".docx", "a", shouted(read(file("word.docx"))))
    assert shown(made.segments[1]) == "PLEASE |CLOSE| THE <FRONT DOOR> AT NIGHT| AND SEE PAGE |."
    assert plain(made.segments[6]) == "KEEP OUT"
    assert isinstance(made.segments[6][1], Mark)


def test_what_stands_in_a_text_and_is_none_is_not_lost():
    content = word("<x:r><x:t>a<!-- b --> c</x:t></x:r><x:r><x:t>d e</x:t></x:r>")
    assert [shown(each.segment) for each in paragraphs(MICROSOFT, "a", content)] == ["d e"]
