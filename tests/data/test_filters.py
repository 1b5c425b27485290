"""Filters count by reason; held-out pairs are as good as random and do not depend on the order of
the corpus."""

import numpy as np
import pytest

from transduct.data.filters import Filters, Seen, hashes, hashes_of_rows, hold_out
from transduct.data.sources import DataConfig, Replacement, TextSource

PAIRS = [(f"a {number}", f"b {number}") for number in range(9_000)]  # several chunks of a file


def data_of(folder, pairs, **settings):
    (folder / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return DataConfig(train=[TextSource(pairs="a.tsv")], root=str(folder), **settings)


@pytest.mark.parametrize("count", [0, 100, 4_000, 9_000])
def test_what_is_held_out_has_the_smallest_hashes(tmp_path, count):
    order = np.argsort(hashes(source for source, _ in PAIRS))[:count]
    expected = [PAIRS[number] for number in order.tolist()]
    for pairs in (PAIRS, PAIRS[::-1]):
        assert hold_out(data_of(tmp_path, pairs, held_out=count)) == expected


def test_a_pair_with_a_blank_text_is_not_held_out(tmp_path):
    pairs = [("", "b 1"), ("a 2", ""), ("a 3", " "), ("\u3000", "b 4"), ("a 5", "b 5")]
    assert hold_out(data_of(tmp_path, pairs, held_out=5)) == pairs[-1:]


def test_each_pair_is_left_out_for_the_first_reason_that_applies(tmp_path):
    data = data_of(tmp_path, [("a", "b")], max_length=9, max_ratio=3.0)
    filters = Filters(data, [("held", "gehalten"), ("out", "aus")])
    pairs = [
        ("a", "b"),
        ("x", "gehalten"),
        ("", "b"),
        ("l", "o"),
        ("r", "s"),
        ("a", "b"),
        ("c", "d"),
    ]
    source, target = np.array([[1, 1], [1, 1], [0, 1], [9, 9], [1, 4], [1, 1], [3, 1]]).T
    assert filters.keep(pairs, source, target).tolist() == [
        True,
        False,
        False,
        False,
        False,
        False,
        True,
    ]
    assert filters.dropped == {
        "held_out": 1,
        "empty": 1,
        "too_long": 1,
        "length_ratio": 1,
        "duplicate": 1,
    }


@pytest.mark.parametrize("pair", [("", "b"), ("a", " "), ("\t", "\u3000"), ("\u0085", "\xa0")])
def test_a_blank_text_is_empty_though_a_tokenizer_kept_its_blanks(tmp_path, pair):
    filters = Filters(data_of(tmp_path, [("a", "b")]), [])
    assert filters.keep([pair, ("a", "b")], np.array([1, 1]), np.array([1, 1])).tolist() == [
        False,
        True,
    ]
    assert filters.dropped["empty"] == 1


def test_a_text_that_has_no_tokens_is_empty(tmp_path):
    filters = Filters(data_of(tmp_path, [("a", "b")]), [])
    assert filters.keep(
        [("\x07", "b"), ("a", "b")], np.array([0, 1]), np.array([1, 1])
    ).tolist() == [False, True]
    assert filters.dropped["empty"] == 1


def test_what_is_held_out_is_changed_before_pairs_are_compared_with_it(tmp_path):
    rules = [Replacement(side="source", pattern="ä", by="ae")]
    filters = Filters(data_of(tmp_path, [("a", "b")], replace=rules), [("hält", "holds")])
    assert filters.keep(
        [("haelt", "stops"), ("a", "b")], np.ones(2, int), np.ones(2, int)
    ).tolist() == [False, True]
    assert filters.dropped["held_out"] == 1


TWINS = [
    "Café b",
    "Cafe\u0301 b",
    "Café\xa0b",
    "Café  b",
    " Café b\u3000",
    "Café\tb",
]  # the same to most tokenizers


def test_what_tokenizers_read_alike_is_one_pair(tmp_path):
    assert len({*hashes(TWINS).tolist()}) == 1
    assert len({*hashes_of_rows([("a b", "c"), ("a", "b c"), ("a b c",)]).tolist()}) == 3
    pairs, ones = (
        [*((text, "c") for text in TWINS), *(("d", text) for text in TWINS)],
        np.ones(12, int),
    )
    data = data_of(tmp_path, pairs[:1], held_out=2)
    filters = Filters(data, [])
    assert filters.keep(pairs, ones, ones).tolist() == [number in (0, 6) for number in range(12)]
    assert filters.dropped["duplicate"] == 10
    assert not Filters(data, [(TWINS[0], TWINS[1])]).keep(pairs, ones, ones).any()
    (tmp_path / "a.tsv").write_text("Cafe\u0301 b\tc\nCafé b \td\n")
    assert len(hold_out(data)) == 1, "of one source one pair is held out"


def test_a_plain_text_has_the_hash_it_always_had():
    assert hashes(["a b", "é"]).tolist() == [2952434739088078779, 3394012004367669963]
    assert hashes_of_rows([("a b", "é")]).tolist() == [820002550152259196]


def test_seen_is_a_set():
    draw = np.random.default_rng(1)
    seen, known = Seen(), set()
    for _ in range(200):
        some = np.array(
            [0, 2**64 - 1, *known, *draw.integers(0, 2**64, 20, np.uint64).tolist()], np.uint64
        )
        hashes = draw.choice(some, draw.integers(0, 50))
        expected = [not (value in known or known.add(value)) for value in hashes.tolist()]
        assert seen.add(hashes).tolist() == expected
    assert sum(len(run) for bucket in seen._buckets for run in bucket) == len(known)
    assert max(map(len, seen._buckets)) < 10
