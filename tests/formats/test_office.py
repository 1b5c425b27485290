"""An archive that could harm is refused in one line."""

import io
import zipfile

import pytest

from tests.formats.test_documents import FILES
from tests.refusals import refusal
from transduct.formats import office
from transduct.formats.office import TooLarge, packed, parts_of

WORD = next(each for each in FILES if each.name == "word.docx").read_bytes()
ODT = next(each for each in FILES if each.name == "sky.odt").read_bytes()


def archive(**parts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in parts.items():
            written.writestr(name, content)
    return out.getvalue()


HEADER = b"PK\x01\x02\x14\x03\x14\0"  # of a part in the table of contents
LOCKED = archive(**{"content.xml": "<a/>", office.MANIFEST: "<encryption-data/>"})


@pytest.mark.parametrize(
    "kind, data, message",
    [
        (".docx", b"\xd0\xcf\x11\xe0 old", "a: is encrypted or in an older format; save it"),
        (".docx", WORD.replace(HEADER + b"\0", HEADER + b"\1"), "a: is encrypted"),
        (".odt", LOCKED, "a: is encrypted"),
        (".docx", b"nothing", r"a: damaged \(File is not a zip file\); save it again"),
        (".docx", WORD[:-100], r"a: damaged \(.*\); save it again"),
        (".docx", WORD.replace(b"word/doc", b"wxrd/doc", 1), r"a: damaged \(.*\)"),
        (".odt", WORD, r"a: found no part of a \.odt document; give it its own ending"),
        (".docx", ODT, r"a: found no part of a \.docx document"),
    ],
)
def test_what_is_no_document_is_refused(kind, data, message):
    with refusal(message):
        parts_of(kind, "a", data)


@pytest.mark.parametrize("limit, least", [("UNPACKED", 100), ("TEXTS", 100), ("PARTS", 3)])
def test_a_bomb_is_refused_before_it_is_unpacked(limit, least, monkeypatch):
    monkeypatch.setattr(office, limit, least)
    monkeypatch.setattr(zipfile.ZipFile, "read", None)
    with refusal("a: is larger than .* MiB once it is unpacked; send a part of it") as found:
        parts_of(".docx", "a", WORD)
    assert found.type is TooLarge


def test_a_part_that_claims_to_be_small_is_damaged(monkeypatch):
    data = archive(**{"word/document.xml": b"<a>" + b" " * 10_000 + b"</a>"})
    small = data.replace((10_007).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with refusal(r"a: damaged \(Bad CRC-32"):
        parts_of(".docx", "a", small)


def test_other_parts_and_their_order_stay():
    made = packed("a", ODT, {"content.xml": b"new"})
    old, new = (zipfile.ZipFile(io.BytesIO(each)) for each in (ODT, made))
    assert old.namelist() == new.namelist()
    assert new.getinfo("mimetype").compress_type == zipfile.ZIP_STORED
    assert [n for n in old.namelist() if old.read(n) != new.read(n)] == ["content.xml"]
    with refusal("a: damaged"):
        packed("a", b"", {})
