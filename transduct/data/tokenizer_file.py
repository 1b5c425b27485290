"""The rules of `tokenizer.json`: what ours do to characters, and what a file of others may ask for,
bounded in size, in time and in growth.

The `tokenizers` library obeys whatever such a file says. A pattern that backtracks takes minutes or
panics, and a rule that lengthens text again and again takes all memory, which ends the process. So
a file may ask for the patterns that this program writes and no others, and for little growth.
"""

import base64
import json
import re
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

import tokenizers
from tokenizers import normalizers

from transduct.data.pieces import BLANK
from transduct.errors import placing, require
from transduct.storage import read_file

# Unicode's Default_Ignorable_Code_Point, as inclusive ranges: written out, for a new version of
# Unicode must not change what a trained model reads. The first are left out of every text. Not so
# U+200C and U+200D, which Persian, Hindi and emoji need, variation selectors, or tags of a flag.
UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e001f\U000e0080-\U000e00ff\U000e01f0-\U000e0fff"
)
TAGS, KEPT = (
    "\U000e0020-\U000e007f",
    "\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef",
)
INVISIBLE = f"[{UNSEEN}]|(?<![\U0001f3f4{TAGS}])[{TAGS}]+"
# Ligatures, as the text of a PDF file has them.
LIGATURES = {
    **dict(zip("ﬀﬁﬂﬃﬄﬅﬆ", ("ff", "fi", "fl", "ffi", "ffl", "st", "st"))),
    **dict(zip("ﬓﬔﬕﬖﬗ", ("մն", "մե", "մի", "վն", "մխ"))),
    **dict(zip("ﻵﻶﻷﻸﻹﻺﻻﻼ", ("لآ", "لآ", "لأ", "لأ", "لإ", "لإ", "لا", "لا"))),
}
NOT_READ = re.compile(f"{INVISIBLE}|[{''.join(LIGATURES)}]")
BLANKS = re.compile(rf"[\s{UNSEEN}{TAGS}{KEPT}]*")
# The first rules of a new tokenizer. Older ones have none: their training goes on as it began.
CLEARING = (
    normalizers.Replace(
        tokenizers.Regex(re.sub("[^ -~]", lambda found: f"\\x{{{ord(found[0]):x}}}", INVISIBLE)), ""
    ),
    *[normalizers.Replace(letter, written) for letter, written in LIGATURES.items()],
)
ONE_BLANK = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
TIDY = normalizers.Sequence([normalizers.NFC(), ONE_BLANK, normalizers.Strip()])
# In a word, ▁ would read as a blank: it is written as two control characters, of which the first is
# never alone.
ESCAPE = "\x10"
ESCAPES = {ESCAPE: f"{ESCAPE}\x12", BLANK: f"{ESCAPE}\x11"}
ESCAPING = (
    normalizers.NFC(),
    *[normalizers.Replace(letter, written) for letter, written in ESCAPES.items()],
    ONE_BLANK,
    normalizers.Strip(),
)
ESCAPED = normalizers.Sequence([*ESCAPING])  # of tokenizers without `CLEARING`
CLEARED = normalizers.Sequence([*CLEARING, *ESCAPING])
COMPOSED = normalizers.Sequence([*CLEARING, normalizers.NFC()])
# Regular expressions in the tokenizers that we write, or take from published models.
PATTERNS = {r"\s+", " +", r"\A | \z", " {2,}", r"\n"}
LARGEST = 1 << 28  # bytes; four million tokens and their merges take half of it
LONGEST = 10_000  # characters of a token, or of what a rule inserts
GROWTH = 4.0  # the most by which all rules together may lengthen a text
USUAL = {"start": 0, "stop": 0, "length": 1}  # numbers of rules
PARTS = 100  # rules
ELSEWHERE = "take the model from another place"
OWN = [json.loads(rule.__getstate__()) for rule in CLEARING]  # known to be harmless


def cleared(text: str, kept: Collection[str] = ()) -> str:
    """A text without characters that nobody sees (`INVISIBLE`), and with the letters of ligatures;
    those `kept` stay."""
    if text.isascii():
        return text

    def read(match: re.Match[str]) -> str:
        found = match[0]
        return found if found[0] in kept else LIGATURES.get(found, "")

    return NOT_READ.sub(read, text)


def is_blank(text: str) -> bool:
    """Whether a text holds nothing that can be seen."""
    return BLANKS.fullmatch(text) is not None


def tidied(text: str) -> str:
    """A text as all kinds but `byte` and `verbatim` read it: in NFC, with single blanks between its
    words.

    Few texts need the library's normaliser, which is slow.
    """
    if " ".join(text.split()) == text and (text.isascii() or is_normalized("NFC", text)):
        return text
    return TIDY.normalize_str(text)


def read(path: Path) -> str:
    """The text of a tokenizer file that is safe to use.

    Raises:
        TransductError: it is missing, no regular file, too large, not UTF-8, or asks for a pattern
            or for growth that this program never writes.
        ValueError: it is not JSON of the right form.
    """
    text = read_file(path, "a tokenizer", LARGEST).decode()
    content = json.loads(text)
    parts = [
        part
        for name in ("normalizer", "pre_tokenizer", "decoder")
        for part in _parts(content.get(name))
        if part not in OWN
    ]
    with placing(str(path)):
        require(
            len(parts) <= PARTS,
            f"has {len(parts):,} rules, at most {PARTS} are followed; {ELSEWHERE}",
        )
        growth = prod(map(_growth, parts))
        require(
            growth <= GROWTH,
            f"its rules may lengthen a text {growth:,.0f} times, at most {GROWTH:g} times is "
            f"taken; {ELSEWHERE}",
        )
        # of unigram a list of pairs, else the keys of a mapping
        names = [n if isinstance(n, str) else n[0] for n in content["model"]["vocab"]]
        longest = max(map(len, names), default=0)
        require(
            longest <= LONGEST,
            f"a token holds {longest:,} characters, at most {LONGEST:,} are taken; {ELSEWHERE}",
        )
    return text


def _growth(part: dict[str, Any]) -> float:
    """The most by which a rule lengthens a text; one that is not safe is refused."""
    pattern = part.get("pattern") or {}
    require(
        pattern.get("Regex") in (None, *PATTERNS),
        f"asks for the pattern {pattern.get('Regex')!r:.60}, which transduct never writes and "
        f"which may take for ever; {ELSEWHERE}",
    )
    if part.get("type") == "Precompiled":  # SentencePiece's, at whose damage the library panics
        blob = base64.b64decode(part["precompiled_charsmap"], validate=True)
        units = int.from_bytes(blob[:4], "little")
        whole = units % 4 == 0 and 0 < units <= len(blob) - 4
        require(whole, "its character rules are cut short; copy it again")
    else:
        longest = max((len(text) for text in part.values() if isinstance(text, str)), default=0)
        require(
            longest <= LONGEST,
            f"a rule holds {longest:,} characters, at most {LONGEST:,} are taken; {ELSEWHERE}",
        )
    start, stop, length = (part.get(name, usual) for name, usual in USUAL.items())
    require(
        start in (0, 1) and stop == 0 and length != 0,
        f"a rule of type {part.get('type')!r:.40} has numbers at which the library fails; "
        f"{ELSEWHERE}",
    )
    inserted = part.get("content")
    if not isinstance(inserted, str):
        return 1.0
    return max(1.0, len(inserted) / max(1, len(pattern.get("String", " "))))


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """The rules in a part of the file, which may be a sequence of others."""
    if isinstance(part, dict):
        yield part
        for value in part.values():
            for inner in value if isinstance(value, list) else ():
                yield from _parts(inner)
