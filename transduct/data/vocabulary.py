"""Trains tokenizers: chooses the alphabet and has the `tokenizers` library learn subwords or
words.

A vocabulary of at least `COVERING` tokens begins with the 256 bytes, which spell every character
that it lacks. A smaller one has no room for them: what it lacks is unknown.
"""

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from random import Random
from typing import Any, Literal, TypeVar
from unicodedata import normalize

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transduct.data.pieces import BLANK
from transduct.data.tokenizer_file import CLEARED, COMPOSED, ESCAPES, cleared, is_blank
from transduct.errors import WrongData

log = logging.getLogger("transduct")
Kind = Literal["bpe", "unigram", "word", "character", "verbatim", "byte"]
Item = TypeVar("Item")

SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  # the library's names
# 256 of these are bytes; with fewer there would hardly be a character beside them
COVERING = 300
# The names of tokens that no text may spell.
NAMES_OF_SPECIALS = re.compile(
    "(<)({}|0x[0-9A-F]{{2}}>)".format("|".join(re.escape(name[1:]) for name in SPECIALS))
)
RARE = 10_000_000  # a character rarer than once in this many gets no token
LONGEST_WORD = 1_000  # characters; longer words are cut for training
SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space in Python, but not in the library
WORDS = pre_tokenizers.Metaspace(BLANK)
# Unigram would match even special tokens anywhere in a word; with "<" split off it cannot.
WORDS_OF_UNIGRAM = pre_tokenizers.Sequence([WORDS, pre_tokenizers.Split("<", "isolated")])


def learnt(lines: Iterable[str], kind: Kind, size: int) -> tuple[tokenizers.Tokenizer, int]:
    """Train a tokenizer of at most `size` tokens; also returns the size of its alphabet.

    Warns if there is no room for the bytes.

    Raises:
        WrongData: the lines hold no text.
    """
    if kind == "byte":
        return _byte_library(), 256
    lines = [normalize("NFC", cleared(line)) for line in lines]
    if all(map(is_blank, lines)):
        raise WrongData("found no text to train the tokenizer on; give lines that hold words")
    covers = size >= COVERING
    if covers:  # a word that falls to bytes begins with ▁, which is no word of its own
        size -= len(BYTES) + (kind == "word")
    else:
        log.warning(
            "tokenizer.size %d leaves no room for the 256 bytes, so characters that the "
            "vocabulary lacks are unknown; %d or more can spell all",
            size,
            COVERING,
        )
    # Unigram exceeds its size if the characters alone fill it.
    alphabet = _alphabet(
        lines, size - len(SPECIALS) - (kind == "unigram"), blanks=kind == "verbatim"
    )
    if kind in ("character", "verbatim"):
        library = (_library if kind == "character" else _verbatim_library)(
            _without_merges(alphabet)
        )
    else:
        model, trainer = _learner(kind, size)
        library = _library(model)
        if kind == "unigram":
            library.pre_tokenizer = WORDS_OF_UNIGRAM
        if kind != "word":
            lines = [_cut(line) for line in _without_others(lines, set(alphabet) - {BLANK})]
        if kind == "bpe":  # merges that spell a special token would get its id
            lines = [NAMES_OF_SPECIALS.sub(r"\1 \2", line) for line in lines]
        library.train_from_iterator(lines, trainer, len(lines))
    if covers:
        library = _with_bytes(library, kind)
    library.add_special_tokens(SPECIALS)
    return library, len(alphabet)


def _with_bytes(library: tokenizers.Tokenizer, kind: Kind) -> tokenizers.Tokenizer:
    """The tokenizer with a token for each byte, after the special ones, and able to fall to them.

    Words become a BPE without merges, since the library's model of words cannot fall to bytes.
    """
    file = json.loads(library.to_str())
    vocabulary, first = file["model"]["vocab"], len(SPECIALS)
    names = (
        [name for name, _ in vocabulary]
        if kind == "unigram"
        else sorted(vocabulary, key=vocabulary.__getitem__)
    )
    names[first:first] = [*BYTES, *[BLANK][: kind == "word"]]
    if kind == "unigram":
        scores = dict(vocabulary)
        vocabulary = [[name, scores.get(name, 0.0)] for name in names]
    else:
        vocabulary = {name: number for number, name in enumerate(names)}
    if kind == "word":
        unknown = SPECIALS[0]
        made = models.BPE(vocabulary, [], unk_token=unknown, byte_fallback=True, ignore_merges=True)
        library.model = made
    else:
        file["model"] |= {"vocab": vocabulary, "byte_fallback": True}
        library = tokenizers.Tokenizer.from_str(json.dumps(file | {"added_tokens": []}))
    whole = [decoders.Fuse()] if kind == "verbatim" else _joining()
    library.decoder = decoders.Sequence([decoders.ByteFallback(), *whole])
    return library


def sample(items: Iterable[Item], count: int) -> list[Item]:
    """A uniform random sample of `count` items, the same in every run (reservoir sampling,
    algorithm L of Li 1994).

    Holds at most `count` items in memory; if there are fewer, all are returned.
    """
    random, stream, weight = Random(count), iter(items), 1.0
    chosen = list(islice(stream, count))
    while len(chosen) == count:
        weight *= (1 - random.random()) ** (1 / count)
        skipped = math.floor(math.log(1 - random.random()) / math.log1p(-weight))
        item = list(islice(stream, skipped, skipped + 1))
        if not item:
            break
        chosen[random.randrange(count)] = item[0]
    return chosen


def _library(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer as for most kinds: NFC, single blanks, ▁ before each word."""
    library = tokenizers.Tokenizer(model)
    library.normalizer, library.pre_tokenizer = CLEARED, WORDS
    library.decoder = decoders.Sequence(_joining())
    return library


def _joining() -> list[decoders.Decoder]:
    """How tokens become a text: ▁ is a blank, then escapes are taken back, the later one first."""
    undone = [decoders.Replace(new, old) for old, new in reversed(ESCAPES.items())]
    return [decoders.Metaspace(BLANK), decoders.Fuse(), *undone]


def _verbatim_library(model: models.Model) -> tokenizers.Tokenizer:
    """A tokenizer that keeps all blanks, with no words."""
    library = tokenizers.Tokenizer(model)
    library.normalizer, library.decoder = COMPOSED, decoders.Fuse()
    return library


def _byte_library() -> tokenizers.Tokenizer:
    """A tokenizer of bytes: BPE without merges over the library's 256 letters for bytes; byte b has
    the id b + 3."""
    library = tokenizers.Tokenizer(_without_merges(_byte_letters()))
    library.normalizer = COMPOSED
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(SPECIALS)
    return library


def _byte_letters() -> list[str]:
    """The letter for each byte, as in GPT-2: printable Latin-1 stands for itself, the rest is
    mapped to U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(letters)) for byte in range(256)]


def _without_merges(letters: Sequence[str]) -> models.Model:
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *letters])}
    return models.BPE(vocabulary, [], unk_token=SPECIALS[0])


def _learner(kind: Kind, size: int) -> tuple[models.Model, trainers.Trainer]:
    """An empty model of a kind that is learnt, and its trainer."""
    settings: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": SPECIALS,
        "show_progress": False,
    }
    match kind:
        case "word":
            return models.WordLevel(unk_token=SPECIALS[0]), trainers.WordLevelTrainer(**settings)
        case "unigram":
            return models.Unigram(), trainers.UnigramTrainer(unk_token=SPECIALS[0], **settings)
        case _:
            return models.BPE(unk_token=SPECIALS[0]), trainers.BpeTrainer(
                min_frequency=2, **settings
            )


def _alphabet(lines: Iterable[str], most: int, blanks: bool) -> list[str]:
    """At most `most` characters that get a token, most frequent first; without `blanks`, ▁ is the
    first."""
    counts = Counter(chain.from_iterable(lines))
    least = 1 + counts.total() // RARE
    frequent = [
        letter
        for letter, count in counts.items()
        if count >= least and (blanks or letter in SEPARATORS or not letter.isspace())
    ]
    frequent.sort(key=lambda letter: (-counts[letter], letter))
    if blanks:
        return frequent[:most]
    letters = [letter for letter in frequent if letter not in ESCAPES]
    return [BLANK, *letters[: max(most - 1, 0)]]


def _without_others(lines: list[str], alphabet: set[str]) -> list[str]:
    """The lines with characters outside the alphabet replaced by blanks, so that the trainers give
    them no token."""
    others = {ord(letter): " " for letter in set(chain.from_iterable(lines)) - alphabet}
    return [line.translate(others) for line in lines] if others.keys() - {ord(" ")} else lines


def _cut(line: str) -> str:
    """The line with words cut after `LONGEST_WORD` characters: with long words the trainers take
    hours, or crash."""
    return re.sub(rf"(\S{{{LONGEST_WORD}}})", r"\1 ", line) if len(line) > LONGEST_WORD else line
