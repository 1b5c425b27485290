"""Documents come back whole: only their texts change."""

import pytest

from tests.refusals import refusal
from transduct.errors import TransductError
from transduct.formats import documents
from transduct.formats.documents import catalogue, encoded, translated
from transduct.formats.kinds import kind_of

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


def loud(texts):
    return [text.upper() for text in texts]


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("kind, head", [(".srt", "1\n00:00:01,000 --> "), (".vtt", "WEBVTT\n\n")])
def test_subtitles_in_utf_16_with_a_mark_keep_their_bytes(kind, head, order):
    times = "00:00:02,000\n" if kind == ".srt" else "00:01.000 --> 00:02.000\n"
    data = f"\ufeff{head}{times}Grüße, 世界\n".encode(order)
    assert kind_of(f"a{kind}", data) == kind_of(None, data) == kind
    encoding = documents.encoding_of(kind, data)
    content = documents.decoded("a", data, encoding)
    made = documents.translated(kind, "a", content, loud)
    assert encoded("a", made, encoding) == f"\ufeff{head}{times}GRÜSSE, 世界\n".encode(order)


@pytest.mark.parametrize("charset", ["ISO-8859-2", "euc-kr", "UTF-8", "CHARSET"])
def test_a_catalogue_keeps_the_encoding_that_it_declares(charset):
    head = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\n\n'
    words = "집" if charset == "euc-kr" else "żółw"
    known = f'# {words}\nmsgid "a"\nmsgstr "{words}"\n\n'
    real = "utf-8" if charset == "CHARSET" else charset.lower()
    data = f'{head}{known}msgid "b"\nmsgstr ""\n'.encode(real)
    encoding = documents.encoding_of(".po", data)
    assert encoding == real
    made = documents.translated(".po", "a", documents.decoded("a", data, encoding), loud)
    assert encoded("a", made, encoding) == f'{head}{known}msgid "b"\nmsgstr "B"\n'.encode(real)
    if charset == "ISO-8859-2":
        with refusal("a: iso-8859-2 has no '家', which a translation holds; save it in UTF-8"):
            encoded("a", "家", encoding)
        with refusal("a: is not in cp949x, which its header declares; save it in UTF-8"):
            documents.decoded("a", data, "cp949x")


def test_several_strings_on_one_line_are_one_text():
    content = (
        'msgid "a \\" \\" " "b"\nmsgstr "" ""\n\n# "x" "y"\nmsgid "" "c"\n"d"\nmsgstr "e""f" "g"\n'
    )
    made = documents.translated(".po", "a", content, loud)
    assert made == content.replace('msgstr "" ""', 'msgstr "A \\" \\" B"')
