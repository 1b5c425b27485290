"""Pictures of every mode are read as the same colours, and what is broken is refused by name."""

import io
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from transduct.data import files, images
from transduct.data.files import Refused
from transduct.data.images import ImageSource, fitted, read_labelled, read_picture, resized, save_picture
from transduct.errors import TransductError

RED, GREY = (200, 30, 40), (90, 90, 90)


def encoded(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def plain(mode, colour, size=(6, 4)):
    return Image.new(mode, size, colour)


MODES = {
    "RGB": (encoded(plain("RGB", RED)), RED),
    "grey": (encoded(plain("L", 90)), GREY),
    "bits": (encoded(plain("1", 1)), (255, 255, 255)),
    "palette": (encoded(plain("RGB", RED).quantize(4)), RED),
    "opaque": (encoded(plain("RGBA", (*RED, 255))), RED),
    "transparent": (encoded(plain("RGBA", (*RED, 0))), (255, 255, 255)),
    "half transparent": (encoded(plain("RGBA", (*RED, 51))), (244, 210, 212)),
    "grey with alpha": (encoded(plain("LA", (90, 255))), GREY),
    "palette with transparency": (encoded(plain("P", 0), transparency=0), (255, 255, 255)),
    "16 bit grey": (encoded(Image.fromarray(np.full((4, 6), 90 * 257, np.uint16))), GREY),
    "16 bit grey in a TIFF": (encoded(Image.fromarray(np.full((4, 6), 90 * 257, np.uint16)), "TIFF"), GREY),
    "16 bit grey in a PPM": (b"P5 6 4 65535\n" + np.full((4, 6), 90 * 257, ">u2").tobytes(), GREY),
    "CMYK": (encoded(plain("CMYK", (0, 0, 0, 165)), "JPEG", quality=100), GREY),
    "JPEG": (encoded(plain("RGB", GREY), "JPEG", quality=100), GREY),
    "WebP": (encoded(plain("RGB", RED), "WEBP", lossless=True), RED),
    "GIF": (encoded(plain("RGB", RED).quantize(4), "GIF"), RED),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_read_as_colours(mode):
    data, colour = MODES[mode]
    picture = read_picture(data, "a picture")
    assert picture.shape == (4, 6, 3)
    assert picture.dtype == np.uint8
    assert np.abs(picture.astype(int) - colour).max() <= 1


def test_a_picture_stands_as_its_camera_was_held():
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert read_picture(encoded(image, exif=exif), "a picture").shape == (4, 2, 3)


def test_a_path_is_read_too(tmp_path):
    (tmp_path / "a.png").write_bytes(MODES["RGB"][0])
    assert read_picture(tmp_path / "a.png", "a.png").shape == (4, 6, 3)
    with pytest.raises(TransductError, match=r"b\.png: no such file; give the path of a picture"):
        read_picture(tmp_path / "b.png", "b.png")


def png_of_size(width, height):
    """A PNG that claims a size and holds almost nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 10_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size):
    with pytest.raises(TransductError, match=r"a\.png: claims too many pixels \(.+\), at most 67,108,864 are read"):
        read_picture(png_of_size(*size), "a.png")


@pytest.mark.parametrize("mode, kind", [("I", np.int32), ("F", np.float32)])
def test_a_picture_of_32_bits_a_pixel_is_refused(mode, kind):
    data = encoded(Image.fromarray(np.full((4, 6), 90, kind)), "TIFF")
    message = rf"a\.tif: found a TIFF of 32 bits a pixel \(mode {mode}\), expected 8 or 16 bits a channel; convert it"
    with pytest.raises(TransductError, match=message):
        read_picture(data, "a.tif")


@pytest.mark.parametrize("error", [RuntimeError("no frame"), NotImplementedError("no frame"), MemoryError("no frame")])
def test_whatever_a_decoder_raises_is_refused(error, monkeypatch):
    def load(*args):
        raise error

    monkeypatch.setattr(Image.Image, "convert", load)
    with pytest.raises(TransductError, match=r"a\.png: not a whole picture \(no frame\); expected one that Pillow"):
        read_picture(MODES["RGB"][0], "a.png")


def test_what_is_no_picture_is_said_the_same_each_time():
    for data in (b"", b"hello" * 100):
        with pytest.raises(TransductError, match=r"a\.png: not a whole picture \(of no known format\); expected one"):
            read_picture(data, "a.png")


NOISE = np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_picture_is_refused(kind, kept):
    data = encoded(Image.fromarray(NOISE), kind)
    with pytest.raises(TransductError, match=r"a\.png: not a whole picture \(.+\); expected one that Pillow can read"):
        read_picture(data[: int(len(data) * kept)], "a.png")


def test_noise_is_refused_with_one_kind_of_error():
    data = bytearray(encoded(Image.fromarray(NOISE)))
    random, refused = np.random.default_rng(1), 0
    for _ in range(300):
        broken = bytearray(data)
        for place in random.integers(8, len(data), 4):
            broken[place] = random.integers(256)
        try:
            read_picture(bytes(broken), "a.png")
        except TransductError:
            refused += 1
    assert refused > 200


def test_without_pillow_the_line_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TransductError, match=r"Pillow is not installed; run: pip install 'transduct\[vision\]'"):
        read_picture(MODES["RGB"][0], "a.png")


def test_fitting_takes_the_middle_and_resizing_keeps_means():
    picture = np.zeros((10, 30, 3), np.uint8)
    picture[:, 10:20] = RED
    assert np.array_equal(fitted(picture, 10), np.full((10, 10, 3), RED))
    assert np.array_equal(resized(fitted(picture, 10), 5, 7), np.full((5, 7, 3), RED))
    assert resized(picture, 10, 30) is picture


def test_a_saved_picture_comes_back(tmp_path):
    save_picture(NOISE, tmp_path / "a.png")
    assert np.array_equal(read_picture(tmp_path / "a.png", ""), NOISE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_picture_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(TransductError, match=r"a\.doc' is no name for a picture; end it in \.png, \.jpg, \.jpeg"):
        save_picture(NOISE, tmp_path / "a.doc")
    with pytest.raises(TransductError, match=r"cannot write '.*a\.png' \(No such file or directory\)"):
        save_picture(NOISE, tmp_path / "none" / "a.png")


@pytest.fixture
def corpus(tmp_path):
    """Two folders of pictures, one of them broken, and captions."""
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).write_bytes(MODES["RGB"][0])
    (tmp_path / "all" / "cat" / "2.png").write_bytes(b"broken")
    (tmp_path / "captions.tsv").write_text("cat/1.png\ta cat\ndog/2.png\ta dog\n")
    return tmp_path


def test_folders_are_labels(corpus):
    refused = Refused("skip")
    found = [(name, label) for name, _, label in read_labelled(ImageSource("all"), corpus, refused)]
    assert found == [("cat/1.png", "cat"), ("dog/1.png", "dog")]
    assert refused.dropped == {"broken": 1}
    assert refused.said().startswith("all: cat/2.png: not a whole picture")


def test_captions_and_pictures_must_find_each_other(corpus):
    refused = Refused("skip")
    found = list(read_labelled(ImageSource("all", "captions.tsv"), corpus, refused))
    assert [(name, text) for name, _, text in found] == [("cat/1.png", "a cat")]
    assert refused.dropped == {"broken": 3}
    assert "all: dog/1.png: found no text for it, expected a caption of it" in refused.said()
    assert "captions.tsv: dog/2.png: found a caption without its picture in all" in refused.said()


def test_a_broken_picture_with_a_caption_counts_once(corpus):
    (corpus / "captions.tsv").write_text("cat/1.png\ta cat\ncat/2.png\tbroken\ndog/1.png\ta dog\n")
    refused = Refused("skip")
    assert len(list(read_labelled(ImageSource("all", "captions.tsv"), corpus, refused))) == 2
    assert refused.dropped == {"broken": 1}


def test_a_picture_that_cannot_be_read_is_left_out_and_counts_once(corpus, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1000)
    (corpus / "all" / "cat" / "2.png").write_bytes(bytes(1001))
    (corpus / "all" / "dog" / "2.png").symlink_to("gone.png")
    (corpus / "captions.tsv").write_text("cat/1.png\ta cat\ncat/2.png\ta\ndog/1.png\ta dog\ndog/2.png\ta\n")
    for source in (ImageSource("all"), ImageSource("all", "captions.tsv")):
        refused = Refused("skip")
        found = [name for name, _, _ in read_labelled(source, corpus, refused)]
        assert found == ["cat/1.png", "dog/1.png"]
        assert [error.split(": ", 1)[1] for error in refused.errors] == [
            "'cat/2.png': holds 1,001 bytes, at most 1,000 are read; take it out",
            "cannot be read (its link leads nowhere); check it and its folder",
        ]
        with pytest.raises(TransductError, match=r"take it out; or leave such files out with data\.broken=skip"):
            list(read_labelled(source, corpus, Refused("stop")))


def test_a_picture_in_no_folder_has_no_label(corpus):
    (corpus / "all" / "3.png").write_bytes(MODES["RGB"][0])
    (corpus / "all" / "cat" / "2.png").unlink()
    with pytest.raises(TransductError, match=r"all: 3\.png: found no text for it, expected a folder named by its"):
        list(read_labelled(ImageSource("all"), corpus, Refused("stop")))


def test_a_picture_is_captioned_once(corpus):
    (corpus / "captions.tsv").write_text("a.png\tone\na.png\ttwo\n")
    with pytest.raises(TransductError, match=r"captions\.tsv:2: 'a\.png' has a caption already; keep one of them"):
        images.read_captions("captions.tsv", corpus)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf")])
def test_impossible_weights_are_refused(weight):
    with pytest.raises(ValueError, match="give a number above 0, or leave the corpus out"):
        ImageSource("all", weight=weight)


def test_the_files_of_a_corpus_are_named():
    assert ImageSource("a.tar", "b.tsv").files() == ["a.tar", "b.tsv"]
