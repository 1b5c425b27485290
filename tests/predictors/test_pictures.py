"""What a model can show is asked for in words that say what to change."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.helpers import Stub
from transduct.errors import TransductError
from transduct.predictors.pictures import check_drawable, draw, places, read_once


def draws(given, output):
    return np.full((4, 6, 3), 200, np.uint8)


SHOWS = SimpleNamespace(attention_names=["encoder.0.self"])
TEXT = Stub()
PAINTER = Stub(
    paints=True, picture=draws, attention=print, verbs={"picture", "attention"}, model=SHOWS
)


@pytest.mark.parametrize(
    ("model", "path", "attention", "message"),
    [
        (TEXT, None, "a.svg", "m: this model has no attention to show; omit --attention"),
        (
            Stub(attention=print, verbs={"attention"}, model=SimpleNamespace(attention_names=[])),
            None,
            "a.svg",
            "m: this model has no",
        ),
        (
            PAINTER,
            None,
            None,
            r"m: this model answers with pictures; say where to draw them with --out FILE\.png",
        ),
        (TEXT, "a.png", None, "m: this model answers in text, which has no picture; omit --out"),
        (PAINTER, "a.txt", None, "'a.txt' does not name a picture; end it in "),
    ],
)
def test_impossible_pictures_are_refused_before_the_model_answers(model, path, attention, message):
    with pytest.raises(TransductError, match=f"^{message}"):
        check_drawable(model, "m", path and Path(path), attention and Path(attention))


def test_what_can_be_drawn_is_not_refused(tmp_path):
    check_drawable(TEXT, "m", None)
    check_drawable(PAINTER, "m", Path("a.png"), Path("b.svg"))
    draw(PAINTER, "a", None, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as found:
        assert (found.size, found.getpixel((0, 0))) == ((6, 4), (200, 200, 200))


def test_bytes_that_are_no_text_are_marked_and_a_pipe_is_read_once(tmp_path):
    assert read_once(TEXT, b"a\xffb".decode(errors="surrogateescape")) == "a\ufffdb"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for reads in ("picture", "sound"):
        reader = Stub(reads=reads)
        assert read_once(reader, str(tmp_path)) == str(tmp_path)
        threading.Thread(target=pipe.write_bytes, args=(b"some",), daemon=True).start()
        assert read_once(reader, str(pipe)) == b"some"


def test_pictures_of_answers_are_numbered_where_there_are_several():
    assert places(PAINTER, ["a"], Path("x.png"), None) == [Path("x.png")]
    assert places(PAINTER, ["a", "b"], Path("f/x.png"), None) == [
        Path("f/x_1.png"),
        Path("f/x_2.png"),
    ]
    assert places(TEXT, ["a", "b"], None, Path("x.svg")) == []


@pytest.mark.parametrize(
    ("inputs", "out", "attention", "wrong"),
    [
        (["photo_2.png", "photo_1.png"], "photo.png", None, "photo_1.png"),
        (["street.jpg"], "./street.jpg", None, "street.jpg"),
        (["street.png"], None, "street.png", "street.png"),
        (["a.png"], "x.png", "x.png", "x.png"),
    ],
)
def test_no_picture_is_drawn_over_an_input_or_another(
    monkeypatch, tmp_path, inputs, out, attention, wrong
):
    monkeypatch.chdir(tmp_path)
    reader = Stub(reads="picture", picture=draws)
    with pytest.raises(
        TransductError,
        match=f"^{wrong}: this is an input, or another picture's place; draw to anoth",
    ):
        places(reader, inputs, out and Path(out), attention and Path(attention))
    if out != attention:  # a text of that name is no file
        places(PAINTER, inputs, out and Path(out), attention and Path(attention))
