"""Every error is one line; warnings about texts are counted and come once a run."""

import logging
import os
import pickle
from contextlib import suppress

import pytest

from transduct.errors import (
    MissingExtra,
    NotFinite,
    TrainingFailed,
    TransductError,
    UnknownKey,
    WrongData,
    count_unknown,
    count_warning,
    counted_on_success,
    needing,
    no_model,
    placing,
    require,
    rewording,
    warned_once,
)


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x0bb"])
def test_an_error_is_one_line(text):
    assert str(TransductError(text)) == "a b"


@pytest.mark.parametrize("kind", [TransductError, TrainingFailed])
def test_what_a_terminal_would_obey_is_spelled_out(kind):
    text = "a\x1b[31mb\x9b2J\x07\u202ec\td\r"
    assert str(kind(text)) == r"a\x1b[31mb\x9b2J\x07\u202ec" + "\td"


def test_what_is_logged_is_spelled_out(caplog):
    logging.getLogger("transduct").warning("%s is %d", "a\x1b]0;b", 7)
    assert caplog.messages == [r"a\x1b]0;b is 7"]


@pytest.mark.parametrize(
    "error, package, said",
    [
        (
            ModuleNotFoundError("no module", name="matplotlib.figure"),
            "matplotlib",
            "matplotlib is not installed",
        ),
        (ModuleNotFoundError("no module", name="matplotlib"), None, "matplotlib is not installed"),
        (
            ImportError("libpng.so: no such file"),
            None,
            "plots cannot be imported (libpng.so: no such file)",
        ),
    ],
)
def test_a_missing_package_comes_with_the_line_that_installs_it(error, package, said):
    with pytest.raises(MissingExtra) as caught, needing("plots", package):
        raise error
    assert str(caught.value) == f"{said}; run: pip install 'transduct[plots]'"
    assert caught.value.__cause__ is error


def test_what_is_installed_is_imported():
    with needing("plots"):
        import json
    assert json.loads("1") == 1


FACTS = [
    ({}, "odd: {key}"),
    ({"input": 2}, "input 3: odd: {key}"),
    ({"input": 0, "unit": "prefix"}, "prefix 1: odd: {key}"),
    ({"file": "a.txt"}, "a.txt: odd: {key}"),
    ({"file": "a.txt", "line": 5}, "a.txt:5: odd: {key}"),
    ({"file": "a.txt", "line": 5, "input": 4, "unit": "row"}, "a.txt:5: row 5: odd: {key}"),
    ({"key": "model.tie"}, "recipe: odd: model.tie"),
    ({"key": "model.tie", "file": "a.yaml", "line": 3}, "a.yaml:3: odd: model.tie"),
    ({"key": ""}, "recipe: odd: the recipe"),
]


@pytest.mark.parametrize("facts, said", FACTS, ids=str)
def test_the_sentence_is_made_of_the_message_and_the_facts(facts, said):
    said = said if "key" in facts else said.replace("{key}", "X")
    message = "odd: {key}" if "key" in facts else "odd: X"
    assert str(TransductError(message, **facts)) == said


def test_who_knows_more_raises_the_same_error_with_more_facts():
    class Odd(TransductError):
        pass

    first = Odd("{key} is odd", key="tie")
    within = first.within("model").within("stages[1]").at(file="a.yaml", line=2)
    assert type(within) is Odd
    assert str(within.adding("; set it")) == "a.yaml:2: stages[1].model.tie is odd; set it"
    assert (str(first), first.problem) == ("recipe: tie is odd", "tie is odd")
    assert not first.skippable
    assert first.at(skippable=True).skippable
    assert str(TransductError("odd", key="").within("stages[0]")) == "recipe: odd"


def test_an_error_of_a_library_is_reworded_and_placed():
    with (
        pytest.raises(TransductError, match=r"^a.yaml:2: no number \(invalid .*'x'\); give one$"),
        placing("a.yaml", 2),
        rewording((KeyError, ValueError), "no number ({error}); give one"),
    ):
        int("x")
    require(True, "even")
    with pytest.raises(TransductError, match=r"^b: odd$"), placing("a.yaml"):
        require([], "odd", file="b")


def test_how_to_go_on_with_a_run_is_a_fact():
    error = TrainingFailed("stopped; go on with {resume}")
    assert str(error) == "stopped; go on with --resume"
    error.resume = "the same command"
    assert str(error) == "stopped; go on with the same command"


@pytest.mark.parametrize(
    "error",
    [
        TransductError("a", input=1, file="b"),
        UnknownKey("{key}", key="c").at(line=4),
        NotFinite().at(input=3),
        WrongData("b"),
        TrainingFailed("c"),
        MissingExtra("d"),
    ],
    ids=repr,
)
def test_errors_pass_between_processes(error):
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_wrong_data_is_an_error_like_any_other():
    with pytest.raises(TransductError, match="row 1"):
        raise WrongData("row 1 is no text")


def test_where_no_model_is_the_nearest_folder_is_named(tmp_path):
    (tmp_path / "de-en").mkdir()
    (tmp_path / "file").touch()
    for name, said in (
        ("de-em", f"no such folder; did you mean {tmp_path / 'de-en'}?"),
        ("other", "no such folder; give a run or a model directory"),
        ("a/b/c", "no such folder; give a run or a model directory"),
        ("file", "a file; give a run or a model directory"),
    ):
        assert str(no_model(tmp_path / name)) == f"{tmp_path / name}: {said}"
    os.mkfifo(tmp_path / "pipe")
    assert ": no folder; give a run" in str(no_model(tmp_path / "pipe"))


# warnings


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
