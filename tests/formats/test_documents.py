"""Real files come back whole: only their texts change. Who made each is in files/README.md."""

import html
import io
import zipfile
from pathlib import Path
from xml.etree.ElementTree import canonicalize

import pytest

from tests.formats.unmarked import translated
from tests.refusals import refusal
from transduct.data.lines import PACKED, kind_of, named_kind
from transduct.formats import documents
from transduct.formats.documents import FORMATS, OF_TRANSLATORS, Document, encoding_of
from transduct.formats.marked import plain

FILES = sorted(
    each for each in (Path(__file__).parent / "files").iterdir() if named_kind(each.name)
)
OTHER_LANGUAGE = ("app.po", "app.xlf", "page.xliff", "memory.tmx")  # hold a translation too
# in capitals, lines end elsewhere, runs become one, and characters are spelt otherwise
RESPELT = ("film.srt", "notes.md", "word.docx", "messages.json", "page.html")


def read(path):
    return Document(named_kind(path.name), path.name, path.read_bytes())


def loud(texts):
    return [text.upper() for text in texts]


def shouted(document):
    """A document in capitals, whose marks stay where they are."""
    return document.translated(
        [part.upper() if isinstance(part, str) else part for part in segment]
        for segment in document.segments
    )


def changed_parts(before, after, spelling=str):
    """The parts of a file in which more than the spelling of its texts is another."""
    if not zipfile.is_zipfile(io.BytesIO(before)):
        return [] if spelling(before) == spelling(after) else ["the file"]
    old, new = (zipfile.ZipFile(io.BytesIO(each)) for each in (before, after))
    assert [(i.filename, i.compress_type, i.date_time) for i in old.infolist()] == [
        (i.filename, i.compress_type, i.date_time) for i in new.infolist()
    ]

    def same(name):
        parts = old.read(name), new.read(name)
        if parts[0] == parts[1]:
            return True
        if not name.endswith(".xml"):
            return False
        xml = [canonicalize(part.decode(), with_comments=True) for part in parts]
        return spelling(xml[0]) == spelling(xml[1])

    return [name for name in old.namelist() if not same(name)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_model_that_copies_gives_a_file_back(path):
    document, data = read(path), path.read_bytes()
    assert document.segments
    copied = translated(document, list)
    if path.name in OTHER_LANGUAGE:  # which then has all translations
        assert Document(named_kind(path.name), "", copied).segments == []
        assert len(copied) > len(data)
    else:
        assert changed_parts(data, copied) == []
        assert named_kind(path.name) in PACKED or copied == data


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_planted_change_outside_of_text_is_found(path, monkeypatch):
    change = documents.changed
    end = "<!-- -->" if path.suffix in PACKED else " "
    monkeypatch.setattr(documents, "changed", lambda *given: change(*given) + end)
    found = changed_parts(path.read_bytes(), translated(read(path), list))
    assert len(found) == sum(bool(part.places) for part in read(path)._parts.values())


def spelling(content):
    """A text without what capitals change, and what a text alone may need."""
    if isinstance(content, bytes):
        content = content.decode("utf-16-le" if content[1:2] == b"\xfe" else "utf-8")
    return content.lower().replace(' xml:space="preserve"', "").replace("\\", "")


@pytest.mark.parametrize(
    "path",
    [each for each in FILES if each.name not in (*OTHER_LANGUAGE, *RESPELT)],
    ids=lambda path: path.name,
)
def test_nothing_but_texts_is_translated(path):
    """All else is as it was where each text is in capitals, and written anew."""
    data = path.read_bytes()
    made = shouted(read(path))
    assert changed_parts(data, made, spelling) == []
    assert [*map(plain, Document(named_kind(path.name), "", made).segments)] == loud(
        map(plain, read(path).segments)
    )


def test_a_page_keeps_its_encoding_and_all_that_is_no_text():
    path = next(each for each in FILES if each.name == "page.html")
    old, new = (each.decode("cp1252") for each in (path.read_bytes(), shouted(read(path))))
    assert html.unescape(new).lower() == html.unescape(old).lower()
    assert "CAFÉ BY" in new
    assert all(f"{kept}\n" in new for kept in ("Lakeside Ltd</p>", 'no text</p>";</script>'))
    document = read(path)
    made = document.translated([["호수"], *document.segments[1:]])
    assert b"<title>&#54840;&#49688;</title>" in made


def test_a_page_is_read_as_browsers_read_it():
    page = "<meta charset=iso-8859-1><p>\u201cCaf\u00e9\u201d".encode("cp1252")
    assert [*map(plain, Document(".html", "a", page).segments)] == ["“Café”"]
    assert translated(Document(".html", "a", page), loud) == page.replace(b"Caf\xe9", b"CAF\xc9")


def test_office_documents_open_in_their_libraries():
    from docx import Document as Word
    from odfdo import Document as OpenDocument
    from pptx import Presentation

    def opened(name, reader):
        path = Path(__file__).parent / "files" / name
        return reader(io.BytesIO(shouted(read(path))))

    letter = opened("letter.docx", Word)
    [second] = [each for each in letter.paragraphs if "GARDEN" in each.text]
    assert second.text == "THE GARDEN IS VERY GREEN, AND THE ROSES ARE IN BLOOM.\nCOME SOON!"
    assert [run.text for run in second.runs if run.bold] == ["ROSES"]
    assert letter.tables[0].cell(1, 0).tables[0].cell(0, 0).text == "ONLY ON SUNDAYS"
    slides = opened("talk.pptx", Presentation).slides
    assert slides[0].notes_slide.notes_text_frame.text == "SHOW THE PICTURE OF THE HIVE."
    assert opened("sky.odt", OpenDocument).body.get_paragraph(0).text_recursive.startswith("THE")


def test_kinds_follow_from_names():
    names = ("a.DOCX", "a.xliff", "a.htm", "a.md", "a.po.gz", "a.jsonl", "a")
    every = [*FORMATS, *OF_TRANSLATORS]
    assert [named_kind(f"a{kind}") for kind in every] == every
    assert [*map(named_kind, names)] == [".docx", ".xlf", ".html", ".md", ".po", "", ""]


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("kind, head", [(".srt", "1\n00:00:01,000 --> "), (".vtt", "WEBVTT\n\n")])
def test_subtitles_in_utf_16_with_a_mark_keep_their_bytes(kind, head, order):
    times = "00:00:02,000\n" if kind == ".srt" else "00:01.000 --> 00:02.000\n"
    data = f"\ufeff{head}{times}Grüße, 世界\n".encode(order)
    assert kind_of(f"a{kind}", data) == kind_of(None, data) == kind
    made = translated(Document(kind, "a", data), loud)
    assert made == f"\ufeff{head}{times}GRÜSSE, 世界\n".encode(order)


@pytest.mark.parametrize("charset", ["ISO-8859-2", "euc-kr", "UTF-8", "CHARSET"])
def test_a_catalogue_keeps_the_encoding_that_it_declares(charset):
    head = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={charset}\\n"\n\n'
    words = "집" if charset == "euc-kr" else "żółw"
    known = f'# {words}\nmsgid "a"\nmsgstr "{words}"\n\n'
    real = "utf-8" if charset == "CHARSET" else charset.lower()
    data = f'{head}{known}msgid "b"\nmsgstr ""\n'.encode(real)
    assert encoding_of(".po", data) == real
    made = translated(Document(".po", "a", data), loud)
    assert made == f'{head}{known}msgid "b"\nmsgstr "B"\n'.encode(real)
    if charset == "ISO-8859-2":
        with refusal("a: iso-8859-2 has no '家', which a translation holds; save it in UTF-8"):
            documents.encoded("a", "家", encoding=real)
        with refusal("a: is not in cp949x, as it should be; save it in UTF-8"):
            documents.decoded("a", data, "cp949x")
        with refusal("a: is not in utf-8, as it should be"):
            documents.decoded("a", b"\xff", "utf-8")
