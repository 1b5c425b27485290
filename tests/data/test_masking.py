"""Which tokens are hidden, which lines stand together, and plain text as a corpus of them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.data.masking import (
    Masking,
    PlainTextConfig,
    check_enough,
    encoded_lines,
    prepare_plain_text,
    second_lines,
)
from transduct.data.sources import TextSource
from transduct.data.text import texts_of
from transduct.data.tokenizer import Tokenizer
from transduct.records import record

BEGIN, END, SIZE = Tokenizer.BEGIN, Tokenizer.END, 1000
LENGTHS = [3, 4, 20, 102]  # begin and end included


def flat(lengths=LENGTHS, first=3):
    """Sequences of text tokens from `first` on, between begin and end, and where each starts."""
    rows = [[BEGIN, *range(first, first + n - 2), END] for n in lengths]
    return [token for row in rows for token in row], np.cumsum([0, *lengths]).tolist()


# hiding


def test_a_share_of_each_example_is_hidden_and_never_its_ends():
    tokens, offsets = flat()
    hidden, places = Masking(0.15, SIZE, 1, 0).hide(tokens, offsets, range(len(LENGTHS)))
    found = [sum(start <= place < stop for place in places) for start, stop in pairwise(offsets)]
    assert found == [1, 1, 3, 15]
    assert len(set(places)) == len(places)
    assert not {BEGIN, END} & {tokens[place] for place in places}
    assert [h for i, h in enumerate(hidden) if i not in places] == [
        t for i, t in enumerate(tokens) if i not in places
    ]


def test_a_pair_keeps_the_end_between_its_lines():
    tokens = [BEGIN, 5, 6, END, 7, END]
    for epoch in range(20):
        hidden, places = Masking(0.9, SIZE, 1, epoch).hide(tokens, [0, 6], [0])
        assert sorted(places) == [1, 2, 4]
        assert (hidden[0], hidden[3], hidden[5]) == (BEGIN, END, END)


def test_of_the_hidden_four_in_five_become_the_mask_and_one_in_ten_another():
    tokens, offsets = [500] * 200_000, list(range(0, 200_001, 100))
    hidden, places = Masking(0.15, SIZE, 1, 0).hide(tokens, offsets, range(2000))
    assert len(places) == 30_000
    drawn = Counter(
        "mask" if hidden[p] == SIZE else "kept" if hidden[p] == 500 else "other" for p in places
    )
    shares = {kind: count / len(places) for kind, count in drawn.items()}
    # three standard deviations
    assert shares == pytest.approx({"mask": 0.8, "kept": 0.1, "other": 0.1}, abs=0.006)
    others = [hidden[p] for p in places if hidden[p] not in (SIZE, 500)]
    assert (min(others), max(others)) == (3, SIZE - 1)


def test_a_random_token_is_never_the_mask():
    only, size = 3, 4  # so that a random token is the one that was there
    hidden, places = Masking(0.15, size, 1, 0).hide(
        [only] * 100_000, range(0, 100_001, 100), range(1000)
    )
    assert sum(hidden[place] == size for place in places) / len(places) == pytest.approx(
        0.8, abs=0.01
    )


def test_what_is_hidden_belongs_to_the_seed_the_epoch_and_the_example():
    tokens, offsets = flat([50, 50, 50], first=3)

    def drawn(seed=1, epoch=0, numbers=(7, 8, 9)):
        hidden, places = Masking(0.3, SIZE, seed, epoch).hide(tokens, offsets, numbers)
        return [(hidden[a:b], [p - a for p in places if a <= p < b]) for a, b in pairwise(offsets)]

    assert drawn() == drawn()
    assert drawn(numbers=(9, 7, 8)) == [drawn()[2], *drawn()[:2]], "wherever in a batch it stands"
    for other in (drawn(seed=2), drawn(epoch=1), drawn(numbers=(4, 5, 6))):
        assert all(one != two for one, two in zip(drawn(), other))


# second lines


@pytest.mark.parametrize("pairs", [3, 4, 1001])
@pytest.mark.parametrize("epoch", range(5))
def test_half_the_pairs_show_another_line(pairs, epoch):
    shown, numbers = second_lines(pairs, 1, epoch), np.arange(pairs)
    assert (shown != numbers).sum() == pairs // 2
    assert not (shown == (numbers - 1) % pairs).any(), "the first line itself"
    assert 0 <= shown.min() <= shown.max() < pairs


def test_which_pairs_and_which_lines_is_drawn_for_each_epoch():
    shown, numbers = second_lines(10_000, 1, 0), np.arange(10_000)
    apart = shown != numbers
    assert (second_lines(10_000, 1, 0) == shown).all()
    for other in (second_lines(10_000, 1, 1), second_lines(10_000, 2, 0)):
        assert 0.48 < ((other != numbers) == apart).mean() < 0.52
        assert (other == shown)[apart].mean() < 0.01
    assert np.histogram(numbers[apart], 4, (0, 10_000))[0].min() > 1100, "pairs from everywhere"
    assert np.histogram(shown[apart], 4, (0, 10_000))[0].min() > 1100, "lines from everywhere"
    assert len(set(shown[apart].tolist())) > 3500


# preparing


def made(tmp_path, text, said=None, **changes):
    """A corpus of the lines of a file, a token a character, and the tokenizer."""
    (tmp_path / "text").write_text(text)
    tokenizer = Tokenizer.train(["abcdefgh"], "character", 20)
    data = PlainTextConfig(**{"train": [TextSource(text="text")], "root": str(tmp_path), **changes})
    return prepare_plain_text(
        data, tokenizer, tmp_path / "corpus", str if said is None else said.append
    ), tokenizer


def rows_of(corpus, tokenizer):
    """The texts of each row."""
    columns = corpus.columns(np.arange(len(corpus)))
    texts = [
        tokenizer.decode([r.tolist() for r in np.split(ids, np.cumsum(n)[:-1])])
        for ids, n in columns
    ]
    return list(zip(*texts))


def test_lines_are_kept_in_order_and_blank_ones_counted(tmp_path):
    said = []
    corpus, tokenizer = made(tmp_path, "ab\n\ncd\n \t \nef\n", said)
    assert rows_of(corpus, tokenizer) == [("ab",), ("cd",), ("ef",)]
    assert corpus.dropped == {"blank_lines": 2, "ends_of_long_lines": 0}
    assert said == ["corpus prepared: 3 lines (left out: 2 blank lines)"]


def test_pairs_are_consecutive_lines_of_one_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("transduct.data.text.CHUNK", 2)
    (tmp_path / "other").write_text("g\nh\n")
    both = [TextSource(text="text", weight=2.0), TextSource(text="other")]
    corpus, tokenizer = made(tmp_path, "a\n\nb\nc\nd\ne\n", next_sentence=True, train=both)
    expected = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("g", "h")]
    assert rows_of(corpus, tokenizer) == expected
    assert corpus.weights == [(0, 4, 2.0), (4, 5, 1.0)]
    assert corpus.dropped["blank_lines"] == 1


@pytest.mark.parametrize(("next_sentence", "count"), [(False, 1), (True, 2)])
def test_what_is_too_long_is_counted_and_kept_whole(tmp_path, next_sentence, count):
    said = []
    text = "abc\nab\nabcde\na\n"  # with the blank before a word 4, 3, 6 and 2 tokens
    corpus, tokenizer = made(
        tmp_path, text, said, max_length=7 + 3 * next_sentence, next_sentence=next_sentence
    )
    unit = "pairs" if next_sentence else "lines"
    assert corpus.dropped == {"blank_lines": 0, f"ends_of_long_{unit}": count}
    assert said == [
        f"corpus prepared: {4 - next_sentence} {unit} (left out: {count} ends of long {unit})"
    ]
    assert ("abcde",) in [row[-1:] for row in rows_of(corpus, tokenizer)]


def test_a_corpus_is_made_anew_only_where_something_has_changed(tmp_path):
    said = []
    for text, changes in [
        ("a\n", {}),
        ("a\n", {"mask": 0.5}),
        ("b\n", {}),
        ("b\n", {"max_length": 9}),
    ]:
        made(tmp_path, text, said, **changes)
    assert said[1] == "corpus unchanged: reused 1 rows"
    assert said[2] == "corpus prepared again: file text changed"
    assert said[4] == "corpus prepared again: max_length changed"


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, "text: nothing in it; name files that hold text"),
        ("\n \n", {}, "found 0 lines that are not blank, expected at least 1; give more text"),
        (
            "a\nb\n\nc\n",
            {"next_sentence": True},
            "found 2 pairs of lines that are not blank, expected at least 3; give",
        ),
        (
            "a\n",
            {"train": [TextSource(text="none")]},
            "none: cannot be read .*; correct data.train or data.root",
        ),
    ],
)
def test_too_little_text_is_refused(tmp_path, text, changes, message):
    with refusal(message):
        made(tmp_path, text, **changes)
    assert not (tmp_path / "corpus").exists()


def test_no_lines_are_no_pairs():
    with refusal("found 0 pairs of lines that are not blank"):
        check_enough(-1, in_pairs=True)
    check_enough(3, in_pairs=True)
    check_enough(1, in_pairs=False)


def test_lines_of_blanks_are_blank_whatever_the_tokenizer_makes_of_them():
    tokenizer = Tokenizer.train([], "byte", 259)
    assert tokenizer.encode([" "]) != [[]]
    assert encoded_lines(["a", " ", "", "\t"], tokenizer) == tokenizer.encode(["a"])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"train": [{"source": "a", "target": "b"}]},
            "a corpus gives 2 texts a row, must be 1: give text, or name one",
        ),
        ({"valid": {"pairs": "a.tsv"}}, "a corpus gives 2 texts a row, must be 1"),
    ],
    ids=str,
)
def test_a_section_that_makes_no_sense_is_refused(section, message):
    with refusal(message):
        record(PlainTextConfig, {"train": [{"text": "a"}], **section}, "data")


def test_one_column_of_others_is_plain_text(tmp_path):
    (tmp_path / "a.tsv").write_text("1\tx y\n0\tz\n")
    data = PlainTextConfig([TextSource(pairs="a.tsv", columns=[1])], root=str(tmp_path))
    assert list(texts_of(data.train, Path(data.root))) == ["x y", "z"]
