"""How a tokenizer that was SentencePiece's reads text: its rules for characters, and the names of its pieces.

Blanks become ▁ before a text is cut, so that entries which begin with a real blank never match: they are ids without a
piece. Those after a lone blank are pieces without an id (`interop/sentencepiece.py` makes them so).
"""

import base64
import json
import re
from array import array
from collections.abc import Sequence
from string import printable

import tokenizers

BLANK, HIDDEN = "▁", " "
LANGUAGE = re.compile("^(>>.*?<<)", re.DOTALL)  # of a model that knows several, as in ">>fra<< Hello"
TYPED = printable[:95]  # ASCII but for white space


class Pieces:
    """The names that a text is cut into, and their ids.

    The library cuts, but it applies rules to whole graphemes: of letters with two accents it loses one, and Korean
    syllables and Japanese accents that are written apart stay so.

    Args:
        library: its normaliser is taken away.
        specials: the first tokens, which no text is cut into, that of what is unknown before the others.
    """

    def __init__(self, library: tokenizers.Tokenizer, specials: Sequence[str]) -> None:
        vocabulary = library.get_vocab(False)
        rules = json.loads(library.normalizer.__getstate__())["normalizers"]
        kinds = [rule["type"] for rule in rules]
        charsmaps = [rule["precompiled_charsmap"] for rule in rules if rule["type"] == "Precompiled"]
        self.charsmap = Charsmap(base64.b64decode(charsmaps[0])) if charsmaps else None
        self.prefix, self.tidy = BLANK if "Prepend" in kinds else "", kinds.count("Replace") > 1
        self.library, self.size, self.unknown = library, vocabulary[HIDDEN], HIDDEN + specials[0]
        named = range(len(specials), self.size)
        self.ids = {name.removeprefix(HIDDEN): i for name, i in vocabulary.items() if i in named}
        library.normalizer = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, zero for what is unknown; a language at its beginning is one token."""
        parts = [LANGUAGE.split(text, 1) for text in texts]  # the text, or nothing, the language and the rest
        rests = [self.normalised(part[-1]) for part in parts]
        rows = []
        for part, text, coded in zip(parts, rests, self.library.encode_batch(rests, add_special_tokens=False)):
            names = [*part[1:2], *coded.tokens]
            if self.unknown in names:  # a BPE does not say which letters it knows nothing of
                names[len(part[1:2]) :] = [
                    text[start:stop] if name == self.unknown else name
                    for name, (start, stop) in zip(coded.tokens, coded.offsets)
                ]
            rows.append([self.ids.get(name, 0) for name in names])
        return rows

    def normalised(self, text: str) -> str:
        """The text as it is cut."""
        anything = bool(text) and not self.tidy
        if self.charsmap is not None:
            text = self.charsmap(text)
        if self.tidy:
            text = re.sub(" +", " ", text).strip(" ")
        if text or anything:
            text = self.prefix + text.replace(" ", BLANK)
        return text.rstrip(BLANK) if self.tidy else text


class Charsmap:
    """SentencePiece's rules for characters: at each place the longest that fits.

    They lie in a double array (Aoe 1989; Yata's darts-clone), whose units hold a byte and where the next one is.
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        self.units, self.replacements = array("I", blob[4 : 4 + size]), blob[4 + size :] + b"\0"
        self.idle = all(self.longest(letter.encode(), 0) is None for letter in TYPED)  # over ASCII

    def __call__(self, text: str) -> str:
        """The text after the rules."""
        if self.idle and text.isascii() and text.isprintable():
            return text
        data, place, out = text.encode("utf-8", "replace"), 0, bytearray()
        while place < len(data):
            found = self.longest(data, place)
            if found is None:
                lead = data[place]
                width = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
                out += data[place : place + width]
                place += width
            else:
                place, start = found
                out += self.replacements[start : self.replacements.find(0, start)]
        return out.decode("utf-8", "replace")

    def longest(self, data: bytes, place: int) -> tuple[int, int] | None:
        """Where the longest rule that fits at a place of the bytes ends, and where its replacement starts."""
        units, found, node = self.units, None, _step(self.units[0])
        for at in range(place, len(data)):
            node ^= data[at]
            if node >= len(units):
                break
            unit = units[node]
            if unit & 0x800000FF != data[at]:
                break
            node ^= _step(unit)
            if unit & 0x100 and node < len(units):
                found = at + 1, units[node] & 0x7FFFFFFF
        return found


def _step(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)
