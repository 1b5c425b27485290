"""Pictures of every mode are read as the same colours, and what is broken is refused by name."""

import io
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refusal
from transduct.data import archives, images
from transduct.data.files import Refused
from transduct.data.images import (
    ImageSource,
    as_picture,
    encode_picture,
    fitted,
    read_labelled,
    read_picture,
    read_pictures,
    resized,
)
from transduct.errors import TransductError

WHY = ["no frame"]
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
    "16 bit grey in a TIFF": (
        encoded(Image.fromarray(np.full((4, 6), 90 * 257, np.uint16)), "TIFF"),
        GREY,
    ),
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
    assert picture.flags.writeable
    assert np.abs(picture.astype(int) - colour).max() <= 1


def test_a_picture_stands_as_its_camera_was_held():
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    exif = image.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert read_picture(encoded(image, exif=exif), "a picture").shape == (4, 2, 3)


def test_a_path_is_read_too(tmp_path):
    (tmp_path / "a.png").write_bytes(MODES["RGB"][0])
    assert read_picture(tmp_path / "a.png", "a.png").shape == (4, 6, 3)
    with refusal(r"b\.png: no such file; give the path of a picture"):
        read_picture(tmp_path / "b.png", "b.png")


def png(width, height, bits, colour, pixels, transparent=b""):
    """A PNG of such a size, whatever it holds."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    key = chunk(b"tRNS", transparent) if transparent else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + key
        + chunk(b"IDAT", zlib.compress(pixels))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(10_000, 10_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(size):
    with refusal(r"a\.png: claims too many pixels \(.+\), at most 67,108,864 are read"):
        read_picture(png(*size, 8, 2, bytes(100)), "a.png")


@pytest.mark.parametrize("mode, kind", [("I", np.int32), ("F", np.float32)])
def test_a_picture_of_32_bits_a_pixel_is_refused(mode, kind):
    data = encoded(Image.fromarray(np.full((4, 6), 90, kind)), "TIFF")
    message = (
        rf"a\.tif: found a TIFF of 32 bits a pixel \(mode {mode}\), expected 8 or 16 "
        r"bits a channel; convert it"
    )
    with refusal(message):
        read_picture(data, "a.tif")


@pytest.mark.parametrize(
    "error",
    [
        *map(RuntimeError, WHY),
        *map(NotImplementedError, WHY),
        *map(MemoryError, WHY),
        *map(TypeError, WHY),
    ],
)
def test_whatever_a_decoder_raises_is_refused(error, monkeypatch):
    def load(*args):
        raise error

    monkeypatch.setattr(Image.Image, "convert", load)
    with refusal(r"a\.png: not a whole picture \(no frame\); expected a PNG"):
        read_picture(MODES["RGB"][0], "a.png")


def test_what_is_no_picture_is_said_the_same_each_time():
    for data in (b"", b"hello" * 100):
        with refusal(r"a\.png: not a whole picture \(of no known format\); expected a "):
            read_picture(data, "a.png")


NOISE = np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)
TURNED = NOISE.transpose(2, 0, 1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_picture_is_refused(kind, kept):
    data = encoded(Image.fromarray(NOISE), kind)
    with refusal(r"a\.png: not a whole picture \(.+\); expected a PNG, JPEG, "):
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


@pytest.mark.parametrize("kind", ["EPS", "ICO", "TGA", "PCX", "SGI", "PDF"])
def test_other_formats_are_not_even_tried(kind):
    data = encoded(Image.fromarray(NOISE), kind)
    with refusal(r"a\.png: not a whole picture \(of no known format\); expected a PNG, JPEG"):
        read_picture(data, "a.png")


def test_every_ending_has_its_format():
    known = Image.registered_extensions()
    assert {known[ending] for ending in images.ENDINGS} == set(images.FORMATS)
    two = encoded(
        Image.fromarray(NOISE), "MPO", save_all=True, append_images=[Image.fromarray(NOISE)]
    )
    assert Image.open(io.BytesIO(two)).format == "MPO", "as telephones write a .jpg"
    assert read_picture(two, "a.jpg").shape == (16, 16, 3)


def test_pillow_says_nothing_of_its_own():
    """Pillow's log message would be printed before the error, as a second line."""
    code = (
        "import logging, transduct.data.images; "
        "logging.getLogger('PIL.TiffImagePlugin').error('more samples')"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr == ""


GIVEN = {
    "a path": lambda path: path,
    "its text": str,
    "bytes": lambda path: path.read_bytes(),
    "an array of bytes": lambda path: bytearray(path.read_bytes()),
    "an image": Image.open,
    "an image of another mode": lambda path: Image.open(path).convert("RGBA"),
    "an array": lambda path: np.array(Image.open(path)),
    "an array that lies elsewise": lambda path: np.asfortranarray(np.array(Image.open(path))),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_picture_may_be_given_as(kind, tmp_path):
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    assert np.array_equal(as_picture(GIVEN[kind](tmp_path / "a.png"), "input 1"), NOISE)


KINDS = "a path, the bytes of a file, an image of Pillow's or an array"
WRONG = {
    "found an array of shape (16, 16, 3), float64; expected (height, width, 3), uint8": NOISE
    / 255.0,
    "found an array of shape (16, 16, 3), uint16; expected (height, width, 3), uint8": NOISE.astype(
        np.uint16
    ),
    "found an array of shape (16, 16, 3), bool; expected (height, width, 3), uint8": NOISE > 9,
    "found an array of shape (16, 16), uint8; expected (height, width, 3), uint8": NOISE[..., 0],
    "found an array of shape (3, 16, 16), uint8; expected (height, width, 3), uint8": TURNED,
    "found an array of shape (16, 16, 4), uint8; expected (height, width, 3), uint8": NOISE[
        ..., [0, 1, 2, 0]
    ],
    "found an array of shape (1, 16, 16, 3), uint8; expected (height, width, 3), uint8": NOISE[
        None
    ],
    "found an array of shape (0, 16, 3), uint8; expected (height, width, 3), uint8": NOISE[:0],
    "found an array of shape (0, 5, 3), uint8; expected (height, width, 3), uint8": Image.new(
        "RGB", (5, 0)
    ),
    f"found NoneType; expected {KINDS}": None,
    f"found int; expected {KINDS}": 5,
    "not a whole picture (of no known format); expected a PNG, JPEG, WebP, BMP, GIF, "
    "TIFF or PPM": b"a.png",
    "found a picture of 32 bits a pixel (mode F), expected 8 or 16 bits a channel; "
    "convert it": Image.new("F", (5, 5)),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_given_as_a_picture_and_is_none_is_refused(message):
    with refusal(f"^input 2: {re.escape(message)}$"):
        as_picture(WRONG[message], "input 2")


def test_an_image_that_is_truncated_is_refused_once_it_is_given():
    image = Image.open(io.BytesIO(encoded(Image.fromarray(NOISE))[:400]))
    with refusal(r"^input 1: not a whole picture"):
        as_picture(image, "input 1")


# bits, kind of colour, two pixels of which the first is transparent, its colour, what the second is
KEYED = {
    "8 bit grey": (8, 0, bytes([10, 20]), (10,), (20, 20, 20)),
    "16 bit grey": (16, 0, struct.pack(">2H", 5140, 5141), (5140,), (20, 20, 20)),
    "2 bit grey": (2, 0, bytes([0b01100000]), (1,), (170, 170, 170)),
    "4 bit grey": (4, 0, bytes([0x12]), (1,), (34, 34, 34)),
    "8 bits a channel": (8, 2, bytes([10, 20, 30, 40, 50, 60]), (10, 20, 30), (40, 50, 60)),
    "16 bits a channel": (
        16,
        2,
        struct.pack(">6H", 1000, 2000, 3000, 10240, 12800, 15360),
        (1000, 2000, 3000),
        (40, 50, 60),
    ),
    "16 bits a channel, dark": (
        16,
        2,
        struct.pack(">6H", 0, 0, 5, 10240, 12800, 15360),
        (0, 0, 5),
        (40, 50, 60),
    ),
}


@pytest.mark.parametrize("kind", KEYED)
def test_the_transparent_colour_of_a_png_is_white_whatever_its_bits(kind):
    bits, colour, row, key, second = KEYED[kind]
    data = png(2, 1, bits, colour, b"\0" + row, struct.pack(f">{len(key)}H", *key))
    assert read_picture(data, "a picture").tolist() == [[[255, 255, 255], list(second)]]


def test_without_pillow_the_line_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(r"Pillow is not installed; run: pip install 'transduct\[vision\]'"):
        read_picture(MODES["RGB"][0], "a.png")


def test_fitting_takes_the_middle_and_resizing_keeps_means():
    picture = np.zeros((10, 30, 3), np.uint8)
    picture[:, 10:20] = RED
    for one in (picture, picture.transpose(1, 0, 2)):
        assert np.array_equal(fitted(one, 10), np.full((10, 10, 3), RED))
    assert np.array_equal(resized(fitted(picture, 10), 5, 7), np.full((5, 7, 3), RED))
    assert resized(picture, 10, 30) is picture
    assert resized(NOISE, 4, 4).std() < 0.5 * NOISE.std(), "no pixel is left out"


def test_what_is_fitted_keeps_no_larger_picture_in_memory():
    for shape in ((10, 30, 3), (30, 10, 3)):
        assert fitted(np.zeros(shape, np.uint8), 10).base is None


def test_a_saved_picture_comes_back(tmp_path):
    (tmp_path / "a.png").write_bytes(encode_picture(NOISE, tmp_path / "a.png"))
    assert np.array_equal(read_picture(tmp_path / "a.png", ""), NOISE)


@pytest.mark.parametrize("ending", images.ENDINGS)
def test_a_picture_is_encoded_as_its_name_ends(ending):
    with Image.open(io.BytesIO(encode_picture(NOISE, Path(f"a{ending.upper()}")))) as picture:
        assert picture.size == NOISE.shape[1::-1]
        assert ending in [
            known for known, kind in Image.registered_extensions().items() if kind == picture.format
        ]


def test_a_name_that_ends_in_no_format_is_said():
    with refusal(r"a\.doc' does not name a picture; end it in \.png, \.jpg, \.jpeg"):
        encode_picture(NOISE, Path("a.doc"))


@pytest.mark.parametrize("ending, most", images.LONGEST_SIDES.items())
def test_a_picture_too_long_for_its_format_is_said(ending, most, capfd):
    encode_picture(np.zeros((1, 1000, 3), np.uint8), Path(f"a{ending}"))
    message = (
        rf"a{ending}' \(the picture is {most + 1:,} x 1, such a file holds at most "
        rf"{most:,} on a side\); give a name t"
    )
    with refusal(message):
        encode_picture(np.zeros((1, most + 1, 3), np.uint8), Path(f"a{ending}"))
    assert capfd.readouterr().err == "", "nor does the format's own library say a word"
    encode_picture(np.zeros((1, most + 1, 3), np.uint8), Path("a.png"))


@pytest.mark.parametrize("error", [ValueError("odd"), OSError("odd"), MemoryError("odd")])
def test_whatever_an_encoder_raises_is_one_line_with_a_remedy(monkeypatch, error):
    def save(*args):
        raise error

    monkeypatch.setattr(Image.Image, "save", save)
    with refusal(r"cannot write 'a\.webp' \(odd\); give a name that ends in \.png"):
        encode_picture(NOISE, Path("a.webp"))


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
    assert refused.summary().startswith("all: cat/2.png: not a whole picture")


def test_a_broken_picture_is_named_with_its_archive(corpus):
    refused = Refused("skip")
    assert [name for name, _ in read_pictures(ImageSource("all"), corpus, refused)] == [
        "cat/1.png",
        "dog/1.png",
    ]
    assert refused.summary().startswith("all: cat/2.png: not a whole picture")


def test_captions_and_pictures_must_find_each_other(corpus):
    refused = Refused("skip")
    found = list(read_labelled(ImageSource("all", "captions.tsv"), corpus, refused))
    assert [(name, text) for name, _, text in found] == [("cat/1.png", "a cat")]
    assert refused.dropped == {"broken": 3}
    assert "all: dog/1.png: found no text for it, expected a caption of it" in refused.summary()
    assert (
        "captions.tsv: dog/2.png: found a caption without its picture in all" in refused.summary()
    )


def test_a_caption_of_blanks_is_none_and_blanks_around_one_are_no_part_of_it(corpus):
    (corpus / "captions.tsv").write_text("cat/1.png\t  a cat \ncat/2.png\tbroken\ndog/1.png\t  \n")
    refused = Refused("skip")
    found = [
        (name, text)
        for name, _, text in read_labelled(ImageSource("all", "captions.tsv"), corpus, refused)
    ]
    assert found == [("cat/1.png", "a cat")]
    assert "all: dog/1.png: found no text for it" in refused.summary()


def test_a_broken_picture_with_a_caption_counts_once(corpus):
    (corpus / "captions.tsv").write_text("cat/1.png\ta cat\ncat/2.png\tbroken\ndog/1.png\ta dog\n")
    refused = Refused("skip")
    assert len(list(read_labelled(ImageSource("all", "captions.tsv"), corpus, refused))) == 2
    assert refused.dropped == {"broken": 1}


def test_a_picture_that_cannot_be_read_is_left_out_and_counts_once(corpus, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_FILE", 1000)
    (corpus / "all" / "cat" / "2.png").write_bytes(bytes(1001))
    (corpus / "all" / "dog" / "2.png").symlink_to("gone.png")
    (corpus / "captions.tsv").write_text(
        "cat/1.png\ta cat\ncat/2.png\ta\ndog/1.png\ta dog\ndog/2.png\ta\n"
    )
    for source in (ImageSource("all"), ImageSource("all", "captions.tsv")):
        refused = Refused("skip")
        found = [name for name, _, _ in read_labelled(source, corpus, refused)]
        assert found == ["cat/1.png", "dog/1.png"]
        assert [error.split(": ", 1)[1] for error in refused.errors] == [
            "'cat/2.png': holds 1,001 bytes, at most 1,000 are read; take it out",
            "cannot be read (its link leads nowhere); check it and its folder",
        ]
        with refusal(r"take it out; or leave such out with data\.broken=skip"):
            list(read_labelled(source, corpus, Refused("stop")))


def test_a_picture_in_no_folder_has_no_label(corpus):
    (corpus / "all" / "3.png").write_bytes(MODES["RGB"][0])
    (corpus / "all" / "cat" / "2.png").unlink()
    with refusal(r"all: 3\.png: found no text for it, expected a folder named by its"):
        list(read_labelled(ImageSource("all"), corpus, Refused("stop")))


def test_a_picture_is_captioned_once(corpus):
    (corpus / "captions.tsv").write_text("a.png\tone\na.png\ttwo\n")
    with refusal(r"captions\.tsv:2: 'a\.png' has a caption already; keep one of them"):
        images.read_captions("captions.tsv", corpus)


def test_the_files_of_a_corpus_are_named():
    assert ImageSource("a.tar", "b.tsv").files() == ["a.tar", "b.tsv"]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L", "CMYK"])
def test_a_picture_is_converted_in_bands_as_it_would_be_at_once(monkeypatch, mode):
    numbers = np.random.default_rng(0).integers(0, 256, (7, 5, 4), np.uint8)
    image = Image.fromarray(numbers, "RGBA").convert(mode)
    data = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    whole = read_picture(data, "a")
    monkeypatch.setattr(images, "BAND", 11)  # two rows of five
    np.testing.assert_array_equal(read_picture(data, "a"), whole)


def test_a_large_transparent_picture_is_held_twice_at_most():
    """All at once it would be held six times. In a process of its own, whose peak can be told."""
    program = """
import io, resource, sys
from PIL import Image
from transduct.data.images import read_picture
file = io.BytesIO()
Image.new("RGBA", (3000, 3000), (1, 2, 3, 99)).save(file, "PNG", compress_level=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_picture(file.getvalue(), "a")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=99, check=True)
    grown = int(done.stdout) // (1 if sys.platform == "linux" else 1024)  # macOS counts bytes
    assert grown < 80_000
