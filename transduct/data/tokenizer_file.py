"""Reads `tokenizer.json`, which others may have written: bounded in size, in time and in growth.

The `tokenizers` library obeys whatever such a file says. A pattern that backtracks takes minutes or
panics, and a rule that lengthens text again and again takes all memory, which ends the process. So
a file may ask for the patterns that this program writes and no others, and for little growth.
"""

import base64
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from transduct.data.vocabulary import CLEARING
from transduct.errors import placing, require
from transduct.storage import read_file

# Regular expressions in the tokenizers that we write, or take from published models.
PATTERNS = {r"\s+", " +", r"\A | \z", " {2,}", r"\n"}
LARGEST = 1 << 28  # bytes; four million tokens and their merges take half of it
LONGEST = 10_000  # characters of a token, or of what a rule inserts
GROWTH = 4.0  # the most by which all rules together may lengthen a text
USUAL = {"start": 0, "stop": 0, "length": 1}  # numbers of rules
PARTS = 100  # rules
ELSEWHERE = "take the model from another place"
OWN = [json.loads(rule.__getstate__()) for rule in CLEARING]  # known to be harmless


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
