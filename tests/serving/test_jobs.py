"""Requests are cut into pieces whose answers are those of the whole, with their costs in tokens."""

from random import Random

import pytest

import transduct
from transduct.errors import TransductError
from transduct.serving.jobs import BESIDE, Job, translation


@pytest.fixture(scope="module")
def model(trained_run):
    return transduct.load(trained_run)


def answers(job):
    """The answers, each piece worked on alone, the last first."""
    outputs = [job.work([piece])[0] for piece in reversed(job.pieces)]
    return job.join(outputs[::-1])


def test_a_piece_for_each_input():
    job = Job.of_inputs("k", ["a", "b"], [1, 2], lambda texts: [text * 2 for text in texts])
    assert answers(job) == ["aa", "bb"]
    assert (job.inputs, list(job.owners)) == (2, [0, 1])


def test_translations_in_pieces_are_those_of_the_whole(model):
    texts = ["a b c", "", "d e f g " * 30, " ", "h"]
    job = translation(model, texts, None, {"beam": 2}, lambda found: found.text)
    assert answers(job) == [found.text for found in model.translate(texts, beam=2)]
    assert job.inputs == 5
    assert sorted(set(job.owners)) == [0, 2, 4]
    longest = (2 * model.longest + BESIDE) * 2
    assert max(job.costs) == longest
    assert job.costs[0] == (2 * 3 + BESIDE) * 2, "what is read and what is expected, for each row"


@pytest.mark.parametrize("texts", [[""], [" ", "\n"]])
def test_blank_texts_are_answered_by_the_worker_too(model, texts):
    job = translation(model, texts, None, {}, lambda found: found)
    assert len(job.pieces) == 1
    assert answers(job) == model.translate(texts)


def test_no_text_has_no_piece(model):
    assert translation(model, [], None, {}, str).pieces == []


def test_a_prefix_that_is_wrong_is_the_error_of_its_text_alone(model):
    texts, prefixes = ["a b", "c d", "a", "b"], ["b", "☃", "", "☃"]
    job = translation(model, texts, prefixes, {}, lambda found: found.text)
    found = answers(job)
    assert [found[0], found[2]] == model.predict(["a b", "a"], prefixes=["b", ""])
    for number in (1, 3):
        assert isinstance(found[number], TransductError)
        assert str(found[number]).startswith(f"prefix {number + 1}: holds what no translation does")


def test_any_mix_of_blank_long_and_broken_texts_is_answered_each_by_itself(model):
    draw = Random(1)
    items = [("", "b"), ("\n \n", ""), ("a b", ""), ("d e f g " * 9, "b"), ("* a\n\n- b c", "")]
    items += [("a", "☃"), ("", "☃"), ("\0 a\u2028b", ""), ("한☃", "")]
    alone = {}
    for text, prefix in items:
        job = translation(model, [text], [prefix], {"beam": 1}, lambda found: found.text)
        alone[text, prefix] = str(answers(job)[0])
    for _ in range(6):
        mix = draw.choices(items, k=draw.randint(1, 7))
        texts, prefixes = zip(*mix)
        job = translation(model, texts, prefixes, {"beam": 1}, lambda found: found.text)
        for number, (item, found) in enumerate(zip(mix, answers(job), strict=True), 1):
            assert isinstance(found, TransductError) == ("☃" in item[1])
            assert str(found).replace(f"prefix {number}:", "prefix 1:") == alone[item]


def test_what_is_wrong_with_the_call_is_raised(model):
    with pytest.raises(TransductError, match=r"unknown key 'decoding\.beem'"):
        translation(model, ["a"], None, {"beem": 2}, str)
