"""Filters of pairs: each finds what it is for, and leaves clean pairs."""

import random
from dataclasses import replace

import numpy as np
import pytest

from transduct.data import quality
from transduct.data.quality import Quality, misaligned
from transduct.data.sources import FiltersConfig

NAMES = ("Anna", "Bela", "the old man", "our neighbour", "a tired child", "the young teacher")
NAMEN = ("Anna", "Bela", "der alte Mann", "unser Nachbar", "ein müdes Kind", "die junge Lehrerin")
DEEDS = ("went home", "bought a very long red scarf in town", "slept", "forgot the keys again")
TATEN = (
    *("ging nach Hause", "kaufte in der Stadt einen sehr langen roten Schal"),
    *("schlief", "vergaß wieder die Schlüssel"),
)
ENDS = (".", "!", ", and nobody saw it.", " because it was raining again outside.")
ENDEN = (".", "!", ", und niemand sah es.", ", weil es draußen wieder regnete.")
GERMAN = "Die Kinder spielten den ganzen Nachmittag im Garten hinter dem Haus."
ENGLISH = "The children were playing in the garden behind the house all afternoon."


def pairs_of(count, seed=1):
    """Pairs in English and German whose lengths and marks differ from line to line."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        name, deed, end = draw.randrange(6), draw.randrange(4), draw.randrange(4)
        number = draw.choice(["", f" {draw.randrange(100)} times"])
        times = number.replace("times", "mal")
        made.append(
            (
                f"{NAMES[name]} {DEEDS[deed]}{number}{ENDS[end]}",
                f"{NAMEN[name]} {TATEN[deed]}{times}{ENDEN[end]}",
            )
        )
    return made


def reason_of(pair, **on):
    return Quality(FiltersConfig(**on), ("en", "de")).reasons([pair])[0]


@pytest.mark.parametrize(
    ("name", "value", "wrong", "right"),
    [
        ("language", True, (ENGLISH, "Les enfants jouaient dans le jardin."), (ENGLISH, GERMAN)),
        ("swapped", True, (GERMAN, ENGLISH), (ENGLISH, GERMAN)),
        ("script", True, (ENGLISH, "Дети играли в саду."), (ENGLISH, GERMAN)),
        ("script", True, (ENGLISH, "孩子们在花园里玩。"), ("7:30", "7:30")),
        ("length_ratio", 3.0, (ENGLISH, "Ja."), ("Yes.", "Ja, ja, ja.")),
        ("copied", True, (ENGLISH, ENGLISH.upper()), ("12:30", "12:30")),
        ("untranslated", True, (ENGLISH, f"{ENGLISH} Ja"), ("Tom and Mary", "Tom und Mary")),
        ("markup", True, ("<b>Yes</b>", "Ja"), ("1 < 2 and 3 > 2", "a & b")),
        ("markup", True, ("Yes", "Ja&nbsp;"), ("AT&T; yes", "Ja")),
        ("mojibake", True, ("beautiful", "schÃ¶n"), ("beautiful", "schön")),
    ],
)
def test_a_filter_finds_what_it_is_for_and_leaves_the_rest(name, value, wrong, right):
    assert reason_of(wrong, **{name: value}) == name
    assert reason_of(right, **{name: value}) == ""
    assert reason_of(wrong) == ""  # all filters are off


def test_languages_are_those_that_the_library_finds_text_by_text():
    """Also in capitals, in two Unicode forms, without a letter, and where they are very long."""
    texts = [
        ENGLISH,
        GERMAN,
        "",
        "123 \u00b2",
        GERMAN.upper(),
        "été",
        "e\u0301te\u0301",
        40 * ENGLISH,
    ]
    texts += ["Дети играли в саду.", "아이들이 정원에서 놀았다.", "Deca su se igrala u bašti."]
    expected = [quality.identifier().classify(text) for text in texts]
    codes, certain = quality.languages_of(texts)
    assert codes == [code for code, _ in expected]
    assert certain == pytest.approx([probability for _, probability in expected], abs=1e-5)
    assert quality.languages_of([]) == ([], [])


def test_what_two_models_find_unlikely_is_asked_of_what_is_left():
    asked = []

    def judge(pairs):
        asked.extend(pairs)
        return np.array([9.0, 5.0])

    config = FiltersConfig(copied=True, unlikely=5.0, models=["there", "back"])
    pairs = [(ENGLISH, ENGLISH), (ENGLISH, "Nein."), (ENGLISH, GERMAN)]
    assert Quality(config, None, judge).reasons(pairs) == ["copied", "unlikely", ""]
    assert asked == pairs[1:]
    message = r"^unlikely is 5 and models names 1; name two models, from source to target and back"
    with pytest.raises(ValueError, match=message):
        FiltersConfig(unlikely=5.0, models=["there"])


def test_short_texts_are_of_no_certain_language():
    assert reason_of(("Hello!", "Bonjour!"), language=True) == ""


def test_clean_pairs_pass_all_filters():
    config = replace(FiltersConfig.all(), near_duplicates=0.0)
    assert not any(Quality(config, ("en", "de")).reasons(pairs_of(1000)))


@pytest.mark.parametrize("shift", [1, -1, 2])
def test_a_run_of_lines_out_of_place_is_found(shift):
    """Where it begins and ends is uncertain by a few lines."""
    pairs = pairs_of(1000)
    for start in (100, 600):
        targets = [target for _, target in pairs[start : start + 20]]
        targets = targets[shift:] + targets[:shift]
        for place, target in enumerate(targets, start):
            pairs[place] = (pairs[place][0], target)
    found = np.flatnonzero(misaligned(pairs))
    planted = [*range(100, 120), *range(600, 620)]
    assert len({*found} & {*planted}) >= 34
    assert all(min(abs(place - each) for each in planted) <= 4 for place in found.tolist())


def test_lines_that_are_in_place_or_few_are_no_run(monkeypatch):
    assert not misaligned(pairs_of(2000, 2)).any()
    assert not misaligned(pairs_of(3)[::-1]).any()
    monkeypatch.setattr(quality, "EVIDENCE", 1.0)  # the threshold is what keeps them
    assert misaligned(pairs_of(2000, 2)).any()


def test_filters_that_need_languages_say_so():
    with pytest.raises(ValueError, match=r"filters\.script needs to know the languages; set"):
        FiltersConfig(script=True).check_languages(None)
    FiltersConfig(copied=True).check_languages(None)
