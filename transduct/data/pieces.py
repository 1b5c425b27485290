"""Segments text like SentencePiece, for tokenizers converted from it: its character rules and its
pieces.

Blanks become ▁ before text is segmented, so vocabulary entries that begin with a real blank never
match: they are ids without a piece. The entries after a single blank are pieces without an id.
`interop/sentencepiece.py` writes both.
"""

import base64
import json
import re
from array import array
from collections.abc import Callable, Sequence
from string import printable

import tokenizers

from transduct.errors import TransductError

BLANK, HIDDEN = "▁", " "
# the target language of a multilingual model, as in ">>fra<< Hello"
LANGUAGE = re.compile("^(>>.*?<<)", re.DOTALL)
GROWTH, ROOM = 20, 100_000  # NFKC lengthens at most 11 times, in bytes
TYPED = printable[:95].encode()  # printable ASCII and the blank


class Pieces:
    """Texts to the ids of SentencePiece pieces.

    The `tokenizers` library segments, but its normaliser is replaced by ours: it applies character
    rules to whole graphemes, which loses one of two accents on a letter, and leaves decomposed
    Korean and Japanese as they are.

    Args:
        library: the tokenizer; its normaliser is removed.
        specials: the first tokens, the unknown token foremost; no text is segmented into them.
    """

    def __init__(self, library: tokenizers.Tokenizer, specials: Sequence[str]) -> None:
        vocabulary = library.get_vocab(False)
        rules = json.loads(library.normalizer.__getstate__())["normalizers"]
        kinds = [rule["type"] for rule in rules]
        charsmaps = [
            rule["precompiled_charsmap"] for rule in rules if rule["type"] == "Precompiled"
        ]
        self.charsmap = Charsmap(base64.b64decode(charsmaps[0])) if charsmaps else None
        self.prefix, self.tidy = BLANK if "Prepend" in kinds else "", kinds.count("Replace") > 1
        self.library, self.size, self.unknown = library, vocabulary[HIDDEN], HIDDEN + specials[0]
        named = range(len(specials), self.size)
        self.ids = {name.removeprefix(HIDDEN): i for name, i in vocabulary.items() if i in named}
        self.clear: Callable[[str], str] = str  # leaves out what no piece holds
        library.normalizer = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, 0 for unknown pieces; a language at its beginning is one token."""
        parts = [LANGUAGE.split(text, 1) for text in texts]  # [text] or ["", language, rest]
        rests = [self.normalised(part[-1]) for part in parts]
        rows = []
        for part, text, coded in zip(
            parts, rests, self.library.encode_batch(rests, add_special_tokens=False)
        ):
            names = [*part[1:2], *coded.tokens]
            if self.unknown in names:  # BPE does not tell which characters are unknown
                names[len(part[1:2]) :] = [
                    text[start:stop] if name == self.unknown else name
                    for name, (start, stop) in zip(coded.tokens, coded.offsets)
                ]
            rows.append([self.ids.get(name, 0) for name in names])
        return rows

    def normalised(self, text: str) -> str:
        """The text as it is segmented: after the character rules, with ▁ for blanks."""
        anything = bool(text) and not self.tidy
        if self.charsmap is not None:
            text = self.charsmap(text)
        text = self.clear(text)
        if self.tidy:
            text = re.sub(" +", " ", text).strip(" ")
        if text or anything:
            text = self.prefix + text.replace(" ", BLANK)
        return text.rstrip(BLANK) if self.tidy else text


class Charsmap:
    """SentencePiece's character rules, its precompiled charsmap: at each place the longest match is
    replaced.

    The rules are a trie in a double array (Aoe 1989; Yata's darts-clone): a unit holds a byte and
    the offset of its children.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        self.units, self.replacements = array("I", blob[4 : 4 + size]), blob[4 + size :] + b"\0"
        self.keeps_ascii = self._keeps_ascii()

    def __call__(self, text: str) -> str:
        """Apply the rules to a text."""
        if self.keeps_ascii and text.isascii() and text.isprintable():
            return text
        data, place, out = text.encode("utf-8", "replace"), 0, bytearray()
        while place < len(data):
            match = self.longest(data, place)
            if match is None:
                lead = data[place]
                width = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
                out += data[place : place + width]
                place += width
            else:
                place, start = match
                out += self.replacements[start : self.replacements.find(0, start)]
                if len(out) > GROWTH * len(data) + ROOM:
                    raise TransductError(
                        f"the tokenizer's character rules lengthen a text over {GROWTH} times; "
                        "take the model from another place"
                    )
        return out.decode("utf-8", "replace")

    def longest(self, data: bytes, place: int) -> tuple[int, int] | None:
        """The end of the longest match at a place of the bytes, and the start of its replacement;
        None if none."""
        units, match, node = self.units, None, _offset(self.units[0])
        for at in range(place, len(data)):
            node ^= data[at]
            if node >= len(units):
                break
            unit = units[node]
            if unit & 0x800000FF != data[at]:
                break
            node ^= _offset(unit)
            if unit & 0x100 and node < len(units):
                match = at + 1, units[node] & 0x7FFFFFFF
        return match

    def _keeps_ascii(self) -> bool:
        """Whether no rule is for a text of printable ASCII alone."""
        units, first = self.units, _offset(self.units[0])
        waiting, seen = [first], {first}  # in a damaged trie a node may be met again
        while waiting:
            node = waiting.pop()
            for letter in TYPED:
                place = node ^ letter
                if place >= len(units) or units[place] & 0x800000FF != letter:
                    continue
                child = place ^ _offset(units[place])
                if units[place] & 0x100 and child < len(units):
                    return False
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return True


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)
