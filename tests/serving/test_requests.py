"""Validation of requests; `test_service.py` tests the rest over HTTP."""

import re

import pytest

from transduct.errors import TransductError
from transduct.serving.requests import checked_options, media_type, parsed_options, read, value_of


@pytest.mark.parametrize(
    ("header", "kind", "charset"),
    [
        ("application/json", "application/json", ""),
        ("Application/JSON", "application/json", ""),
        ('application/json ; Charset="UTF-8"', "application/json", "utf-8"),
        ("application/jsonp", "application/jsonp", ""),
        ("", "", ""),
    ],
)
def test_the_type_of_a_body_is_known_however_it_is_written(header, kind, charset):
    assert media_type(header) == (kind, charset)


def test_numbers_that_are_none_are_no_json():
    assert read(b'{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    with pytest.raises(ValueError, match="Infinity is not a number"):
        read(b"[Infinity]")


def test_options_in_a_query_are_numbers_or_words():
    given = ["0.3", "2", "true", "null", "tree", "NaN", "0x1f", "1_0", "[" * 9_000]
    assert [value_of(text) for text in given] == [0.3, 2, True, None, *given[4:]]


def test_options_that_anyone_may_set_are_left_as_they_are():
    options = {
        "beam": 16,
        "temperature": 0.7,
        "seed": 10**12,
        "shortlist": True,
        "constraint": "tree",
        "top_p": None,
    }
    assert checked_options(options) == options
    with pytest.raises(TransductError, match=r"seed is 1.*, expected a number or a short word"):
        checked_options({"seed": 10**40})
    with pytest.raises(
        TransductError, match="found 60 options, more than there are; leave out those"
    ):
        checked_options(dict.fromkeys(map(str, range(60)), 1))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"n_best": 2.0}, "n_best is 2.0, expected a whole number"),
        ({"beam": True}, "beam is True, expected a whole number"),
        ({"samples": 17}, "samples is 17, must be from 1 to 16"),
        ({"length": 2001}, "length is 2001, must be from 1 to 2000"),
        ({"max_length": 2001}, "max_length is 2001, must be from 1 to 2000"),
        ({"self": 1}, "'self' is not an option; leave it out"),
        ({"workers": 9}, "'workers' is reserved for the server's operator; leave it out"),
        ({"top_k": [1]}, "top_k is [1], expected a number or a short word"),
        ({"top_k": 10**99}, f"top_k is 1{39 * '0'}, expected a number or a short word"),
        ({"temperature": 1e3}, "temperature is 1000.0, must be between -100.0 and 100.0"),
        ({"temperature": 10**39}, f"temperature is {10**39}, must be between -100.0"),
    ],
)
def test_options_beyond_the_limits_of_a_server_are_refused(options, said):
    with pytest.raises(TransductError, match=re.escape(said)):
        checked_options(options)


def test_options_of_a_command_are_values_and_none_is_what_they_go_with():
    assert parsed_options(["beam=1", "length_penalty=0.5"]) == {"beam": 1, "length_penalty": 0.5}
    with pytest.raises(TransductError, match="'self' is not an option; leave it out"):
        parsed_options(["self=3"])


@pytest.mark.parametrize("name", ["beam", "n_best", "samples", "length"])
@pytest.mark.parametrize(
    "value, found", [("5", "the text '5'"), (2.5, "2.5"), (True, "True"), (None, "None")]
)
def test_an_option_of_another_type_is_told_its_type_and_not_its_range(name, value, found):
    with pytest.raises(
        TransductError, match=f"{name} is {found}, expected a whole number, without quotes"
    ):
        checked_options({name: value})
    with pytest.raises(TransductError, match=f"{name} is 0, must be from 1 to"):
        checked_options({name: 0})
