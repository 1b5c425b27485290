"""Pictures with captions: read at one size, prepared once, and what does not belong together named
and counted."""

import weakref

import numpy as np
import pytest

from tests.pictures import BARS, bar, png, write_pictures
from tests.refusals import refusal
from transduct.data import images
from transduct.data.captioned_images import (
    Examples,
    PicturesConfig,
    PictureSource,
    pictures_given,
    prepare,
    read_examples,
)
from transduct.data.corpus import ragged
from transduct.data.images import fitted

SCENES = PictureSource(generate="scenes", count=5)


@pytest.fixture
def folder(tmp_path):
    """Three captioned pictures, a picture without a caption, and a caption without its picture."""
    for number, kind in enumerate(["across", "down", "aslope", "down"]):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        (tmp_path / "pictures" / f"{number}.png").write_bytes(png(bar(kind, number)))
    lines = ["0.png\ta bar across", "1.png\ta bar down", "2.png\ta bar aslope", "7.png\tnothing"]
    (tmp_path / "captions.tsv").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


class CaptionedConfig(PicturesConfig):
    captioned = True


def config(folder, broken="stop", captions="captions.tsv", kind=CaptionedConfig):
    source = PictureSource(images="pictures", captions=captions)
    return kind(train=[source], root=str(folder), size=8, broken=broken)


def columns(captions, pictures):
    return [
        ragged([[len(text)] for text in captions]),
        ragged([[*picture[0, 0]] for picture in pictures]),
    ]


def test_pictures_and_captions_that_lack_each_other_are_named_and_counted(folder):
    data, said = config(folder, "skip"), []
    examples = read_examples(data.train[0], data, said.append)
    assert examples.captions == ["a bar across", "a bar down", "a bar aslope"]
    assert [picture.shape for picture in examples.pictures] == [(8, 8, 3)] * 3
    assert "pictures: 2 left out" in said[0]
    assert "3.png: found no text" in said[0]
    assert "7.png: found a caption without its picture" in said[0]
    corpus = prepare(data, columns, {}, folder / "corpus", said.append)
    assert len(corpus) == 3
    assert corpus.dropped == {"broken": 2}
    assert corpus.columns(np.array([2, 0]))[0][0].tolist() == [
        len("a bar aslope"),
        len("a bar across"),
    ]


def test_by_default_they_stop_it(folder):
    data = config(folder)
    with refusal(r"3.png: found no text.*data.broken=skip"):
        read_examples(data.train[0], data, str)
    data = config(folder, kind=PicturesConfig)
    plain = read_examples(data.train[0], data, str)
    assert len(plain.pictures) == 4  # who needs no captions misses none


def test_blanks_around_a_text_make_no_other_and_are_none(folder):
    (folder / "captions.tsv").write_text("0.png\tcat\n1.png\tcat \n2.png\t \n3.png\t cat\n")
    said = []
    data = config(folder, "skip")
    assert read_examples(data.train[0], data, said.append).captions == ["cat"] * 3
    assert "2.png: found no text for it" in said[0]


def test_a_folder_s_name_is_a_caption(tmp_path):
    write_pictures(tmp_path / "bars.tar", 3)
    source = PictureSource(images="bars.tar")
    data = CaptionedConfig(train=[source], root=str(tmp_path), size=8)
    assert read_examples(source, data, str).captions == ["across", "down", "aslope"]


def test_generated_ones_say_so(tmp_path):
    examples = read_examples(SCENES, PicturesConfig(train=[SCENES], size=16), str)
    assert examples.generated == "scenes"
    assert len(examples.captions) == len(examples.pictures) == 5
    assert SCENES.files() == []


def test_an_epoch_shows_corpora_as_often_as_their_weights_say(tmp_path):
    train = [SCENES, PictureSource(generate="scenes", part="valid", count=3, weight=2.0)]
    corpus = prepare(PicturesConfig(train=train, size=8), columns, {}, tmp_path / "corpus", str)
    assert corpus.weights == [(0, 5, 1.0), (5, 8, 2.0)]


def test_nothing_left_is_refused(tmp_path):
    (tmp_path / "pictures").mkdir()
    data = config(tmp_path, "skip", None)
    with refusal("pictures: found no picture in it"):
        read_examples(data.train[0], data, str)
    with refusal("no picture is left to train on"):
        prepare(data, columns, {}, tmp_path / "corpus", str)


def test_what_a_model_is_scored_on(folder):
    write_pictures(folder / "bars", 3)
    given = pictures_given({"source": str(folder / "bars")}, CaptionedConfig)
    kinds = ["across", "aslope", "down"]
    assert given.at(12).captions == kinds
    for number, found in zip((0, 2, 1), given.at(8).pictures, strict=True):
        assert np.array_equal(found, fitted(bar(BARS[number], number), 8))
    (folder / "captions.tsv").write_text(
        "across/0000.png\tone\ndown/0001.png\ttwo\naslope/0002.png\tthree\n"
    )
    named = pictures_given(
        {"source": str(folder / "bars"), "reference": str(folder / "captions.tsv")}, CaptionedConfig
    )
    assert sorted(named.at(8).captions) == ["one", "three", "two"]
    with refusal("captions, without their pictures; give them as --source"):
        pictures_given({"reference": "captions.tsv"}, CaptionedConfig)


def test_examples_are_brought_to_another_size():
    examples = Examples(["a"], [bar("down", 1)], "scenes")
    assert np.array_equal(examples.at(5).pictures[0], fitted(bar("down", 1), 5))
    assert (examples.at(5).captions, examples.at(5).generated) == (["a"], "scenes")


def test_of_the_files_given_no_picture_is_kept_at_its_size(folder, monkeypatch):
    write_pictures(folder / "bars", 9)
    kept = []

    def read(*_):
        kept.append(weakref.ref(photograph := np.zeros((40, 60, 3), np.uint8)))
        assert sum(each() is not None for each in kept) <= 2  # this one, and the one before
        return photograph

    monkeypatch.setattr(images, "read_picture", read)
    assert (
        len(pictures_given({"source": str(folder / "bars")}, CaptionedConfig).at(40).pictures)
        == len(kept)
        == 9
    )


def test_of_files_given_the_error_names_them_and_no_recipe(folder):
    (folder / "bars" / "down").mkdir(parents=True)
    given = pictures_given({"source": str(folder / "bars")}, CaptionedConfig)
    with refusal(r"bars: found no picture in it; give one that holds some$"):
        given.at(8)
    (folder / "bars" / "down" / "1.png").write_bytes(b"broken")
    with refusal(r"down/1.png: not a whole picture .* or PPM$"):
        given.at(8)


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, "give images or generate: exactly one of them"),
        (
            {"images": "a.tar", "generate": "scenes", "count": 3},
            "give images or generate: exactly one of them",
        ),
        ({"generate": "scenes"}, "count is 0; give how many pictures to generate"),
        ({"images": "a.tar", "part": "valid"}, "part is 'valid'; give it only with generate"),
        (
            {"images": "a.tar", "count": 3},
            "count is 3; give how many pictures to generate, only with generate",
        ),
        (
            {"generate": "scenes", "count": 3, "captions": "a.tsv"},
            "captions is a.tsv; give it only with images",
        ),
    ],
)
def test_impossible_corpora_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        PictureSource(**change)
