"""What a vocabulary lacks is counted from the first character on, and said once a run."""

from contextlib import suppress

import pytest

from transduct.data.text_warnings import (
    Preprocessed,
    UnknownRate,
    count_unknown,
    count_warning,
    counted_on_success,
    warn_of_preprocessed,
    warned_once,
)


def test_a_run_says_once_what_is_unknown(caplog):
    with warned_once() as found:
        count_unknown([["€"], [], ["&", "€"]])
        count_unknown([["€"]])
        assert not caplog.records
    assert (found.texts, found.lost.total()) == (3, 4)
    assert [record.getMessage() for record in caplog.records] == [
        "4 unknown characters or words in 3 texts, which the model cannot read: '€' '&'"
    ]


def test_a_call_alone_says_it_at_once_and_what_is_known_says_nothing(caplog):
    count_unknown([[], []])
    with warned_once(quiet=True):
        count_unknown([["€"]])
    assert not caplog.records
    count_unknown([["€"]])
    assert "1 unknown characters or words in 1 texts" in caplog.text


def test_of_many_the_most_frequent_are_shown(caplog):
    count_unknown([list("aabcdefghijk")])
    assert caplog.text.rstrip().endswith("read: 'a' 'b' 'c' 'd' 'e' 'f' 'g' 'h' ...")


def test_the_share_of_lines_that_hold_unknown_tokens():
    share = UnknownRate("target lines")
    share.add([[3, 4], [], [0, 5]])
    share.add(iter([[0, 0], [7]]))
    assert str(share) == "; unknown tokens in 40.0 % of target lines"
    assert str(UnknownRate("lines")) == ""
    share.add([[1]] * 10_000)
    assert str(share) == "; unknown tokens in 0.1 % of target lines"


def test_other_things_to_say_of_texts_are_counted_too(caplog):
    with warned_once(quiet=True):
        for cut in (1, 0, 2):
            count_warning("%d of %d texts are empty", cut, 4)
        count_warning("%d of %d texts are too long", 0, 9)
        count_warning("%d texts are cut; the first of", 2, first="9 tokens")
        count_warning("%d texts are cut; the first of", 1, first="7 tokens")
        count_warning("%d texts are odd; the first of", 1, first="3 tokens")
        assert not caplog.records
    assert caplog.messages == [
        "3 of 12 texts are empty",
        "3 texts are cut; the first of 9 tokens",
        "a text of 3 tokens",
    ]


def test_what_will_be_read_again_is_not_counted(caplog):
    with warned_once() as found:
        with suppress(ZeroDivisionError), counted_on_success():
            count_unknown([["€"]])
            count_warning("%d of %d texts are empty", 1, 1)
            raise ZeroDivisionError
        assert (found.texts, found.counts) == (0, {})
        with counted_on_success():
            count_unknown([["€"]])
        assert found.texts == 1
    with counted_on_success():
        count_warning("%d of %d texts are empty", 1, 1)
    assert caplog.messages[1:] == ["1 of 1 texts are empty"]


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "ein Haus@@ boot",
            "hold '@@': such text is cut into subwords already; join it first, with: sed",
        ),
        ("ein Boot@@", "hold '@@'"),
        ("▁ein ▁Haus", "hold '▁': such text is cut into SentencePiece's pieces already; decode"),
        (
            "it &apos;s",
            "hold '&apos;': such text is escaped already; undo it first, with: sacremoses",
        ),
        ("&quot; a &quot;", "hold '&quot;'"),
        ("well @-@ known", "hold '@-@': such text is cut at hyphens already; undo it first"),
    ],
)
def test_text_that_is_cut_or_escaped_already_is_counted(text, said):
    treated = Preprocessed("source texts")
    treated.add([text] * 2 + ["R & D, a@b.c, 5 @ 3.50 &c; no ."] * 98)
    [found] = treated.warnings()
    assert found.startswith(f"2 of 100 source texts {said}")
    treated.add(["plain"] * 101)
    assert list(treated.warnings()) == [], "an exception is no reason to say so"
    assert list(Preprocessed("texts").warnings()) == []


def test_references_that_are_tokenized_are_warned_of_as_sacrebleu_does(caplog):
    warn_of_preprocessed(["a ."] * 99, [["b ."], ["c .", "d ."]] * 50)
    [record] = caplog.records
    assert record.getMessage().startswith(
        "150 of 150 references hold '.': such text is cut at full"
    )
