"""Options and inputs of a call."""

from pathlib import Path

import numpy as np
import pytest

from transduct.data.files import Refused
from transduct.data.unknown import met, said_once
from transduct.errors import MissingExtra, TransductError
from transduct.inference.settings import DecodingConfig
from transduct.predictors import options
from transduct.predictors.options import (
    PredictConfig,
    apart,
    check_examples,
    check_inputs,
    growing,
    of_input,
    policy_of,
    with_options,
)


def test_options_of_a_call_are_laid_over_the_section():
    assert with_options(PredictConfig(7), {}) == PredictConfig(7)
    assert with_options(PredictConfig(7), {"batch_tokens": 9}) == PredictConfig(9)
    with pytest.raises(TransductError, match=r"^options: unknown key 'decoding\.batch'"):
        with_options(PredictConfig(), {"batch": 9})
    with pytest.raises(TransductError, match=r"decoding\.batch_tokens is 0, must be at least 1"):
        with_options(PredictConfig(), {"batch_tokens": 0})


@pytest.mark.parametrize("option", [{"top_k": 3}, {"top_p": 0.5}, {"seed": 3}], ids=str)
def test_options_of_draws_need_a_temperature(option):
    with pytest.raises(
        TransductError,
        match=rf"^options: {next(iter(option))} needs sampling; set",
    ):
        options.for_draws(DecodingConfig(), option)
    expected = DecodingConfig(temperature=1.0, **option)
    assert options.for_draws(DecodingConfig(), {"temperature": 1.0, **option}) == expected
    assert options.for_draws(DecodingConfig(temperature=1.0), option) == expected


def test_as_many_samples_are_drawn_as_asked_for_and_a_beam_is_no_narrower():
    drawn, searched = DecodingConfig(beam=5, temperature=1.0), DecodingConfig(beam=5)
    assert [options.asked_for(drawn, {}, count).beam for count in (1, 5, 7)] == [1, 5, 7]
    assert [options.asked_for(searched, {}, count).beam for count in (1, 5, 7)] == [5, 5, 7]
    assert [options.asked_for(config, {"beam": 2}, 7).beam for config in (drawn, searched)] == [
        2,
        2,
    ]


def test_what_is_no_text_is_named():
    check_inputs([])
    check_inputs(["a", "\ufffd ế 😀\0"])
    with pytest.raises(TransductError, match="found a generator, expected a list of texts"):
        check_inputs(each for each in ["a"])
    for wrong, name in ((None, "NoneType"), (b"a", "bytes"), (["a"], "list")):
        with pytest.raises(TransductError, match=f"input 2: found {name}, expected a text"):
            check_inputs(["a", wrong])
    with pytest.raises(
        TransductError,
        match="input 1: contains an unpaired surrogate; remove it",
    ):
        check_inputs(["a \ud800"])
    with pytest.raises(
        TransductError,
        match="input 2: 4,194,305 characters, at most 4,194,304 are taken; give it in parts",
    ):
        check_inputs(["x" * 4_194_304, "x" * 4_194_305])


@pytest.mark.parametrize(
    "wrong",
    [
        ["a"],
        "ab",
        ("a", "b"),
        None,
        (["a"], "b"),
        {"a": 1, "b": 2},
        (None, None),
        (iter("a"), iter("b")),
    ],
)
def test_examples_are_two_lists(wrong):
    check_examples((["a"], ["b"]))
    check_examples([["a"], [["b", "c"]]])
    check_examples((np.array(["a", "b"]), range(2)))
    with pytest.raises(
        TransductError, match=r"found .*, expected two lists: inputs and their answers"
    ):
        check_examples(wrong)
    with pytest.raises(TransductError, match="found 1 inputs and 2 answers; give as many of each"):
        check_examples((["a"], ["b", "c"]))


def test_one_text_is_no_list_of_texts():
    check_inputs(["a b"])
    with pytest.raises(
        TransductError, match=r"found one text, expected a list of texts: write \['a b'\]"
    ):
        check_inputs("a b")
    with pytest.raises(
        TransductError,
        match=r"found one picture, expected a list of pictures: write \[b'1234567890'\]",
    ):
        check_inputs(b"1234567890", "picture")
    for one in (Path("/a.png"), None):
        with pytest.raises(
            TransductError,
            match=r"found one picture, expected a list of pictures: write \[(Posix|None)",
        ):
            check_inputs(one, "picture")


@pytest.mark.parametrize(
    "error, said",
    [
        (TransductError("odd"), "input 3: odd"),
        (TransductError("odd", file="a.png"), "a.png: odd"),
        (MissingExtra("no Pillow"), "no Pillow"),
    ],
    ids=str,
)
def test_an_error_that_names_no_file_is_about_the_input_that_is_read(error, said):
    with pytest.raises(type(error)) as caught, of_input(2):
        raise error
    assert str(caught.value) == said


def doubled(given):
    """Doubles texts; a numbered error for "odd", one without a number for "broken"."""
    if "odd" in given:
        raise TransductError("odd", input=given.index("odd"))
    if "broken" in given:
        raise TransductError("a file is broken")
    if "panic" in given:
        raise BaseException("a panic")
    return [text * 2 for text in given if text != "lost"]


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("seed", range(4))
def test_every_input_has_its_answer_or_its_error(count, seed):
    random = np.random.default_rng(seed)
    given = [str(each) for each in random.choice(["a", "b", "odd", "broken"], count)]
    found = apart(doubled, given)
    for number, (text, output) in enumerate(zip(given, found, strict=True), 1):
        expected = {"odd": f"input {number}: odd", "broken": "a file is broken"}
        assert str(output) == expected.get(text, text * 2)
        assert isinstance(output, TransductError) == (text in expected)


def test_an_error_without_a_number_is_of_all_inputs_of_its_owner():
    found = apart(doubled, ["a", "broken", "b", "c", "odd"], ["x", "x", "y", "y", "x"])
    assert [str(each) for each in found] == [
        *("a file is broken", "a file is broken", "bb", "cc", "input 5: odd"),
    ]


def test_what_is_no_answer_is_raised():
    with pytest.raises(RuntimeError, match="found 1 outputs for 2 inputs"):
        apart(doubled, ["a", "lost"])
    with pytest.raises(BaseException, match="a panic"):
        apart(doubled, ["a", "panic"])
    first, panic = apart(doubled, ["a", "panic"], None, BaseException)
    assert (first, str(panic)) == ("aa", "a panic")


def test_what_is_read_again_is_counted_once(caplog):
    def counting(given):
        met([["€"]] * len(given))
        return doubled(given)

    with said_once() as found:
        apart(counting, ["a", "odd", "b", "broken", "c"])
    assert found.texts == 3


def test_groups_grow():
    assert [len(group) for group in growing(range(60), 16)] == [1, 2, 4, 8, 16, 16, 13]
    assert [*growing("abcde", 4, 4)] == [["a", "b", "c", "d"], ["e"]]
    assert [*growing([], 4)] == []


def test_what_is_broken_is_skipped_where_either_says_so():
    assert policy_of(None) == policy_of(Refused("stop")) == "stop"
    assert policy_of(None, "skip") == policy_of(Refused("skip")) == "skip"
