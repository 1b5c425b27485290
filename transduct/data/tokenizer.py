"""Text to token ids and back: a thin face on the `tokenizers` library, whose file format is kept as it is.

All text is brought to Unicode's composed form (NFC). Save for the kinds `byte` and `verbatim`, which keep every
character, runs of white space become one blank, and a blank becomes the ▁ that starts the next word. What was
SentencePiece's reads text as it did (`data/pieces.py`).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import chain, islice, pairwise
from math import floor, log, log1p
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar
from unicodedata import is_normalized, normalize

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transduct.data.pieces import BLANK, HIDDEN, Pieces
from transduct.errors import TransductError, WrongData

Kind = Literal["bpe", "unigram", "word", "character", "verbatim", "byte"]
Item = TypeVar("Item")
Pair = tuple[str, str]

SPECIALS = ["<unk>", "<s>", "</s>"]
RARE = 10_000_000  # a character seen less than once in so many gets no token of its own
LONGEST_WORD = 1_000  # letters that are learnt from together
REMEMBERED = 1 << 15  # words whose ids are kept at hand
SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, and letters to the library
ONE_BLANK = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
TIDY = normalizers.Sequence([normalizers.NFC(), ONE_BLANK, normalizers.Strip()])
WORDS = pre_tokenizers.Metaspace(BLANK)
# Unigram looks for its tokens anywhere in a word, special ones too; with "<" alone it finds none.
WORDS_OF_UNIGRAM = pre_tokenizers.Sequence([WORDS, pre_tokenizers.Split("<", "isolated")])


@dataclass(frozen=True)
class Side:
    """One tokenizer: of plain text, or of one side, where the two differ.

    Attributes:
        kind: of subwords (bpe; unigram, which its library trains a little otherwise each time), words, characters
            (verbatim keeps every blank as it is) or bytes.
        size: how many tokens there are at most, the special ones counted; bytes do without it.
    """

    kind: Kind = "bpe"
    size: int = 8000

    def __post_init__(self) -> None:
        if self.size <= len(SPECIALS):
            raise ValueError(f"size is {self.size}; give more than the {len(SPECIALS)} special tokens it counts")


@dataclass(frozen=True)
class TokenizerConfig:
    """The `tokenizer` section of a recipe.

    Attributes:
        kind: of subwords (bpe; unigram, which its library trains a little otherwise each time), words, characters
            (verbatim keeps every blank as it is) or bytes.
        size: how many tokens there are at most, the special ones counted; bytes do without it.
        shared: whether both sides have one vocabulary; true where there is one side.
        dropout: the probability of BPE dropout in training; 0 for speech.
        sample: from how many pairs the vocabulary is learnt; they are held in memory, a kilobyte or two each.
        source, target: override `kind` and `size` of one side where nothing is `shared`.
    """

    kind: Kind = "bpe"
    size: int = 8000
    shared: bool = True
    dropout: float = 0.0
    sample: int = 200_000
    source: Side | None = None
    target: Side | None = None

    def __post_init__(self) -> None:
        Side(self.kind, self.size)
        if self.shared and (self.source or self.target):
            raise ValueError("source and target set one side each; set shared to false with them")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; give a probability of at least 0 and below 1")
        if self.dropout and {side.kind for side in self.sides()} != {"bpe"}:
            raise ValueError("dropout is the dropout of BPE merges; set kind to bpe, or dropout to 0")
        if self.sample < 1:
            raise ValueError(f"sample is {self.sample}; give at least 1 pair to learn from")

    def sides(self) -> tuple[Side, Side]:
        """What to train for the source and for the target."""
        both = Side(self.kind, self.size)
        return self.source or both, self.target or both


class Tokenizer:
    """Texts to lists of token ids and back. There is no padding token: the models know none."""

    UNKNOWN, BEGIN, END = 0, 1, 2
    UNWRITTEN = (UNKNOWN, BEGIN)  # what no output holds

    def __init__(self, text: str) -> None:
        """`text` is the library's own format, from which a tokenizer differs in nothing."""
        self.text = text
        self._library = tokenizers.Tokenizer.from_str(text)
        # Without this, the text "</s>" would end a sentence. The library does not save the setting.
        self._library.encode_special_tokens = True
        self._known: dict[str, list[int]] | None = None
        if _reads_words(self._library):
            self._known, self._model, self._normalizer = {}, self._library.model, self._library.normalizer
            self._library.normalizer = None
        self._pieces = Pieces(self._library, SPECIALS) if self._mark else None
        _stay_silent_when_forked()

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self.text,)

    @classmethod
    def train(cls, lines: Iterable[str], kind: Kind, size: int, dropout: float = 0.0) -> "Tokenizer":
        """Learn a vocabulary of at most `size` tokens; a small text may give fewer, and bytes are always 259.

        Raises:
            TransductError: there is no text in the lines, or no merge is learnt for a `dropout` to drop.
        """
        if kind == "byte":
            return cls(_byte_library().to_str())
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
        if kind not in ("character", "verbatim"):
            library.train_from_iterator(lines, _trainer(kind, size), len(lines))
        library.add_special_tokens(SPECIALS)
        tokenizer = cls(library.to_str())
        if dropout and not tokenizer._merges:
            found = f"tokenizer.size {size} leaves no room for merges beside {len(alphabet)} characters; raise it"
            if tokenizer.size < size:
                found = "found no two characters twice beside each other, so nothing merges; give more text"
            raise TransductError(f"{found}, or set tokenizer.dropout to 0")
        return tokenizer

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
            TransductError: the file is missing, damaged, or a tokenizer with other special tokens.
        """
        try:
            tokenizer = cls(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TransductError(f"{path}: cannot be read ({error.strerror}); expected a tokenizer") from error
        except Exception as error:  # the library raises nothing narrower
            raise TransductError(f"{path}: not a tokenizer ({error}); expected a file that train wrote") from error
        found = [tokenizer._library.token_to_id(tokenizer._mark + token) for token in SPECIALS]
        if found != [cls.UNKNOWN, cls.BEGIN, cls.END]:
            raise TransductError(f"{path}: {', '.join(SPECIALS)} have the ids {found}, expected [0, 1, 2]")
        return tokenizer

    def save(self, path: Path) -> None:
        """Write the library's own format, which other tools read too."""
        path.write_text(self.text, encoding="utf-8")

    @property
    def kind(self) -> Kind:
        match self._library.model:
            case models.WordLevel():
                return "word"
            case models.Unigram():
                return "unigram"
        if isinstance(self._library.decoder, decoders.ByteLevel):
            return "byte"
        if isinstance(self._library.decoder, decoders.Fuse):
            return "verbatim"
        return "bpe" if self._merges else "character"

    @property
    def size(self) -> int:
        return self._library.get_vocab_size() if self._pieces is None else self._pieces.size

    @property
    def _mark(self) -> str:
        """What stands before the special tokens."""
        return "" if self._library.token_to_id(HIDDEN + SPECIALS[0]) is None else HIDDEN

    @cached_property
    def digest(self) -> str:
        """What tells this tokenizer from any other."""
        return sha256(self.text.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin or end; text that looks like a special token is still text.

        A word's ids are the same in every text, so the library is asked for new words alone. Over white space and the
        forms of Unicode it takes most of its time, and hardly a text needs it for them.
        """
        known = self._known
        if self._pieces is not None:
            return self._pieces.encode(texts)
        if known is None:
            return [coded.ids for coded in self._library.encode_batch_fast(texts, add_special_tokens=False)]
        divided = [self._words(text) for text in texts]
        new = [word for word in set(chain.from_iterable(divided)) if word not in known]
        known.update(zip(new, map(self._of_word, new)))
        if len(known) > REMEMBERED:
            self._known = {}  # not emptied: another thread may be reading it
        rows: list[list[int]] = []
        for words in divided:
            rows.append(row := [])
            for word in words:
                row += known[word]
        return rows

    def _of_word(self, word: str) -> list[int]:
        """The ids of a word, by the model alone unless the library might divide it: that takes a third of the time."""
        if BLANK in word or "<" in word:
            return self._library.encode(word, add_special_tokens=False).ids
        return [token.id for token in self._model.tokenize(BLANK + word)]

    def _words(self, text: str) -> list[str]:
        """The words of a text, as the library would see them; of one that holds the mark of blanks, the text."""
        words = text.split()
        if BLANK not in text and " ".join(words) == text and (text.isascii() or is_normalized("NFC", text)):
            return words
        tidy = self._normalizer.normalize_str(text)
        return [tidy] if BLANK in tidy else tidy.split(" ") if tidy else []

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, one line each, special tokens left out."""
        return [text.replace("\n", " ") for text in self._library.decode_batch(sequences)]

    def continues(self, token: int) -> bool:
        """Whether a token of the kind `byte` is no character's first."""
        return 0x80 <= token - len(SPECIALS) < 0xC0

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The token behind each id, as a person reads it: "▁house"."""
        return [(self._library.id_to_token(token) or SPECIALS[0]).removeprefix(self._mark) for token in ids]

    def resegment(self, ids: Sequence[int], dropout: float, random: Random) -> list[int]:
        """Cut the words of an encoded text anew with BPE dropout (Provilkov et al. 2020).

        Every word starts as characters. Of the merges possible at each step, each is dropped with probability
        `dropout`; of the rest the first learnt is done, until none is left. `dropout=0` gives the ids back.
        The library does this too, but with a generator that cannot be seeded.

        Raises:
            TransductError: the tokenizer has no merges to drop.
        """
        if self.kind != "bpe" or self._pieces is not None:
            kind = self.kind if self._pieces is None else "SentencePiece"
            raise TransductError(f"a tokenizer of kind '{kind}' has no merges to drop; set tokenizer.dropout to 0")
        characters, starts = self._characters, self._starts
        result: list[int] = []
        word: list[int] = []
        for token in ids:
            if token in starts:
                result += self._merged(word, dropout, random)
                word = []
            word += characters.get(token, (token,))
        return result + self._merged(word, dropout, random)

    def _merged(self, word: list[int], dropout: float, random: Random) -> list[int]:
        """One word, given as characters and changed in place, after its merges.

        Whether a merge is dropped is drawn only when its turn comes: the same choice from fewer draws.
        """
        merges = self._merges
        while True:
            possible = [(*merges[pair], place) for place, pair in enumerate(pairwise(word)) if pair in merges]
            possible.sort()
            for _, token, place in possible:
                if random.random() >= dropout:
                    word[place : place + 2] = [token]
                    break
            else:
                return word

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Rank and product of each pair of tokens that merges."""
        model = json.loads(self.text)["model"]
        ids = model["vocab"]
        merges = enumerate(model.get("merges", ()))
        return {(ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in merges}

    @cached_property
    def _characters(self) -> dict[int, list[int]]:
        """The characters, as ids, of each token that merging made."""
        characters: dict[int, list[int]] = {}
        for (left, right), (_, product) in self._merges.items():
            characters[product] = [*characters.get(left, (left,)), *characters.get(right, (right,))]
        return characters

    @cached_property
    def _starts(self) -> set[int]:
        """The tokens that start a word."""
        return {token for piece, token in self._library.get_vocab().items() if piece.startswith(BLANK)}


def train_tokenizers(pairs: Iterable[Pair], config: TokenizerConfig) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, one and the same where shared, trained on a sample of the pairs.

    Raises:
        TransductError: there is no text in the pairs, or no merge to drop.
    """
    chosen = sample(pairs, config.sample)
    if config.shared:
        both = Tokenizer.train(chain.from_iterable(chosen), config.kind, config.size, config.dropout)
        return both, both
    source, target = config.sides()
    return (
        Tokenizer.train((text for text, _ in chosen), source.kind, source.size, config.dropout),
        Tokenizer.train((text for _, text in chosen), target.kind, target.size, config.dropout),
    )


def sample(items: Iterable[Item], count: int) -> list[Item]:
    """`count` of the items, each as likely as any other and the same in every run (algorithm L of Li 1994).

    No more than `count` items are held at a time; of fewer, all are given.
    """
    random, stream, weight = Random(count), iter(items), 1.0
    chosen = list(islice(stream, count))
    while True:
        weight *= (1 - random.random()) ** (1 / count)
        passed_over = floor(log(1 - random.random()) / log1p(-weight))
        item = list(islice(stream, passed_over, passed_over + 1))
        if not item:
            return chosen
        chosen[random.randrange(count)] = item[0]


def _reads_words(library: tokenizers.Tokenizer) -> bool:
    """Whether the library reads word for word, as all but `byte` and `verbatim` are made here."""
    found = [str(part) for part in (library.normalizer, library.pre_tokenizer)]
    return found in ([str(TIDY), str(WORDS)], [str(TIDY), str(WORDS_OF_UNIGRAM)])


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


@cache
def _stay_silent_when_forked() -> None:
    """Around every fork, tell the library to use one thread in the child, where its other threads are not.

    It would find out by itself, and say so on stderr. Who has set the variable is obeyed.
    """
    name = "TOKENIZERS_PARALLELISM"
    if name not in os.environ:
        os.register_at_fork(
            before=lambda: os.environ.__setitem__(name, "false"),
            after_in_parent=lambda: os.environ.pop(name, None),
        )
