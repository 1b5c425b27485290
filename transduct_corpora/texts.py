"""Endless parallel text for the demo and the tests, the same on every machine."""

from collections.abc import Callable, Iterable
from random import Random

from transduct.data.samples import Pair, TextCorpus, Texts

LETTERS = "abcdefghijklmnopqrstuvwxyz"

ENGLISH = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve"),
    *(stem + "teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
)
ENGLISH_TENS = (
    "",
    "",
    *(stem + "ty" for stem in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")),
)
ENGLISH_GROUPS = ("", "thousand", "million")
KOREAN = "영일이삼사오육칠팔구"
KOREAN_PLACES = ("천", "백", "십", "")
KOREAN_GROUPS = ("", "만", "억")


def english_number(number: int) -> str:
    """The name of 0 <= number < 10^9: 321005 is "three hundred twenty-one thousand and five"."""
    _check(number)
    if number == 0:
        return ENGLISH[0]
    words: list[str] = []
    for power in (2, 1, 0):
        group = number // 1000**power % 1000
        if not group:
            continue
        if power == 0 and group < 100 and words:
            words.append("and")
        words += [_english_group(group), ENGLISH_GROUPS[power]]
    return " ".join(filter(None, words))


def _english_group(group: int) -> str:
    """The name of 1 <= group < 1000."""
    hundreds, rest = divmod(group, 100)
    words = [ENGLISH[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(ENGLISH_TENS[tens] + (f"-{ENGLISH[ones]}" if ones else ""))
    elif rest:
        words.append(ENGLISH[rest])
    return " ".join(words)


def korean_number(number: int) -> str:
    """The Sino-Korean name of 0 <= number < 10^9: 321005 is "삼십이만 천오".

    Numbers are grouped by ten thousand. The digit one is left out before ten, hundred and thousand,
    and in 만 for exactly 10,000; 일억 keeps it.
    """
    _check(number)
    if number == 0:
        return KOREAN[0]
    words = []
    for power in (2, 1, 0):
        group = number // 10_000**power % 10_000
        if group:
            name = "" if group == 1 and power == 1 else _korean_group(group)
            words.append(name + KOREAN_GROUPS[power])
    return " ".join(words)


def _korean_group(group: int) -> str:
    """The name of 1 <= group < 10000."""
    name = ""
    for digit, place in zip(f"{group:04}", KOREAN_PLACES, strict=True):
        if digit != "0":
            name += (KOREAN[int(digit)] if digit != "1" or not place else "") + place
    return name


def _check(number: int) -> None:
    if not 0 <= number < 10**9:
        raise ValueError(f"{number} has no name here; give a number from 0 to 999,999,999")


def _number_names(random: Random) -> Pair:
    """Names of numbers of one to nine digits, each length equally likely; half have many zeros, as
    in round numbers, whose names are irregular, and half of these at most two other digits."""
    length = random.randint(1, 9)
    number = random.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
    digits, shape = list(str(number)), random.random()
    if shape < 0.25:
        held = {0, random.randrange(length)}
        digits = [digit if place in held else "0" for place, digit in enumerate(digits)]
    elif shape < 0.5:
        digits = [digit if random.random() < 0.4 else "0" for digit in digits]
    number = int("".join(digits))
    return english_number(number), korean_number(number)


def _letters(arranged: Callable[[list[str]], Iterable[str]]) -> Callable[[Random], Pair]:
    """Letters, and the same letters arranged anew."""

    def draw(random: Random) -> Pair:
        letters = random.choices(LETTERS, k=random.randint(3, 10))
        return " ".join(letters), " ".join(arranged(letters))

    return draw


def _brackets(random: Random) -> Pair:
    """Brackets of three kinds and whether they are balanced, which half of the texts are."""
    text: list[str] = []
    opened: list[int] = []
    for _ in range(random.randint(2, 8) * 2):
        kind = random.randrange(3)
        if opened and random.random() < 0.5:
            text.append(")]}"[opened.pop()])
        else:
            opened.append(kind)
            text.append("([{"[kind])
    text += [")]}"[kind] for kind in reversed(opened)]
    if random.random() < 0.5:
        return " ".join(text), "balanced"
    place = random.randrange(len(text))
    text[place] = random.choice([bracket for bracket in "()[]{}" if bracket != text[place]])
    return " ".join(text), "unbalanced"


def _seen_before(random: Random) -> Pair:
    """Letters, each tagged by whether it has occurred before in its row."""
    letters = random.choices(LETTERS[:8], k=random.randint(3, 10))
    return " ".join(letters), " ".join(
        "again" if letter in letters[:i] else "new" for i, letter in enumerate(letters)
    )


def _spans(random: Random) -> Texts:
    """A question (who is where), a text and the span of it that is the answer."""
    names, places = random.sample(NAMES, 4), random.sample(PLACES, 4)
    number = random.randrange(4)
    text = " ".join(f"{name} is in {place} ." for name, place in zip(names, places))
    if random.random() < 0.5:
        return f"where is {names[number]} ?", text, places[number]
    return f"who is in {places[number]} ?", text, names[number]


NAMES = (
    "anna",
    "bela",
    "chul-soo",
    "dora",
    "emil",
    "farid",
    "gita",
    "hana",
    "ines",
    "jun",
    "kofi",
    "lena",
)
PLACES = (
    *(
        "the garden",
        "the old kitchen",
        "seoul",
        "the north tower",
        "rome",
        "the blue room",
        "a boat",
        "oslo",
    ),
    *("the library", "a small cafe", "lagos", "the train"),
)

NUMBER_NAMES = TextCorpus(_number_names)  # English names of numbers below 10^9 -> Korean names
COPY = TextCorpus(_letters(list))
REVERSE = TextCorpus(_letters(reversed))
SORT = TextCorpus(_letters(sorted))
BRACKETS = TextCorpus(_brackets)
SEEN_BEFORE = TextCorpus(_seen_before)
SPANS = TextCorpus(_spans, 3)
