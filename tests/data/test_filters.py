"""Filters count by reason, and know what tokenizers read alike."""

import tracemalloc

import numpy as np
import pytest

from tests.data.conftest import data_of
from transduct.data.filters import (
    Filters,
    Seen,
    Unfit,
    hashes,
    hashes_of_pairs,
    hashes_of_rows,
    reasons_of,
)
from transduct.data.replacements import Replacement


def reasons_in(filters, data, pairs, source, target):
    """Why each pair is left out, if these are the whole corpus."""
    found, hashed = Unfit(data)(pairs, source, target), hashes_of_pairs(pairs, filters.sides)
    near, repeated = np.zeros((2, len(pairs)), bool)
    repeated[found == 0] = ~Seen().add(hashed[0, found == 0])
    return [reasons_of(data)[n] for n in filters.settle(found, hashed, near, repeated).tolist()]


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
    reasons = ["held_out", "empty", "too_long", "length_ratio", "duplicate"]
    assert reasons_in(filters, data, pairs, source, target) == ["", *reasons, ""]
    assert filters.dropped == dict.fromkeys(reasons, 1)


@pytest.mark.parametrize(
    ("pair", "tokens", "reason"),
    [
        *[
            (each, 1, "empty")
            for each in (("", "b"), ("a", " "), ("\t", "\u3000"), ("\u0085", "\xa0"))
        ],
        (("\x07", "b"), 0, "empty"),
        (("haelt", "stops"), 1, "held_out"),
    ],
)
def test_a_pair_is_left_out_beside_one_that_is_kept(tmp_path, pair, tokens, reason):
    """Blank texts though a tokenizer kept their blanks, a text without tokens, and one that is held
    out once it is changed."""
    rules = [Replacement(side="source", pattern="ä", by="ae")]
    data = data_of(tmp_path, [("a", "b")], replace=rules)
    filters, pairs = Filters(data, [("hält", "holds")]), [pair, ("a", "b")]
    reasons = reasons_in(filters, data, pairs, np.array([tokens, 1]), np.array([1, 1]))
    assert reasons == [reason, ""]


# the same to most tokenizers
TWINS = ["Café b", "Cafe\u0301 b", "Café\xa0b", "Café  b", " Café b\u3000", "Café\tb"]


def test_what_tokenizers_read_alike_is_one_pair(tmp_path):
    assert len({*hashes(TWINS).tolist()}) == 1
    assert len({*hashes_of_rows([("a b", "c"), ("a", "b c"), ("a b c",)]).tolist()}) == 3
    pairs, ones = (
        [*((text, "c") for text in TWINS), *(("d", text) for text in TWINS)],
        np.ones(12, int),
    )
    data = data_of(tmp_path, pairs[:1], held_out=2)
    expected = ["" if number in (0, 6) else "duplicate" for number in range(12)]
    assert reasons_in(Filters(data, []), data, pairs, ones, ones) == expected
    held = Filters(data, [(TWINS[0], TWINS[1])])
    assert all(reasons_in(held, data, pairs, ones, ones))


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
    assert sum(len(run) for runs in seen._ranges for run in runs) == len(known)
    assert max(map(len, seen._ranges)) < 10


def test_seen_holds_no_hash_twice_while_it_merges():
    """At the last of so many parts all are merged."""
    every = np.random.default_rng(1).integers(0, 2**64, 1 << 18, np.uint64)
    seen = Seen()
    tracemalloc.start()
    for part in np.split(every, 64):
        seen.add(part)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.4 * every.nbytes
