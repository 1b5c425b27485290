"""What a tokenizer learns from text: an alphabet, and by the `tokenizers` library subwords or words."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from math import floor, log, log1p
from random import Random
from typing import Any, Literal, TypeVar
from unicodedata import normalize

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transduct.data.pieces import BLANK
from transduct.errors import WrongData

Kind = Literal["bpe", "unigram", "word", "character", "verbatim", "byte"]
Item = TypeVar("Item")

SPECIALS = ["<unk>", "<s>", "</s>"]
NAMES_OF_SPECIALS = re.compile("(<)({})".format("|".join(re.escape(name[1:]) for name in SPECIALS)))
RARE = 10_000_000  # a character seen less than once in so many gets no token of its own
LONGEST_WORD = 1_000  # letters that are learnt from together
SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, and letters to the library
ONE_BLANK = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
TIDY = normalizers.Sequence([normalizers.NFC(), ONE_BLANK, normalizers.Strip()])
WORDS = pre_tokenizers.Metaspace(BLANK)
# Unigram looks for its tokens anywhere in a word, special ones too; with "<" alone it finds none.
WORDS_OF_UNIGRAM = pre_tokenizers.Sequence([WORDS, pre_tokenizers.Split("<", "isolated")])


def learnt(lines: Iterable[str], kind: Kind, size: int) -> tuple[tokenizers.Tokenizer, int]:
    """A tokenizer of at most `size` tokens, and how many of them are single characters.

    Raises:
        WrongData: there is no text in the lines.
    """
    if kind == "byte":
        return _byte_library(), 256
    lines = [normalize("NFC", line) for line in lines]
    if not any(map(str.strip, lines)):
        raise WrongData("found no text to train the tokenizer on; give lines that hold words")
    # Unigram oversteps its size where the characters alone would fill it.
    alphabet = _alphabet(lines, size - len(SPECIALS) - (kind == "unigram"), blanks=kind == "verbatim")
    library = _verbatim_library(alphabet) if kind == "verbatim" else _library(_untrained(kind, alphabet))
    if kind == "unigram":
        library.pre_tokenizer = WORDS_OF_UNIGRAM
    if kind in ("bpe", "unigram"):
        lines = [_cut(line) for line in _without_others(lines, set(alphabet))]
    if kind == "bpe":  # what merges into the name of a special token would get its id
        lines = [NAMES_OF_SPECIALS.sub(r"\1 \2", line) for line in lines]
    if kind not in ("character", "verbatim"):
        library.train_from_iterator(lines, _trainer(kind, size), len(lines))
    library.add_special_tokens(SPECIALS)
    return library, len(alphabet)


def sample(items: Iterable[Item], count: int) -> list[Item]:
    """`count` of the items, each as likely as any other and the same in every run (algorithm L of Li 1994).

    No more than `count` items are held at a time; of fewer, all are given.
    """
    random, stream, weight = Random(count), iter(items), 1.0
    chosen = list(islice(stream, count))
    while len(chosen) == count:
        weight *= (1 - random.random()) ** (1 / count)
        passed_over = floor(log(1 - random.random()) / log1p(-weight))
        item = list(islice(stream, passed_over, passed_over + 1))
        if not item:
            break
        chosen[random.randrange(count)] = item[0]
    return chosen


def _library(model: models.Model) -> tokenizers.Tokenizer:
    """The text of most kinds: composed, blanks made one, words marked by ▁."""
    library = tokenizers.Tokenizer(model)
    library.normalizer, library.pre_tokenizer = TIDY, WORDS
    library.decoder = decoders.Metaspace(BLANK)
    return library


def _verbatim_library(alphabet: Sequence[str]) -> tokenizers.Tokenizer:
    """Every character a token, blanks too, in a BPE without merges or words."""
    library = tokenizers.Tokenizer(_without_merges(alphabet))
    library.normalizer, library.decoder = normalizers.NFC(), decoders.Fuse()
    return library


def _byte_library() -> tokenizers.Tokenizer:
    """Bytes are a BPE without merges over the library's 256 letters for bytes; byte b has the id b + 3."""
    library = tokenizers.Tokenizer(_without_merges(_byte_letters()))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(SPECIALS)
    return library


def _byte_letters() -> list[str]:
    """The letter of each byte, in order: printable Latin-1 stands for itself, the rest is from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(letters)) for byte in range(256)]


def _untrained(kind: Kind, alphabet: Sequence[str]) -> models.Model:
    match kind:
        case "word":
            return models.WordLevel(unk_token=SPECIALS[0])
        case "unigram":
            return models.Unigram()
        case "bpe":
            return models.BPE(unk_token=SPECIALS[0])
        case _:
            return _without_merges(alphabet)


def _without_merges(letters: Sequence[str]) -> models.Model:
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    return models.BPE(vocabulary, [], unk_token=SPECIALS[0])


def _trainer(kind: Kind, size: int) -> trainers.Trainer:
    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": SPECIALS, "show_progress": False}
    match kind:
        case "word":
            return trainers.WordLevelTrainer(**settings)
        case "unigram":
            return trainers.UnigramTrainer(unk_token=SPECIALS[0], **settings)
        case _:
            return trainers.BpeTrainer(min_frequency=2, **settings)


def _alphabet(lines: Iterable[str], most: int, blanks: bool) -> list[str]:
    """The characters worth a token, most frequent first; ▁ comes before them where they are without `blanks`."""
    counts = Counter(chain.from_iterable(lines))
    least = 1 + counts.total() // RARE
    worth = [
        letter
        for letter, count in counts.items()
        if count >= least and (blanks or letter in SEPARATORS or not letter.isspace())
    ]
    worth.sort(key=lambda letter: (-counts[letter], letter))
    if blanks:
        return worth[:most]
    return [BLANK, *[letter for letter in worth if letter != BLANK][: max(most - 1, 0)]]


def _without_others(lines: list[str], alphabet: set[str]) -> list[str]:
    """The lines with every other character made a blank, so that the trainers give it no token."""
    others = {ord(letter): " " for letter in set(chain.from_iterable(lines)) - alphabet}
    return [line.translate(others) for line in lines] if others.keys() - {ord(" ")} else lines


def _cut(line: str) -> str:
    """The line with a blank after so many letters without one: over a long word the trainers take hours, or crash."""
    return re.sub(rf"(\S{{{LONGEST_WORD}}})", r"\1 ", line) if len(line) > LONGEST_WORD else line
