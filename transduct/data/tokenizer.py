"""Text to token ids and back: a thin layer over the `tokenizers` library, in its own file format.

All text is normalised to NFC. Except for the kinds `byte` and `verbatim`, which keep all white
space, runs of it become one blank, and a blank becomes the ▁ that starts the next word. Apart from
that, decoding gives back what was encoded, whatever its characters, if the vocabulary holds the 256
bytes; `data/vocabulary.py` says when it does. Tokenizers converted from SentencePiece segment text
as it does (`data/pieces.py`).
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from hashlib import sha256
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Annotated
from unicodedata import is_normalized, normalize

import tokenizers
from tokenizers import decoders, models, normalizers

from transduct.data.pieces import BLANK, HIDDEN, Pieces
from transduct.data.samples import Pair
from transduct.data.tokenizer_file import (
    CLEARED,
    CLEARING,
    COMPOSED,
    ESCAPE,
    ESCAPED,
    NOT_READ,
    TIDY,
    cleared,
    read,
)
from transduct.data.vocabulary import (
    BYTES,
    SPECIALS,
    WORDS,
    WORDS_OF_UNIGRAM,
    Kind,
    learnt,
    sample,
)
from transduct.errors import TransductError, require
from transduct.records import Checked, Range, Rate, refuse_if

PANIC = "pyo3_runtime"  # the module of the exceptions that a panic in Rust becomes
# The tokenizer file of a model directory, or those of its source and target side.
TOKENIZER = "tokenizer.json"
SIDE_TOKENIZERS = ("tokenizer.source.json", "tokenizer.target.json")
LARGEST = 1 << 22  # tokens; the library allocates memory for the whole size before it learns any
MOST = 10**9  # pairs to learn a vocabulary from
GONE = -1  # marks a place of a word that has been merged into the token before it
REMEMBERED, SHORT = 1 << 15, 64  # words in the cache, and the length of the longest in characters


def tokenizers_in(directory: Path) -> list[Path]:
    """The tokenizer files of a model directory: those of source and target, or the shared one."""
    shared = not any((directory / name).exists() for name in SIDE_TOKENIZERS)
    return [directory / name for name in tokenizer_files(shared)]


def tokenizer_files(shared: bool) -> tuple[str, ...]:
    """The names of a translation model's tokenizer files: the source's, then the target's, unless
    both sides share one."""
    return (TOKENIZER,) if shared else SIDE_TOKENIZERS


@dataclass(frozen=True)
class Side(Checked):
    """One tokenizer: of plain text, or of one side where the two differ.

    Attributes:
        kind: bpe or unigram (subwords; unigram training in the library is not reproducible), word,
            character, verbatim (characters, with all white space kept) or byte.
        size: the maximum number of tokens, including the special ones; has no effect on bytes.
    """

    kind: Kind = "bpe"
    size: Annotated[int, Range(len(SPECIALS) + 1, LARGEST)] = 8000


@dataclass(frozen=True)
class TokenizerConfig(Side):
    """The `tokenizer` section of a recipe.

    Attributes:
        shared: whether both sides share one vocabulary; true for tasks with a single side.
        dropout: the probability of BPE dropout, which segments a text anew each time it is trained
            on. Translation, masked language modelling, and the classification of sequences and
            pairs use it.
        sample: the number of pairs the vocabulary is learnt from; they are held in memory, a
            kilobyte or two each.
        source, target: the `kind` and `size` of one side, if not `shared`.
    """

    shared: bool = True
    dropout: Rate = 0.0
    sample: Annotated[int, Range(1, MOST)] = 200_000
    source: Side | None = None
    target: Side | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.shared and (self.source or self.target),
            "source and target set one side each; set shared to false with them",
        )
        refuse_if(
            self.dropout and {side.kind for side in self.sides()} != {"bpe"},
            "dropout is the dropout of BPE merges; set kind to bpe, or dropout to 0",
        )

    def sides(self) -> tuple[Side, Side]:
        """The kind and size of the source's and of the target's tokenizer."""
        both = Side(self.kind, self.size)
        return self.source or both, self.target or both


class Tokenizer:
    """Converts texts to lists of token ids and back. There is no padding token, since models use no
    padding."""

    UNKNOWN, BEGIN, END = 0, 1, 2
    UNWRITTEN = (UNKNOWN, BEGIN)  # never in an output
    SPECIALS = tuple(SPECIALS)  # the names of these three

    def __init__(self, text: str) -> None:
        """Create a tokenizer from its JSON, the library's own format."""
        self.text = text
        self._library = tokenizers.Tokenizer.from_str(text)
        self._library.no_padding()
        self._library.no_truncation()
        # Otherwise the text "</s>" would end a sentence. The library does not save this setting.
        self._library.encode_special_tokens = True
        clears = str(CLEARING[0]) in str(self._library.normalizer)
        self._clear: Callable[[str], str] = cleared if clears else str
        self._known: dict[str, list[int]] | None = None
        if _reads_words(self._library):
            self._known, self._model, self._normalizer = (
                {},
                self._library.model,
                self._library.normalizer,
            )
            self._library.normalizer = None
        pieced = bool(self._mark) and self._library.token_to_id(HIDDEN) is not None
        self._pieces = Pieces(self._library, SPECIALS) if pieced else None
        _stay_silent_when_forked()

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self.text,)

    @classmethod
    def train(
        cls, lines: Iterable[str], kind: Kind, size: int, dropout: float = 0.0
    ) -> "Tokenizer":
        """Learn a vocabulary of at most `size` tokens; a small text may give fewer, and `byte`
        always has 259.

        Raises:
            TransductError: there is no text in the lines, or no merge is learnt for a `dropout` to
                drop.
        """
        library, alphabet = learnt(lines, kind, size)
        tokenizer = cls(library.to_str())
        if dropout and not tokenizer._merges:
            found = (
                f"tokenizer.size {size} leaves no room for merges beside {alphabet} characters; "
                "raise it"
            )
            if tokenizer.size < size:
                found = (
                    "found no two characters twice beside each other, so nothing merges; give "
                    "more text"
                )
            raise TransductError(f"{found}, or set tokenizer.dropout to 0")
        return tokenizer

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Load a tokenizer written by `save`.

        Raises:
            TransductError: the file is missing or damaged, or its special tokens have other ids.
        """
        try:
            with panics_as_errors(str(path)):
                tokenizer = cls(read(path))
                tokenizer.encode(["\U0010fffd"])  # fails if the unknown token is missing
        except TransductError:
            raise
        except Exception as error:  # the library raises nothing narrower
            problem = f"not a tokenizer ({error}); expected a file that train wrote"
            raise TransductError(problem, file=str(path)) from error
        found = [tokenizer._library.token_to_id(tokenizer._mark + token) for token in SPECIALS]
        require(
            found == [cls.UNKNOWN, cls.BEGIN, cls.END],
            f"{', '.join(SPECIALS)} have the ids {found}, expected [0, 1, 2]; copy the model again",
            file=str(path),
        )
        return tokenizer

    def in_use(self) -> "Tokenizer":
        """The same tokenizer, for a model in use: whatever its file says, it leaves out characters
        that nobody sees. Those in its tokens stay, for the model was trained on them; so do all
        where tokens are bytes, which do not show it."""
        if self._clear is str and self.kind != "byte":
            letters = set(chain.from_iterable(self._library.get_vocab()))
            self._clear = partial(cleared, kept={*filter(NOT_READ.match, letters)})
            if self._pieces is not None:  # it has character rules of its own, which come first
                self._pieces.clear, self._clear = self._clear, str
        return self

    def save(self, path: Path) -> None:
        """Write the tokenizer in the library's format, which other tools read too."""
        path.write_text(self.text, encoding="utf-8")

    @cached_property
    def kind(self) -> Kind:
        match self._library.model:
            case models.WordLevel() | models.BPE(ignore_merges=True):
                return "word"
            case models.Unigram():
                return "unigram"
        if isinstance(self._library.decoder, decoders.ByteLevel) and not self._mark:
            return "byte"
        if str(self._library.normalizer) in map(str, (normalizers.NFC(), COMPOSED)):
            return "verbatim"
        return "bpe" if self._merges else "character"

    @cached_property
    def size(self) -> int:
        return (
            1 + max(self._library.get_vocab().values())
            if self._pieces is None
            else self._pieces.size
        )

    @property
    def _mark(self) -> str:
        """The prefix of the special tokens' names: that of hidden entries if converted from
        another tool's tokenizer, else ""."""
        return "" if self._library.token_to_id(HIDDEN + SPECIALS[0]) is None else HIDDEN

    @cached_property
    def digest(self) -> str:
        """A hash of the tokenizer's JSON."""
        return sha256(self.text.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without begin or end; the text of a special token, such as "</s>",
        is plain text.

        A word has the same ids in every text, so they are cached and the library sees only new
        words. It would spend most of its time on normalising white space and Unicode, which few
        texts need.
        """
        with panics_as_errors("the tokenizer"):
            return self._encoded(texts)

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        texts = [self._clear(text) for text in texts]
        known = self._known
        if self._pieces is not None:
            return self._pieces.encode(texts)
        if known is None:
            return [
                coded.ids
                for coded in self._library.encode_batch_fast(texts, add_special_tokens=False)
            ]
        divided = [self._words(text) for text in texts]
        new = {
            word: self._of_word(word)
            for word in set(chain.from_iterable(divided))
            if word not in known
        }
        # whole lines in scripts without blanks
        long = {word: ids for word, ids in new.items() if len(word) > SHORT}
        known.update((word, ids) for word, ids in new.items() if word not in long)
        if len(known) > REMEMBERED:
            self._known = {}  # not cleared: another thread may be reading it
        known = known | long if long else known
        rows: list[list[int]] = []
        for words in divided:
            rows.append(row := [])
            for word in words:
                row += known[word]
        return rows

    def _of_word(self, word: str) -> list[int]:
        """The ids of a word; unless the pre-tokenizer might divide it, by the model alone, which
        takes a third of the time."""
        if BLANK in word or "<" in word:
            return self._library.encode(word, add_special_tokens=False).ids
        return [token.id for token in self._model.tokenize(BLANK + word)]

    def _words(self, text: str) -> list[str]:
        """The words of a text as the library would divide it; one that still contains ▁ after it is
        normalised is left whole."""
        words = text.split()
        if (
            BLANK not in text
            and ESCAPE not in text
            and " ".join(words) == text
            and (text.isascii() or is_normalized("NFC", text))
        ):
            return words
        tidy = self._normalizer.normalize_str(text)
        return [tidy] if BLANK in tidy else tidy.split(" ") if tidy else []

    def unknown(self, text: str) -> list[str]:
        """What the vocabulary lacks of a text, in its order: characters or, of the kind `word`,
        words."""
        if self.bytes or self.UNKNOWN not in self.encode([text])[0]:
            return []
        parts = normalize("NFC", self._clear(text))
        units = parts.split() if self.kind == "word" else [c for c in parts if not c.isspace()]
        distinct = list(dict.fromkeys(units))
        coded = zip(distinct, self.encode(distinct), strict=True)
        lost = {unit for unit, ids in coded if self.UNKNOWN in ids}
        return [unit for unit in units if unit in lost]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, without special tokens; on one line, except for the kinds
        that keep white space."""
        with panics_as_errors("the tokenizer"):
            if len(sequences) == 1:  # which needs no other threads
                texts = [self._library.decode(sequences[0])]
            else:
                texts = self._library.decode_batch(sequences)
        if self.kind in ("verbatim", "byte"):
            return list(texts)
        return [text.replace("\n", " ") for text in texts]

    @cached_property
    def bytes(self) -> dict[int, int]:
        """The byte of each token that stands for one; empty if characters may be unknown."""
        if self.kind == "byte":
            return {byte + len(SPECIALS): byte for byte in range(256)}
        vocabulary = self._library.get_vocab(False)
        found = {vocabulary[name]: byte for byte, name in enumerate(BYTES) if name in vocabulary}
        return found if len(found) == len(BYTES) else {}

    def id_of(self, name: str) -> int | None:
        """The id of a token by the name that it has where the tokenizer came from, or None."""
        for known in (HIDDEN + HIDDEN + name, name, HIDDEN + name):
            if (found := self._library.token_to_id(known)) is not None and found < self.size:
                return int(found)
        return None

    def continues(self, token: int) -> bool:
        """Whether a token is a UTF-8 continuation byte."""
        return 0x80 <= self.bytes.get(token, 0) < 0xC0

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The token of each id in readable form: "▁house"."""
        mark, name = self._mark, self._library.id_to_token
        return [(name(token) or SPECIALS[0]).removeprefix(mark) for token in ids]

    def resegment(self, ids: Sequence[int], dropout: float, random: Random) -> list[int]:
        """Segment the words of an encoded text anew with BPE dropout (Provilkov et al. 2020).

        Each word starts as characters. At each step every possible merge is dropped with
        probability `dropout`, and the remaining one of the lowest rank is applied, until none
        remains. `dropout=0` returns the same ids. The library can do this too, but its generator
        cannot be seeded.

        Raises:
            TransductError: the tokenizer has no merges to drop.
        """
        if self.kind != "bpe" or self._mark:
            kind: str = self.kind
            if self._mark:
                kind = "SentencePiece" if self._pieces is not None else "a published model"
            raise TransductError(
                f"a tokenizer of kind '{kind}' has no merges to drop; set tokenizer.dropout to 0"
            )
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
        """Apply merges with dropout to one word, given as characters.

        Possible merges are tried in the order of their ranks, and whether one is dropped is drawn
        only when it is
        tried: the same distribution with fewer draws. Without blanks a word may be as long as a
        sentence, so the merges wait in a heap, and the tokens of the word form a doubly linked
        list.
        """
        merges, end = self._merges, len(word)
        after, before = list(range(1, end + 1)), list(range(-1, end))
        waiting = [
            (*merges[pair], place) for place, pair in enumerate(pairwise(word)) if pair in merges
        ]
        heapify(waiting)
        dropped: list[tuple[int, int, int]] = []
        while waiting:
            entry = rank, token, place = heappop(waiting)
            right = after[place]
            if right >= end or merges.get((word[place], word[right])) != (rank, token):
                continue  # one of the two has been merged with another token
            if random.random() < dropout:
                dropped.append(entry)
                continue
            word[place], word[right], after[place] = token, GONE, after[right]
            before[after[place]] = place
            for left in (before[place], place):
                if (
                    left >= 0
                    and after[left] < end
                    and (found := merges.get((word[left], word[after[left]])))
                ):
                    heappush(waiting, (*found, left))
            for each in dropped:  # may be tried again in the next step
                heappush(waiting, each)
            dropped.clear()
        return [token for token in word if token != GONE]

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The rank and the resulting token of each pair of tokens that merges."""
        model = json.loads(self.text)["model"]
        ids = model["vocab"]
        merges = enumerate(model.get("merges", ()))
        return {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in merges
        }

    @cached_property
    def _characters(self) -> dict[int, list[int]]:
        """The ids of the characters in each merged token."""
        characters: dict[int, list[int]] = {}
        for (left, right), (_, product) in self._merges.items():
            characters[product] = [*characters.get(left, (left,)), *characters.get(right, (right,))]
        return characters

    @cached_property
    def _starts(self) -> set[int]:
        return {
            token for piece, token in self._library.get_vocab().items() if piece.startswith(BLANK)
        }


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens around a source, and those with which its output begins, by no choice of the
    model.

    Attributes:
        padding, padded: a token that fills a source up to so many tokens, for models that were
            trained to look at it.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    padding: int = 0
    padded: int = 0

    @property
    def size(self) -> int:
        """How many tokens of either side it takes."""
        return max(len(self.before) + len(self.after), len(self.begin))

    def source(self, ids: Sequence[int]) -> list[int]:
        """The tokens that the encoder reads for a source of these."""
        row = [*self.before, *ids, Tokenizer.END, *self.after]
        return row + [self.padding] * (self.padded - len(row))

    @property
    def first(self) -> list[int]:
        """What the decoder reads before the first token that it chooses."""
        return [Tokenizer.BEGIN, *self.begin]


NO_SPECIAL_TOKENS = SpecialTokens()


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer on a sample of texts; raises like `Tokenizer.train`."""
    return Tokenizer.train(sample(texts, config.sample), config.kind, config.size, config.dropout)


def train_tokenizers(pairs: Iterable[Pair], config: TokenizerConfig) -> tuple[Tokenizer, Tokenizer]:
    """Train the tokenizers of source and target, the same one if shared, on a sample of pairs;
    raises like `Tokenizer.train`."""
    chosen = sample(pairs, config.sample)
    if config.shared:
        both = Tokenizer.train(
            chain.from_iterable(chosen), config.kind, config.size, config.dropout
        )
        return both, both
    source, target = config.sides()
    return (
        Tokenizer.train((text for text, _ in chosen), source.kind, source.size, config.dropout),
        Tokenizer.train((text for _, text in chosen), target.kind, target.size, config.dropout),
    )


def check_sizes(directory: Path, tokenizers: Sequence[int], model: Sequence[object]) -> None:
    """Check the sizes of tokenizers, source and target, against those of the model's vocabularies.

    Raises:
        TransductError: they differ.
    """
    found, expected = (" and ".join(map(str, sizes)) for sizes in (tokenizers, model))
    require(
        found == expected,
        f"the tokenizers hold {found} tokens, the model {expected}; they do not belong together: "
        "copy the model again",
        file=str(directory),
    )


def tokenizers_of(directory: Path, sizes: Sequence[object]) -> list[Tokenizer]:
    """Load the tokenizers of a model directory; `sizes` are those of the model's source and target
    vocabularies.

    Raises:
        TransductError: one is missing or damaged, or has another size.
    """
    loaded = [Tokenizer.load(path).in_use() for path in tokenizers_in(directory)]
    check_sizes(directory, (loaded[0].size, loaded[-1].size), sizes)
    return loaded


def _reads_words(library: tokenizers.Tokenizer) -> bool:
    """Whether the library segments each word on its own, like all kinds made here except `byte` and
    `verbatim`."""
    parts = [str(part) for part in (library.normalizer, library.pre_tokenizer)]
    # TIDY is that of tokenizers that version 0.1 trained, to which ▁ in a text is a blank.
    return parts[0] in map(str, (CLEARED, ESCAPED, TIDY)) and parts[1] in map(
        str, (WORDS, WORDS_OF_UNIGRAM)
    )


@cache
def _stay_silent_when_forked() -> None:
    """Make forked children use the library with one thread, since its other threads do not survive
    a fork.

    The library would find this out itself, with a warning on stderr. A value set by the user is
    kept.
    """
    name = "TOKENIZERS_PARALLELISM"
    if name not in os.environ:
        os.register_at_fork(
            before=lambda: os.environ.__setitem__(name, "false"),
            after_in_parent=lambda: os.environ.pop(name, None),
        )


@contextmanager
def panics_as_errors(name: str) -> Iterator[None]:
    """Turn a panic of the library, which is no `Exception`, into an error of one line."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != PANIC:
            raise
        raise TransductError(f"{name}: damaged ({error}); copy it again") from error
