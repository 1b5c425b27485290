"""Options and inputs of a call."""

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refusal
from transduct.data.files import Refused
from transduct.inference.settings import DecodingConfig
from transduct.predictors import options
from transduct.predictors.options import (
    PredictConfig,
    check_examples,
    check_inputs,
    check_lengths,
    policy_of,
    with_options,
)


def test_options_of_a_call_are_laid_over_the_section():
    assert with_options(PredictConfig(7), {}) == PredictConfig(7)
    assert with_options(PredictConfig(7), {"batch_tokens": 9}) == PredictConfig(9)
    with refusal(r"^options: unknown key 'decoding\.batch'"):
        with_options(PredictConfig(), {"batch": 9})
    with refusal(r"decoding\.batch_tokens is 0, must be at least 1"):
        with_options(PredictConfig(), {"batch_tokens": 0})


@pytest.mark.parametrize("option", [{"top_k": 3}, {"top_p": 0.5}, {"seed": 3}], ids=str)
def test_options_of_draws_need_a_temperature(option):
    with refusal(rf"^options: {next(iter(option))} needs sampling; set"):
        options.for_draws(DecodingConfig(), option)
    expected = DecodingConfig(temperature=1.0, **option)
    assert options.for_draws(DecodingConfig(), {"temperature": 1.0, **option}) == expected
    assert options.for_draws(DecodingConfig(temperature=1.0), option) == expected


def test_as_many_samples_are_drawn_as_asked_for_and_a_beam_is_no_narrower():
    drawn, searched = DecodingConfig(beam=5, temperature=1.0), DecodingConfig(beam=5)
    assert [options.asked_for(drawn, {}, count).beam for count in (1, 5, 7)] == [1, 5, 7]
    assert [options.asked_for(searched, {}, count).beam for count in (1, 5, 7)] == [5, 5, 7]
    for config in (drawn, searched):
        assert options.asked_for(config, {"beam": 2}, 7).beam == 2


def test_what_is_no_text_is_named():
    check_inputs([])
    check_inputs(["a", "\ufffd ế 😀\0"])
    with refusal("found a generator, expected a list of texts"):
        check_inputs(each for each in ["a"])
    for wrong, name in ((None, "NoneType"), (b"a", "bytes"), (["a"], "list")):
        with refusal(f"input 2: found {name}, expected a text"):
            check_inputs(["a", wrong])
    with refusal("input 1: contains an unpaired surrogate; remove it"):
        check_inputs(["a \ud800"])
    with refusal("input 2: 4,194,305 characters, at most 4,194,304 are taken; give it in parts"):
        check_inputs(["x" * 4_194_304, "x" * 4_194_305])


def test_the_first_input_that_is_too_long_is_named():
    check_lengths([[1, 2], [], [3]], 2)
    with refusal("^pair 2: 3 tokens, the model takes 2; shorten it$"):
        check_lengths([[1], [1, 2, 3], [1, 2, 3, 4]], 2, "pair")


ODD = [["a"], "ab", ("a", "b"), None, (["a"], "b"), {"a": 1, "b": 2}, (None, None)]


@pytest.mark.parametrize("wrong", [*ODD, (iter("a"), iter("b"))])
def test_examples_are_two_lists(wrong):
    check_examples((["a"], ["b"]))
    check_examples([["a"], [["b", "c"]]])
    check_examples((np.array(["a", "b"]), range(2)))
    with refusal(r"found .*, expected two lists: inputs and their answers"):
        check_examples(wrong)
    with refusal("found 1 inputs and 2 answers; give as many of each"):
        check_examples((["a"], ["b", "c"]))


def test_one_text_is_no_list_of_texts():
    check_inputs(["a b"])
    with refusal(r"found one text, expected a list of texts: write \['a b'\]"):
        check_inputs("a b")
    with refusal(r"found one picture, expected a list of pictures: write \[b'1234567890'\]"):
        check_inputs(b"1234567890", "picture")
    for one in (Path("/a.png"), None):
        with refusal(r"found one picture, expected a list of pictures: write \[(Posix|None)"):
            check_inputs(one, "picture")


def test_what_is_broken_is_skipped_where_either_says_so():
    assert policy_of(None) == policy_of(Refused("stop")) == "stop"
    assert policy_of(None, "skip") == policy_of(Refused("skip")) == "skip"
