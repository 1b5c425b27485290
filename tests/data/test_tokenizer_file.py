"""What nobody sees is left out as Unicode says. A tokenizer that others wrote takes bounded time
and memory, and ends in one line."""

import base64
import json
import os
import random
import time
import unicodedata

import pytest
import regex
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from tests.refusals import refusal
from transduct.data import tokenizer_file
from transduct.data.tokenizer import Tokenizer, panics_as_errors
from transduct.data.tokenizer_file import (
    COMPOSED,
    LIGATURES,
    LONGEST,
    TIDY,
    cleared,
    is_blank,
    read,
    tidied,
)

REPLACE = {"type": "Replace", "content": ""}


@pytest.fixture(scope="module")
def plain():
    return json.loads(Tokenizer.train(["ab ab ab"], "bpe", 9).text)


def written(path, content):
    path.write_text(json.dumps(content))
    return path


def chained(kind, rules):
    return {"type": "Sequence", kind: rules}


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    "name, part, said",
    [
        ("normalizer", {**REPLACE, "pattern": {"Regex": "(a+)+$"}}, r"the pattern '\(a\+\)\+\$'"),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"},
            r"the pattern '\(a\|aa\)\+\$', which transduct never writes .*; take the model",
        ),
        ("decoder", {**REPLACE, "pattern": {"Regex": "x*"}}, "the pattern"),
        ("decoder", chained("decoders", [DOUBLING] * 30), "lengthen a text 4,294,967,296 times"),
        (
            "normalizer",
            chained("normalizers", [DOUBLING] * 3),
            "lengthen a text 8 times, at most 4",
        ),
        (
            "decoder",
            {**REPLACE, "pattern": {"String": ""}, "content": "abcdefghi"},
            "lengthen a text 36 times",
        ),
        ("normalizer", {"type": "Prepend", "prepend": "a" * (LONGEST + 1)}, "a rule holds 10,001"),
        (
            "normalizer",
            chained("normalizers", [{"type": "NFC"}] * 101),
            "has 108 rules, at most 100",
        ),
        ("decoder", {"type": "Strip", "content": "a", "start": 2, "stop": 3}, "numbers at which"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "numbers at which"),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 9).decode()},
            "character rules are cut short; copy it again",
        ),
    ],
)
def test_what_would_hang_panic_or_grow_is_refused_at_once(tmp_path, plain, name, part, said):
    path = written(tmp_path / "tokenizer.json", {**plain, name: part})
    began = time.perf_counter()
    with refusal(f"tokenizer.json: .*{said}"):
        Tokenizer.load(path)
    assert time.perf_counter() - began < 0.5


def test_a_token_of_any_length_is_refused(tmp_path, plain):
    vocabulary = {**plain["model"]["vocab"], "b" * (LONGEST + 1): 9}
    path = written(tmp_path / "a", {**plain, "model": {**plain["model"], "vocab": vocabulary}})
    with refusal(r"a: a token holds 10,001 characters, at most 10,000"):
        read(path)


def test_a_pipe_a_device_and_a_huge_file_are_refused(tmp_path, monkeypatch, plain):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "zero"):
        if path.name == "zero":
            path.symlink_to("/dev/zero")
        with refusal("not a regular file; expected a tokenizer"):
            Tokenizer.load(path)
    monkeypatch.setattr(tokenizer_file, "LARGEST", 99)
    with refusal("bytes, at most 99 are read; expected a tokenizer"):
        read(written(tmp_path / "a", plain))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim", "byte"])
def test_every_kind_that_is_written_is_read(tmp_path, kind):
    tokenizer = Tokenizer.train(["ab ab <s> é 가나"] * 3, kind, 40)
    tokenizer.save(tmp_path / "a")
    assert read(tmp_path / "a") == tokenizer.text


def test_harmless_rules_of_other_making_are_read(tmp_path, plain):
    parts = {
        "normalizer": normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("``", '"')]),
        "pre_tokenizer": pre_tokenizers.Whitespace(),
        "decoder": decoders.WordPiece(),
    }
    rules = {name: json.loads(part.__getstate__()) for name, part in parts.items()}
    assert read(written(tmp_path / "a", {**plain, **rules}))


def test_a_panic_of_the_library_is_an_error_of_one_line(capfd):
    """A panic is no Exception, so nothing else would catch it; the library prints it too."""
    library = Library(models.BPE())
    library.normalizer = normalizers.Replace(Regex("(a+)+$"), "")
    with refusal(r"^the tokenizer: damaged \(Onig: .*$"), panics_as_errors("the tokenizer"):
        library.encode("a" * 40 + "b")
    assert "panicked" in capfd.readouterr().err


def test_other_exceptions_pass():
    with pytest.raises(KeyboardInterrupt), panics_as_errors("a"):
        raise KeyboardInterrupt


def test_a_text_is_tidied_as_the_library_does_it():
    texts = [
        "",
        " ",
        "a b",
        "a  b ",
        "\ta\xa0b",
        "é",
        "e\u0301 e",
        "각",
        "\u1100\u1161",
        "a\x1cb",
        "▁ a",
        "a\u200bb",
    ]
    assert [tidied(text) for text in texts] == [TIDY.normalize_str(text) for text in texts]
    assert tidied(" Cafe\u0301\xa0 b\t") == "Café b"


def test_what_nobody_sees_is_what_unicode_says():
    """Our ranges are those of the property, but for what scripts, emoji and flags need."""
    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    ignorable = {*regex.findall(r"\p{Default_Ignorable_Code_Point}", every)}
    needed = {*regex.findall(r"[\p{Variation_Selector}\u200c\u200d]", every)}
    assert {letter for letter in every if not cleared(letter)} == ignorable - needed
    assert {letter for letter in every if is_blank(letter)} == ignorable | {
        letter for letter in every if letter.isspace()
    }
    assert not is_blank("\u200ba")
    for ligature, letters in LIGATURES.items():
        assert cleared(ligature) == letters == unicodedata.normalize("NFKC", ligature)


def test_the_library_leaves_out_the_same():
    pool = [
        *LIGATURES,
        *"a🏴\u200d\ufe0f\u0301e\xad\u200b\u3164",
        *map(chr, range(0xE001E, 0xE0084)),
    ]
    draw = random.Random(0)
    for _ in range(2000):
        text = "".join(draw.choices(pool, k=draw.randrange(9)))
        assert COMPOSED.normalize_str(text) == unicodedata.normalize("NFC", cleared(text))
    assert cleared("a\xad\u200bﬁ", kept="\xadﬁ") == "a\xadﬁ"
