"""Documents come back whole: only their texts change."""

import pytest

from transduct.errors import TransductError
from transduct.formats.documents import catalogue, translated

SRT = (
    "\ufeff1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>one</i>\r\n\r\n"
    "2\r\n00:00:03,000 --> 00:00:04,500\r\n- two\r\n- {\\an8}three\r\n\r\n"
    "3\r\n00:00:05,000 --> 00:00:06,000\r\n♪ 12 ♪\r\n\r\n"
    "4\r\n00:00:07,000 --> 00:00:08,000\r\nfour five\r\nsix seven"
)
VTT = (
    "WEBVTT - one\n\nNOTE one\n\nSTYLE\n::cue { color: red }\n\nintro\n"
    "00:01.000 --> 00:04.000 align:start\n<v Tom>Q &amp; A <i>two</i>\nthree\n\n"
    "00:05.000 --> 00:06.000\n나는 학교에\n간다\n"
)
PO = (
    '# one\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#: a.c\n'
    'msgctxt "m"\nmsgid "one\\n"\n"two"\nmsgstr ""\n\nmsgid "a \\"file\\""\nmsgid_plural "files"\n'
    'msgstr[0] ""\nmsgstr[1] ""\n""\n\nmsgid "done"\nmsgstr "fertig"\n\n'
    '#~ msgid "old"\n#~ msgstr ""\n'
)


def upper(texts):
    return [f"«{text.upper()}»" for text in texts]


def test_subtitles_keep_their_times_and_marks():
    """On as many lines, whose ends are those of the file; a speaker's line is a text of its own."""
    assert translated(".srt", "a", SRT, upper) == (
        SRT.replace("one", "«ONE»").replace("two", "«TWO»").replace("three", "«THREE»")
        .replace("four five\r\nsix seven", "«FOUR FIVE\r\nSIX SEVEN»")
    )  # fmt: skip
    assert translated(".vtt", "a", VTT, upper) == (
        VTT.replace("Q &amp; A", "«Q &amp; A»")
        .replace("<i>two</i>\nthree", "<i>«TWO»</i>\n«THREE»")
        .replace("나는 학교에\n간다", "«나는 학교에\n간다»")
    )  # fmt: skip


def test_a_translation_without_blanks_or_with_nothing_is_one_line():
    assert "\r\n長い文章です" in translated(
        ".srt", "a", SRT, lambda texts: ["長い文章です"] * len(texts)
    )
    assert translated(".srt", "a", SRT, lambda texts: [""] * len(texts)).endswith("08,000\r\n")
    assert translated(".vtt", "a", "WEBVTT\n", upper) == "WEBVTT\n"


def test_a_catalogue_gets_the_translations_that_it_lacks():
    assert translated(".po", "a", PO, upper) == (
        PO.replace('"two"\nmsgstr ""', '"two"\nmsgstr "«ONE\\nTWO»"')
        .replace('msgstr[0] ""', 'msgstr[0] "«A \\"FILE\\"»"')
        .replace('msgstr[1] ""\n""', 'msgstr[1] "«FILES»"')
    )  # fmt: skip
    crlf = PO.replace("\n", "\r\n")
    assert (
        translated(".po", "a", crlf, lambda texts: ["x"] * len(texts)).count("\r\n")
        == crlf.count("\r\n") - 1
    )
    assert [entry.msgid for entry in catalogue("a", PO)] == ["one\ntwo", 'a "file"', "done"]


def test_arrows_and_breaks_within_a_subtitle_are_no_times():
    content = "1\n00:00:01,000 --> 00:00:02,000\na --> b\\Nc\n\n2\n0:00:05.0 --> 0:00:06.0\nd"
    changed = content.replace("a --> b\\Nc", "«A --> B»\\N«C»").replace("\nd", "\n«D»")
    assert translated(".srt", "a", content, upper) == changed


def test_the_only_form_of_a_plural_is_that_of_many():
    content = 'msgid "a file"\nmsgid_plural "files"\nmsgstr[0] ""\n'
    assert "«FILES»" in translated(".po", "a", content, upper)


@pytest.mark.parametrize(
    "kind, content",
    [
        (".vtt", "no mark\n"),
        (".po", 'msgid "a"\nmsgstr "b\n'),
        (".po", 'msgid "a"\nmsgid "b"\nbad\n'),
        (".srt", "1\n00:00:01,000 00:00:02,000\nb\n"),
    ],
)
def test_damaged_documents_are_refused(kind, content):
    with pytest.raises(
        TransductError, match=r"a: damaged \(.*\); save it again, or translate it wi"
    ):
        translated(kind, "a", content, upper)
