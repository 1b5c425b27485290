"""Keys: who may ask, how often and how much."""

import pytest

from transduct.errors import TransductError
from transduct.serving import keys
from transduct.serving.keys import Keys, of_header
from transduct.serving.requests import Problem


def test_keys_stand_one_a_line_with_their_limits(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text("\ufeffone\n\n  two name=weblate rate=2/minute quota=10/day\n")
    known = Keys(path)
    assert [(key.text, key.name) for key in known.keys] == [("one", "line 1"), ("two", "weblate")]
    assert known.find("three") is known.find("é") is known.find("") is None
    key = known.find("two")
    monkeypatch.setattr(keys, "time", lambda: 120.0)
    key.enter()
    key.enter()
    with pytest.raises(Problem, match="this key may send 2 requests a minute") as problem:
        key.enter()
    assert (problem.value.status, problem.value.seconds) == (429, 60)
    key.charge(7)
    with pytest.raises(Problem, match="3 characters left, and the request 4") as problem:
        key.charge(4)
    assert (problem.value.status, problem.value.seconds) == (456, 86_280)
    path.write_text("two rate=9/minute quota=10/day\nthree\n")
    known.read()
    assert known.find("one") is None
    assert (known.find("two").rate.used, known.find("two").quota.used) == (2, 7)
    monkeypatch.setattr(keys, "time", lambda: 86_400.0)
    known.find("two").charge(10)  # another day


@pytest.mark.parametrize(
    "line", ["a b", "ä", "a rate=1/year", "a quota=x/day", "a name=", "a rate=1"]
)
def test_a_line_that_is_wrong_is_named_and_the_keys_stay(tmp_path, line):
    path = tmp_path / "keys"
    path.write_text("one\n")
    known = Keys(path)
    path.write_text(f"two\n{line}\n")
    with pytest.raises(TransductError, match="keys:2: not a key; write letters and digits, then"):
        known.read()
    assert known.find("one") is not None


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer one", "one"),
        ("bearer  one", "one"),
        ("DeepL-Auth-Key one", "one"),
        ("Basic one", ""),
        ("one", ""),
        ("", ""),
    ],
)
def test_a_key_stands_in_the_header_of_either_scheme(header, key):
    assert of_header(header) == key
