"""Generated corpora: number names read back as their numbers, parts never overlap, every run gives
the same."""

from collections import Counter
from random import Random

import pytest

from transduct.data.samples import generate, part_of
from transduct_corpora import texts
from transduct_corpora.texts import english_number, korean_number

NAMES = ("number_names", "copy", "reverse", "sort", "brackets", "seen_before", "spans")
EXAMPLES = {
    0: ("zero", "영"),
    1: ("one", "일"),
    10: ("ten", "십"),
    11: ("eleven", "십일"),
    105: ("one hundred five", "백오"),
    1105: ("one thousand one hundred five", "천백오"),
    2100: ("two thousand one hundred", "이천백"),
    10_000: ("ten thousand", "만"),
    10_001: ("ten thousand and one", "만 일"),
    110_000: ("one hundred ten thousand", "십일만"),
    321_005: ("three hundred twenty-one thousand and five", "삼십이만 천오"),
    1_000_040: ("one million and forty", "백만 사십"),
    100_010_000: ("one hundred million ten thousand", "일억 만"),
}
NUMBERS = sorted(
    {*range(1200), *EXAMPLES, *(Random(1).randrange(10**9) for _ in range(2000)), 10**9 - 1}
)


def read_english(name):
    """The number a name stands for, by adding up its words."""
    total = group = 0
    for word in name.replace("-", " ").replace(" and ", " ").split():
        if word in texts.ENGLISH:
            group += texts.ENGLISH.index(word)
        elif word in texts.ENGLISH_TENS:
            group += 10 * texts.ENGLISH_TENS.index(word)
        elif word == "hundred":
            group *= 100
        else:
            total += group * 1000 ** texts.ENGLISH_GROUPS.index(word)
            group = 0
    return total + group


def read_korean(name):
    total = group = digit = 0
    for letter in name:
        if letter in texts.KOREAN:
            digit = texts.KOREAN.index(letter)
        elif letter in "십백천":
            group += (digit or 1) * 10 ** (1 + "십백천".index(letter))
            digit = 0
        elif letter != " ":
            total += (group + digit or 1) * 10_000 ** texts.KOREAN_GROUPS.index(letter)
            group = digit = 0
    return total + group + digit


@pytest.mark.parametrize("number", EXAMPLES)
def test_the_rules_of_the_names_by_example(number):
    assert (english_number(number), korean_number(number)) == EXAMPLES[number]


def test_names_read_back_as_their_numbers():
    assert [read_english(english_number(number)) for number in NUMBERS] == NUMBERS
    assert [read_korean(korean_number(number)) for number in NUMBERS] == NUMBERS


@pytest.mark.parametrize("name", [english_number, korean_number])
@pytest.mark.parametrize("number", [-1, 10**9])
def test_numbers_out_of_range_are_refused(name, number):
    with pytest.raises(
        ValueError, match=f"{number} has no name here; give a number from 0 to 999,999,999"
    ):
        name(number)


def test_both_names_of_a_pair_are_of_one_number_and_all_digit_counts_occur():
    pairs = list(generate("number_names", 2000))
    numbers = [read_english(source) for source, _ in pairs]
    assert numbers == [read_korean(target) for _, target in pairs]
    assert {len(str(number)) for number in numbers} == set(range(1, 10))


@pytest.mark.parametrize("name", NAMES)
def test_parts_share_no_source_and_measured_ones_hold_each_once(name):
    train, valid, test = (
        [row[:-1] for row in generate(name, 300, part)] for part in ("train", "valid", "test")
    )
    assert len({*train, *valid, *test}) == len(set(train)) + 600


def test_what_is_short_is_trained_on_as_often_as_it_is_drawn():
    drawn = Counter(source for source, _ in generate("number_names", 20_000))
    shortest = [english_number(number) for number in range(10)]
    assert all(drawn[name] > 100 for name in shortest if part_of(name) == "train")


def test_numbers_of_two_digits_among_zeros_are_drawn_often():
    numbers = [read_english(source) for source, _ in generate("number_names", 5_000)]
    large = [str(number) for number in numbers if number >= 10_000_000]
    few = [number for number in large if sum(digit != "0" for digit in number) <= 2]
    assert len(few) > len(large) / 5


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_is_the_same_each_time_and_a_longer_one_begins_with_it(name):
    assert list(generate(name, 50)) == list(generate(name, 100))[:50]


def test_copy_reverse_and_sort_do_what_they_say():
    for name, change in {"copy": list, "reverse": lambda x: x[::-1], "sort": sorted}.items():
        assert all(
            target.split() == change(source.split()) for source, target in generate(name, 100)
        )
