"""The remedy for a text in another encoding gives back the text, in any common one."""

import io

import pytest

from tests.refusals import refusal
from transduct.data.encodings import NARROW, PYTHON, guessed, wide
from transduct.data.lines import read_lines

TEXTS = {
    "나는 어제 친구와 함께 학교에 갔습니다.\n톰은 이 책을 읽고 싶어 한다.\n": ("cp949", "euc-kr"),
    "私は昨日友達と学校へ行きました。\nトムはこの本を読む。\n": ("shift_jis", "cp932", "euc-jp"),
    "我昨天和朋友一起去了学校。\n她笑了。\n": ("gb18030", "gb2312"),
    "我昨天和朋友一起去了學校。\n她笑了。\n": ("big5", "cp950"),
    "Вчера я ходил в школу с другом.\nОна засмеялась.\n": (
        "cp1251",
        "koi8-r",
        "iso8859-5",
        "cp866",
    ),
    "Сьогодні дуже гарна погода.\nЇжак їсть яблуко.\n": ("cp1251", "koi8-u"),
    "Данас је време веома лепо.\nТом жели ову књигу.\n": ("cp1251",),
    "Wczoraj poszedłem do szkoły.\nTom chce przeczytać tę książkę.\n": ("cp1250", "iso8859-2"),
    "Včera jsem šel do školy s přítelem.\nDnes je hezké počasí.\n": ("cp1250", "iso8859-2"),
    "Tegnap a barátommal mentem.\nŐ nevetett. Hűvös idő van.\n": ("cp1250", "iso8859-2"),
    "Dün arkadaşımla okula gittim.\nBugün hava çok güzel.\n": ("cp1254", "iso8859-9"),
    "Gestern möchte ich für dich.\nEr weiß es.\n": ("latin1", "cp1252", "cp850", "mac-roman"),
    "Hier, je suis allé à l’école.\nÇa va être très beau là.\n": ("cp1252",),
    "¿Qué hace mañana?\nTomás quiere leer.\n": ("latin1", "cp850"),
    "Šodien ir ļoti jauks laiks.\nViņa smējās. Šī grāmata.\n": ("cp1257",),
    "Χθες πήγα στο σχολείο με έναν φίλο.\nΟ καιρός είναι καλός.\n": ("cp1253", "iso8859-7"),
    "אתמול הלכתי לבית הספר עם חבר.\nתום רוצה לקרוא.\n": ("cp1255", "iso8859-8"),
    "ذهبت أمس إلى المدرسة مع صديق.\nيريد توم قراءة هذا الكتاب.\n": ("cp1256", "iso8859-6"),
    "เมื่อวานฉันไปโรงเรียนกับเพื่อน\nวันนี้อากาศดีมาก\n": ("cp874",),
}


@pytest.mark.parametrize(
    "text, encoding", [(text, each) for text, some in TEXTS.items() for each in some]
)
def test_the_remedy_gives_back_the_text(text, encoding):
    data = text.encode(encoding)
    found = guessed(data)
    assert data.decode(PYTHON.get(found, found)) == text
    with refusal(f"not UTF-8; convert .*: iconv -f {found} -t utf-8"):
        list(read_lines(io.BytesIO(data)))
    with refusal(rf"input:1: \d of 2 lines are not UTF-8; .* {found} -t"):
        list(read_lines(io.BytesIO(data), strict=False))


@pytest.mark.parametrize(
    "text, encoding",
    [
        ("Yarın şiddetli yağmur yağacak.", "cp1254"),
        ("Moja mačka rada spi na kavču.", "cp1250"),
        ("Osoba vesluje na vodě.", "cp1250"),
        ("Holnap erős eső lesz.", "iso8859-2"),
    ],
)
def test_one_line_is_judged_by_its_ascii_letters_too(text, encoding):
    data = text.encode(encoding)
    assert data.decode(guessed(data)) == text


@pytest.mark.parametrize("order", ["utf-16le", "utf-16be", "utf-32le", "utf-32be"])
@pytest.mark.parametrize("text", TEXTS)
def test_wide_text_without_a_mark_is_known_from_one_line_on(text, order):
    line = text.split("\n")[0]
    for shown in (line, f"{line}\n", text, f"{text}\n"):
        assert wide(shown.encode(order)) == order
        with refusal(f"found UTF-.* without a mark; .* -f {order} -t"):
            list(read_lines(io.BytesIO(shown.encode(order)), strict=False))
    assert wide(text.encode()) == wide(b"a\0b\n") == wide(b"a b\0\n") == ""


@pytest.mark.parametrize(
    "text, encoding", [("こんにちは。", "iso-2022-jp"), ("안녕하세요", "iso-2022-kr")]
)
def test_iso_2022_is_no_text(text, encoding):
    """Its bytes are ASCII, so that nothing else would refuse it."""
    data = b"a\n" + f"{text}\n".encode(encoding)
    with refusal(rf"input:\d: found ISO 2022.*iconv -f {encoding} -t"):
        list(read_lines(io.BytesIO(data), strict=False))
    cn = b"\x1b$)A\x0e=;;;\x1b$)A\x0f\n"
    with refusal("iconv -f iso-2022-cn -t"):
        list(read_lines(io.BytesIO(cn)))
    assert list(read_lines(io.BytesIO(b"\x1b[31ma\n"))) == ["\x1b[31ma"]


def test_one_line_in_another_encoding_is_no_reason_to_convert_all():
    good = "Grüße\n".encode() * 30
    with refusal(r"31: byte 3 is 0xfc, which is not UTF-8, as in 1 of 61 lines") as caught:
        list(read_lines(io.BytesIO(good + b"Gr\xfc\xdfe\n" + good)))
    assert caught.value.skippable
    assert len(list(read_lines(io.BytesIO(good + b"Gr\xfc\xdfe\n"), strict=False))) == 31


def test_many_lines_in_another_encoding_are_no_accident():
    """Most lines are ASCII, and so would be read, but no other letter is in UTF-8."""
    data = (b"a b\n" * 9 + b"Gr\xfc\xdfe\n") * 100
    with refusal(r":10: 100 of 1,000 lines .* -f latin1 -t utf-8"):
        list(read_lines(io.BytesIO(data), strict=False))


def test_every_encoding_is_one_that_python_knows():
    for name in NARROW:
        assert "a".encode(PYTHON.get(name, name)) == b"a"
