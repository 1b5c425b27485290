"""API keys: who may ask, how often and how much."""

import hmac
import re
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from time import time

from transduct.errors import TransductError, require
from transduct.serving.requests import Problem

SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
LIMIT = re.compile(r"(rate|quota)=(\d{1,15})/(second|minute|hour|day)")
NAME = re.compile(r"name=([\w.-]{1,40})")
SCHEMES = ("bearer", "deepl-auth-key")


@dataclass
class Limit:
    """So many in each window of so many seconds.

    Attributes:
        window: the number of the current one, since 1970.
        used: in the current one.
    """

    most: int
    seconds: int
    window: int = 0
    used: int = 0

    def use(self, count: int) -> int | None:
        """Count a use; None, or the seconds to wait where too much is used."""
        now = time()
        if self.window != (window := int(now // self.seconds)):
            self.window, self.used = window, 0
        if self.used + count > self.most:
            return max(1, ceil((window + 1) * self.seconds - now))
        self.used += count
        return None


@dataclass
class Key:
    """A key.

    Attributes:
        name: what the log calls it.
        rate, quota: of requests, and of characters.
        characters: how many it has sent.
    """

    text: str
    name: str
    rate: Limit | None = None
    quota: Limit | None = None
    characters: int = 0

    def enter(self) -> None:
        """Count a request.

        Raises:
            Problem: there were too many.
        """
        if self.rate is not None and (seconds := self.rate.use(1)) is not None:
            each = next(name for name, each in SECONDS.items() if each == self.rate.seconds)
            raise Problem(
                429, f"this key may send {self.rate.most:,} requests a {each}", seconds=seconds
            )

    def charge(self, count: int) -> None:
        """Count characters.

        Raises:
            Problem: there were too many.
        """
        if self.quota is not None and (seconds := self.quota.use(count)) is not None:
            left = self.quota.most - self.quota.used
            raise Problem(
                456,
                f"this key's quota has {left:,} characters left, and the request {count:,}; "
                f"come back in {seconds} s",
                seconds=seconds,
            )
        self.characters += count


@dataclass
class Keys:
    """The keys in a file, one a line: KEY name=weblate rate=600/minute quota=1000000/day."""

    path: Path
    keys: list[Key] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Read the file, again or for the first time. What was used stays used.

        Raises:
            TransductError: it cannot be read or has no key, or a line is wrong; the keys stay.
        """
        before = {key.text: key for key in self.keys}
        self.keys = [_with_uses(key, before.get(key.text)) for key in read_keys(self.path)]

    def find(self, given: str) -> Key | None:
        """The key that a request brings; all are compared, in constant time."""
        found = [
            key
            for key in self.keys
            if hmac.compare_digest(given.encode("utf-8", "replace"), key.text.encode())
        ]
        return found[0] if found else None


def of_header(header: str) -> str:
    """The key in an Authorization header, or ""."""
    scheme, _, given = header.partition(" ")
    return given.strip() if scheme.lower() in SCHEMES else ""


def _with_uses(key: Key, before: Key | None) -> Key:
    if before is not None:
        key.characters = before.characters
        for limit, old in ((key.rate, before.rate), (key.quota, before.quota)):
            if limit and old and limit.seconds == old.seconds:
                limit.window, limit.used = old.window, old.used
    return key


def read_keys(path: Path) -> list[Key]:
    """Read API keys from a file, one per line.

    Raises:
        TransductError: if the file cannot be read or has no key, or a line is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TransductError(
            f"{path}: cannot be read ({error}); give a text file with one key a line"
        ) from error
    words = {number: line.split() for number, line in enumerate(lines, 1) if line.strip()}
    keys = [_key(path, number, *each) for number, each in words.items()]
    require(keys, f"{path}: holds no key; write one a line")
    return keys


def _key(path: Path, number: int, text: str, *more: str) -> Key:
    """The key in a line."""
    key, wrong = Key(text, f"line {number}"), [] if text.isascii() else [text]
    for word in more:
        if name := NAME.fullmatch(word):
            key.name = name[1]
        elif found := LIMIT.fullmatch(word):
            limit = Limit(int(found[2]), SECONDS[found[3]])
            key.rate, key.quota = (limit, key.quota) if found[1] == "rate" else (key.rate, limit)
        else:
            wrong.append(word)
    require(
        not wrong,
        "not a key; write letters and digits, then name=NAME, rate=600/minute or "
        "quota=1000000/day if you like",
        file=str(path),
        line=number,
    )
    return key
