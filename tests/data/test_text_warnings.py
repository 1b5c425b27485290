"""The share of unknown tokens, and texts that are cut already."""

import pytest

from transduct.data.text_warnings import Preprocessed, UnknownRate, warn_of_preprocessed


def test_the_share_of_lines_that_hold_unknown_tokens():
    share = UnknownRate("target lines")
    share.add([[3, 4], [], [0, 5]])
    share.add(iter([[0, 0], [7]]))
    assert str(share) == "; unknown tokens in 40.0 % of target lines"
    assert str(UnknownRate("lines")) == ""
    share.add([[1]] * 10_000)
    assert str(share) == "; unknown tokens in 0.1 % of target lines"


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
