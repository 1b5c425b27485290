"""What a vocabulary lacks is counted from the first character on, and said once a run."""

from transduct.data.unknown import Share, met, said_once


def test_a_run_says_once_what_is_unknown(caplog):
    with said_once() as found:
        met([["€"], [], ["&", "€"]])
        met([["€"]])
        assert not caplog.records
    assert (found.texts, found.lost.total()) == (3, 4)
    assert [record.getMessage() for record in caplog.records] == [
        "4 unknown characters or words in 3 texts, which the model cannot read: '€' '&'"
    ]


def test_a_call_alone_says_it_at_once_and_what_is_known_says_nothing(caplog):
    met([[], []])
    with said_once(quiet=True):
        met([["€"]])
    assert not caplog.records
    met([["€"]])
    assert "1 unknown characters or words in 1 texts" in caplog.text


def test_of_many_the_most_frequent_are_shown(caplog):
    met([list("aabcdefghijk")])
    assert caplog.text.rstrip().endswith("read: 'a' 'b' 'c' 'd' 'e' 'f' 'g' 'h' ...")


def test_the_share_of_lines_that_hold_unknown_tokens():
    share = Share("target lines")
    share.add([[3, 4], [], [0, 5]])
    share.add(iter([[0, 0], [7]]))
    assert str(share) == "; unknown tokens in 40.0 % of target lines"
    assert str(Share("lines")) == ""
    share.add([[1]] * 10_000)
    assert str(share) == "; unknown tokens in 0.1 % of target lines"
