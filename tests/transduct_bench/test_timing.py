"""Sides that take turns: who is the best, what becomes of one that fails. Contenders are processes:
few of them."""

import math
from contextlib import contextmanager

import pytest

from tests.interfaces import contenders
from transduct.errors import TransductError
from transduct_bench import timing
from transduct_bench.timing import Row, Side, measure


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 0.02)


def side(name, **arguments):
    return Side(name, getattr(contenders, name), arguments)


def test_alone_there_is_no_ratio():
    row = measure(Row("a row", side("steady", tokens=5)), 1)
    assert (row["name"], row["peer"], row["ratio"]) == ("a row", None, None)
    assert row["ours"] > 0.0
    assert "peer_setting" not in row


def test_the_best_of_a_peers_settings_counts():
    slow, fast, slower = (Side(str(n), contenders.steady, {"tokens": n}) for n in (10, 1000, 1))
    row = measure(Row("a row", side("steady", tokens=100), [slow, fast, slower]), 3)
    assert row["peer_setting"] == "1000"
    assert row["ratio"] == row["ours"] / row["peer"] < 0.5
    assert row["ours"] <= 100 / 0.01
    assert row["memory_mb"] < 100, "its own process, which has not imported torch"


def test_the_median_of_the_rounds_counts(monkeypatch):
    class Contender:
        """Answers at once; its second turn is by far its fastest."""

        answers = iter([(1.0, 7.0), (100.0, 8.0), (5.0, 9.0)])

        def tell(self, what):
            assert what == timing.SHORTEST

        def answer(self):
            return next(self.answers)

    @contextmanager
    def running(*_):
        yield [Contender()]

    monkeypatch.setattr(timing, "_running", running)
    row = measure(Row("a row", side("steady", tokens=5)), 3)
    assert (row["ours"], row["memory_mb"]) == (5.0, 9)


def test_an_error_in_a_contender_reaches_its_parent():
    for name in ("refuses", "refuses_later"):
        with pytest.raises(TransductError, match="the peer is not installed"):
            measure(Row("a row", side(name, message="the peer is not installed")), 1)


def test_a_contender_warns_in_a_line(capfd):
    measure(Row("a row", side("warns", message="few cores")), 1)
    assert set(capfd.readouterr().err.splitlines()) == {"transduct: warning: few cores"}


def test_ctrl_c_is_for_whoever_measures():
    """A contender is ended by its parent, without a traceback of its own."""
    assert measure(Row("a row", side("interrupted", tokens=5)), 1)["ours"] > 0.0


def test_a_contender_that_dies_is_told_of():
    said = "ended without an answer; see its output, or whether memory ran out (fewer --sentences)"
    for name in ("dies", "dies_later"):
        with pytest.raises(TransductError) as caught:
            measure(Row("a row", side("steady", tokens=5), [side(name)]), 2)
        assert str(caught.value) == f"{name}: {said}"


def test_where_it_is_asked_for_a_side_that_fails_leaves_the_others_measured():
    sides, failed = (
        [side("steady", tokens=5), side("refuses", message="not here"), side("dies_later")],
        {},
    )
    speeds, _ = timing.measured(sides, 2, failed=failed)
    assert speeds[0] > 0.0
    assert all(map(math.isnan, speeds[1:]))
    assert failed["refuses"] == "not here"
    assert "dies_later: ended without an answer" in failed["dies_later"]


@pytest.mark.parametrize("together", [False, True])
def test_a_side_that_never_answers_is_ended(together):
    sides, failed = [side("hangs"), side("steady", tokens=5)], {}
    speeds, _ = timing.measured(sides, 1, together, failed, patience=1.5)
    assert failed == {"hangs": "hangs: no answer within 1.5 s"}
    assert speeds[1] > 0.0
