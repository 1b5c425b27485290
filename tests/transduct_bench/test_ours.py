"""Our side of the benchmark: models of drawn weights that load like any other, and exactly the work
asked for."""

import json

import pytest
import torch

import transduct
from transduct.errors import TransductError
from transduct.inference import engine
from transduct.interop import int8
from transduct.predictors import base as predictors_base
from transduct_bench.ours import decoding, read_sentences, training, training_batches, untrained

SOURCES, LENGTHS = [[3, 4], [5, 6, 7], [8, 9, 10], [3, 11, 12, 13]], [5, 5, 7, 7]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same model in both precisions."""
    folder = tmp_path_factory.mktemp("models")
    untrained(folder / "float32", "tiny", 40)
    int8.convert(folder / "float32", folder / "int8")
    return folder


@pytest.fixture
def outputs(monkeypatch):
    """What search finds."""
    held, find = [], engine.find

    def recorded(*given, **named):
        found = find(*given, **named)
        held.extend(hypotheses[0].tokens for hypotheses in found)
        return found

    monkeypatch.setattr(engine, "find", recorded)
    return held


def test_an_untrained_model_is_read_like_any_other(models):
    model = transduct.load(str(models / "float32"), "cpu")
    [found] = model.translate(["w1 w2 w3"], beam=2)
    assert set(found.text.split()) <= {f"w{number}" for number in range(37)}
    config = json.loads((models / "float32" / "config.json").read_text())
    assert (config["model"]["target_size"], config["model"]["d_model"], config["family"]) == (
        40,
        128,
        "transformer",
    )
    assert (models / "float32" / "card.md").read_text() == "Of drawn weights.\n"


def test_it_is_the_same_whenever_it_is_drawn(models, tmp_path):
    untrained(tmp_path / "again", "tiny", 40)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (models / "float32" / name).read_bytes()


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize(
    "model, precision", [("float32", "float32"), ("float32", "bfloat16"), ("int8", "int8")]
)
def test_exactly_as_many_tokens_are_written_as_asked(models, outputs, model, precision, beam):
    run = decoding(str(models / model), SOURCES, LENGTHS, beam, precision, "cpu")
    assert run() == sum(LENGTHS)
    assert [len(tokens) + 1 for tokens in outputs] == LENGTHS, "the end is a token"
    assert not {0, 1, 2} & {token for tokens in outputs for token in tokens}
    assert run() == sum(LENGTHS), "again"


@pytest.mark.parametrize("beam", [1, 3])
def test_steps_may_be_captured(models, outputs, beam):
    given = str(models / "float32"), SOURCES, LENGTHS, beam, "float32", "cpu"
    assert decoding(*given)() == decoding(*given, captured=True, batch_tokens=64)() == sum(LENGTHS)
    assert outputs[:4] == outputs[4:]


def test_left_alone_it_ends_where_it_ends(models, outputs):
    run = decoding(str(models / "float32"), SOURCES, None, 1, "float32", "cpu")
    assert run() == sum(len(tokens) + 1 for tokens in outputs)


def test_sentences_are_lines_that_hold_something(models, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("w1 w2\n\n  \nw3 w4\u2028w5\n")
    assert [len(ids) for ids in read_sentences(str(models / "float32"), text)] == [2, 3]


def test_long_sentences_are_decoded_as_far_as_the_model_reads(models, tmp_path):
    model, text = str(models / "float32"), tmp_path / "text.txt"
    text.write_text("w1 " * 5000 + "\n")
    [ids] = read_sentences(model, text)
    assert len(ids) == predictors_base.load(model).longest
    assert decoding(model, [ids], None, 1, "float32", "cpu")() <= len(ids) + 1


@pytest.mark.parametrize(
    "content, message",
    [(None, "text.txt"), ("\n \n", "text.txt: holds no sentence; give a text to translate")],
)
def test_a_text_without_sentences_is_refused(models, tmp_path, content, message):
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_text(content)
    with pytest.raises(TransductError, match=message):
        read_sentences(str(models / "float32"), text)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_token_is_learnt_from(precision):
    batches = [([[3, 4], [5, 6, 7]], [[8, 9], [10, 11, 12]]), ([[4]], [[5, 6]])]
    before = torch.get_rng_state()
    run = training("tiny", 40, batches, precision, "cpu")
    assert run() == run() == 3 + 4 + 3, "the end of each target is a token"
    torch.set_rng_state(before)


def test_batches_filled_up_count_no_filler():
    batches = [([[3, 4], [5, 6, 7]], [[8, 9], [10, 11, 12]]), ([[4]], [[5, 6]])]
    run = training("tiny", 40, batches, "float32", "cpu", captured=True)
    assert run() == run() == 3 + 4 + 3


def test_a_side_has_as_many_threads_as_it_is_given(tmp_path):
    untrained(tmp_path / "model", "tiny", 30)
    before = torch.get_num_threads()
    try:
        decoding(str(tmp_path / "model"), [[3, 4]], [3], 1, "float32", "cpu", threads=3)
        assert torch.get_num_threads() == 3
        training("tiny", 30, [([[3, 4]], [[5]])], "float32", "cpu", threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_training_has_full_batches_of_sentences_of_like_length():
    sources, lengths = [[3] * (1 + i % 20) for i in range(200)], [2 + i % 20 for i in range(200)]
    batches = training_batches(sources, lengths, 40, 100, 4)
    assert len(batches) == 4
    for given, targets in batches:
        assert [len(target) for target in targets] == list(map(len, given)), (
            "a target's length includes its end"
        )
        assert all(3 <= token < 40 for target in targets for token in target)
        assert 90 < sum(len(target) + 1 for target in targets) <= 100
        assert max(map(len, given)) - min(map(len, given)) <= 3


def test_a_few_sentences_are_one_batch_that_is_not_full():
    [(given, _)] = training_batches([[3, 4], [5]], [3, 2], 40, 100, 4)
    assert sorted(given) == [[3, 4], [5]]
