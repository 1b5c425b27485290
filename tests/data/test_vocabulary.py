"""What is learnt from a text: no more tokens than asked for, the same each time, from an even
sample."""

import os
import random
import subprocess
import sys

import pytest

from tests.refusals import refusal
from transduct.data import vocabulary as module
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer
from transduct.data.vocabulary import sample

LINES = [
    "Ein Haus am See, ein Häuschen am Meer.",
    "the houses by the sea are the best houses",
    "나는 학교에 간다 그리고 너는 집에 간다",
    *[text for pair in generate("number_names", 200) for text in pair],
]


def test_a_line_without_blanks_is_learnt_from_in_pieces(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_WORD", 100)
    letters = random.Random(1)
    long = "".join(letters.choice("abcdefg") for _ in range(1050))
    pieces = " ".join(long[start : start + 100] for start in range(0, 1050, 100))
    assert module._cut(f"a {long} b") == f"a {pieces} b"
    learnt = Tokenizer.train([*LINES, f"a {long} b"], "bpe", 200)
    assert learnt.digest == Tokenizer.train([*LINES, f"a {pieces} b"], "bpe", 200).digest
    assert learnt.decode(learnt.encode([long])) == [long]
    ordinary = [*LINES, " ".join(LINES)]
    assert [*map(module._cut, ordinary)] == ordinary


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim"])
@pytest.mark.parametrize("size", [4, 5, 6, 20, 50, 100, 100_000])
def test_size_bounds_the_vocabulary_and_a_small_text_gives_less(kind, size):
    tokenizer = Tokenizer.train(LINES, kind, size)
    assert tokenizer.size <= size
    assert tokenizer.size >= min(size - 2, 50)
    assert tokenizer.pieces([0, 1, 2]) == ["<unk>", "<s>", "</s>"]


def test_training_again_in_another_process_writes_the_same_bytes():
    code = (
        "from transduct.data.samples import generate; from transduct.data.tokenizer import "
        "Tokenizer; texts = [t for p in generate('number_names', 300) for t in p]; digests = "
        "[Tokenizer.train(texts, k, 45).digest for k in ('bpe', 'word', 'character', 'verbatim')]"
    )
    here: dict = {}
    exec(code, here)
    command, environment = [sys.executable, "-c", f"{code}; print(digests)"], dict(os.environ)
    environment["PYTHONHASHSEED"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == f"{here['digests']}\n"


def test_rare_characters_get_no_token(monkeypatch):
    monkeypatch.setattr(module, "RARE", 1000)
    lines = ["the sea " * 100] * 20 + ["rare ß"]
    for kind in ("bpe", "unigram", "character", "verbatim"):
        tokenizer = Tokenizer.train(lines, kind, 100)
        assert tokenizer.encode(["ß"])[0][-1] == Tokenizer.UNKNOWN
        assert tokenizer.decode(tokenizer.encode(["the sea"])) == ["the sea"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim"])
@pytest.mark.parametrize("lines", [[], [""], [" \t"], ["\u200b", "\xad \ufeff"]])
def test_training_on_no_text_is_refused(kind, lines):
    with refusal("found no text to train the tokenizer on; give lines that hold words"):
        Tokenizer.train(lines, kind, 100)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "verbatim"])
def test_the_smallest_texts_train(kind):
    tokenizer = Tokenizer.train(["a"], kind, 100)
    assert tokenizer.decode(tokenizer.encode(["a"])) == ["a"]


def test_a_sample_is_even_and_the_same_each_time():
    for count in (5, 10, 10**9, 10**17):
        assert sample(iter(range(5)), count) == [0, 1, 2, 3, 4]
    chosen = sample(range(100_000), 1000)
    assert chosen == sample(iter(range(100_000)), 1000)
    assert len(set(chosen)) == 1000
    tenths = [sum(i * 10_000 <= x < (i + 1) * 10_000 for x in chosen) for i in range(10)]
    assert all(50 < n < 150 for n in tenths)  # 100 expected, give or take five standard deviations
