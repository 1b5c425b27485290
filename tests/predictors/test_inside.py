"""What the views show is what the Python API computes."""

import base64

import numpy as np
import pytest
import torch

import transduct
from tests.predictors.test_language_modeling import make as language_model
from tests.predictors.test_text_classification import make as classifier
from tests.predictors.test_translation import make
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.functional import positions as schemes
from transduct.predictors.inside import (
    NAMES,
    TEMPERATURES,
    counted,
    everything,
    packed,
    pieces,
    settings,
    shown,
    words,
)
from transduct.predictors.translation import Translator
from transduct.segments import Segments

TEXT, TARGET = "a b c d", "d c b a"


@pytest.fixture(scope="module")
def model():
    return make()


def unpacked(found):
    values = np.frombuffer(base64.b64decode(found["data"]), "<i2").astype(float)
    return values.reshape(found["shape"]) * found["scale"] / 32767


def test_packed_numbers_keep_four_digits():
    values = torch.randn(3, 4, 5)
    least = float(values.abs().max()) / 65000
    np.testing.assert_allclose(unpacked(packed(values)), values, atol=least)
    assert packed(torch.zeros(0))["shape"] == [0]
    assert unpacked(packed(torch.zeros(2))).tolist() == [0.0, 0.0]


def test_all_weights_are_those_of_attention(model):
    expected = model.attention(TEXT, TARGET)
    found = shown(model, "sentence", TEXT, TARGET)
    assert found["maps"] == [{"name": n, "heads": len(w)} for n, w in expected.items()]
    assert found["text"] == TARGET
    for name, weights in expected.items():
        one = shown(model, "attention", TEXT, found["tokens"], name)
        assert one["name"] == name
        np.testing.assert_allclose(unpacked(one), weights, atol=2e-5)


def test_rows_are_the_tokens_that_were_being_written(model):
    found = shown(model, "sentence", TEXT, TARGET)
    rows, columns, _ = model.attention(TEXT, TARGET).alignment()
    sides = found["sides"]
    assert [each["text"] for each in sides["written"]["pieces"]] == [*rows, "</s>"]
    assert sides["written"]["pieces"][-1]["special"] == "</s>"
    assert [each["text"] for each in sides["source"]["pieces"][:-1]] == [*columns]
    assert sides["read"]["pieces"][0]["special"] == "<s>"


def test_without_a_target_it_is_the_model_s_own(model):
    own = model.translate([TEXT])[0]
    found = shown(model, "sentence", TEXT)
    assert found["tokens"] == own.tokens
    start = own.tokens[:1]
    other = [*start, 9]
    gone_on = shown(model, "sentence", TEXT, prefix=other)
    assert gone_on["tokens"] == model.translate([TEXT], prefixes=[other])[0].tokens
    assert gone_on["tokens"][: len(other)] == other


def test_the_next_words_are_the_model_s_at_any_temperature(model):
    found = shown(model, "next", TEXT, TARGET)
    trace = model.traced(TEXT, TARGET)
    assert len(found["steps"]) == len(trace.written)
    for step, logits, written in zip(found["steps"], trace.logits, trace.written, strict=True):
        for at in (0, 9, 19):
            chances = (logits.double() / TEMPERATURES[at]).softmax(-1)
            logs = np.array(step["logs"]) / TEMPERATURES[at]
            powers = np.exp(np.array([*logs, step["rest"][at]]))
            np.testing.assert_allclose(powers[:-1] / powers.sum(), chances[step["ids"]], atol=1e-4)
            rest = 1 - float(chances[step["ids"]].sum())
            assert powers[-1] / powers.sum() == pytest.approx(rest, abs=1e-4)
        chosen = step["chosen"]
        assert chosen["id"] == written
        assert chosen["log"] == pytest.approx(float(logits.log_softmax(-1)[written]), abs=1e-5)
        assert chosen["place"] == int((logits > logits[written]).sum())
    total = sum(step["chosen"]["log"] for step in found["steps"])
    assert total == pytest.approx(model.score([TEXT], [TARGET])[0], abs=1e-3)


def test_the_tree_of_the_beam_ends_in_the_translation(model):
    found = shown(model, "beam", TEXT, beam=3)
    best = model.translate([TEXT], beam=3)[0]
    node = found["nodes"][found["winner"]]
    path, at = [], node["parent"]
    while at >= 0:
        path.append(found["nodes"][at]["id"])
        at = found["nodes"][at]["parent"]
    assert path[::-1] == best.tokens
    assert node["score"] == pytest.approx(best.score, abs=1e-4)
    assert found["beam"] == 3
    assert (found["alpha"], found["rule"]) == (1.0, "wu")
    with refusal("found 2 lines or parts; ask for the search of one at a time"):
        shown(model, "beam", "a\nb")
    started = shown(model, "beam", TEXT, prefix=[7])
    assert started["nodes"][0]["id"] == 7


@pytest.mark.parametrize(
    "positions", ["sinusoidal", "learned", "rotary", "alibi", "relative", "bucketed", "none"]
)
@pytest.mark.parametrize("mode", ["add", "attention"])
def test_positions_are_the_model_s(positions, mode):
    model = make(positions=positions, position_mode=mode)
    found = shown(model, "positions", TEXT, TARGET)
    if positions == "none":
        assert found == {"scheme": "none"}
        return
    assert found["scheme"] == positions
    middle = found["distances"].index(0)
    lines, vectors = np.array(found["lines"]), unpacked(found["vectors"])
    assert lines.shape[1] == (33 if positions == "relative" else 2 * 24 - 1)
    if positions == "sinusoidal":
        width = vectors.shape[1]
        expected = schemes.dot_product_by_distance(torch.tensor(found["distances"]), width)
        np.testing.assert_allclose(lines[0], expected, atol=1e-3)
        np.testing.assert_allclose(vectors, schemes.sinusoidal(torch.arange(24), width), atol=1e-3)
    if positions in ("alibi", "bucketed"):
        layer = model.model.encoder[0].self_attention.positions
        biases = layer.bias(torch.zeros(1, 4, 24, 16), 24)
        np.testing.assert_allclose(lines[:, middle:], biases[:, 0].detach(), atol=1e-3)
        np.testing.assert_allclose(vectors, lines, atol=1e-3)
    if positions == "rotary":
        assert lines[0, middle] == pytest.approx(vectors.shape[1])
        assert vectors[0].tolist() == pytest.approx([1.0] * vectors.shape[1], abs=1e-4)
    if positions in ("learned", "relative"):
        assert lines[0, middle] > 0


def test_labels_are_characters_and_words():
    tokenizer = Tokenizer.train(["ab cd ab cd"] * 3, "bpe", 300)
    ids = tokenizer.encode(["ab, oø 한cd"])[0]
    found = pieces(tokenizer, [Tokenizer.BEGIN, *ids, Tokenizer.END])
    assert not any("<0x" in each["text"] for each in found)
    assert "".join(each["text"] for each in found[1:-1]) == "▁ab,▁oø▁한cd"
    [hangul] = [each for each in found if each["text"] == "한"]
    assert hangul["last"] - hangul["first"] == 2
    covered = [n for each in found for n in range(each["first"], each["last"] + 1)]
    assert covered == [*range(len(ids) + 2)]
    shown_words = words(found)
    assert [each["text"] for each in shown_words] == ["<s>", "ab", ",", "oø", "한cd", "</s>"]
    covered = [n for each in shown_words for n in range(each["first"], each["last"] + 1)]
    assert covered == [*range(len(ids) + 2)]
    byte = next(token for token, value in tokenizer.bytes.items() if value == 0xEC)
    assert pieces(tokenizer, [byte]) == [{"text": "", "byte": "EC", "first": 0, "last": 0}]
    letter = next(token for token, value in tokenizer.bytes.items() if value == 0x6F)
    assert pieces(tokenizer, [letter])[0]["text"] == "o"


def test_bytes_are_characters_and_scripts_without_blanks_have_words_of_one_piece():
    tokenizer = Tokenizer.train([""], "byte", 259)
    found = pieces(tokenizer, tokenizer.encode(["ab 한日本"])[0])
    assert [each["text"] for each in found] == ["a", "b", "▁", "한", "日", "本"]
    assert [each["text"] for each in words(found)] == ["ab", "한", "日", "本"]


def test_a_language_model_shows_its_heads_and_its_next_word():
    model = language_model()
    found = shown(model, "sentence", "to be")
    assert found["views"] == ["attention", "next", "positions", "model"]
    expected = model.attention("to be")
    for name, weights in expected.items():
        one = shown(model, "attention", "to be", name=name)
        np.testing.assert_allclose(unpacked(one), weights, atol=2e-5)
    trace = model.traced("to be")
    assert trace.written[-1] == int(trace.logits[-1].argmax())
    with torch.no_grad():
        hidden = model.model.hidden(torch.tensor(trace.read), Segments.of([len(trace.read)]))
    torch.testing.assert_close(model.model.logits(hidden), trace.logits)
    again = shown(model, "sentence", "to be", prefix=[*found["tokens"], 9])
    assert again["tokens"] == [*found["tokens"], 9]
    with refusal("55 tokens, the model takes 16; shorten the text"):
        shown(model, "sentence", "to be " * 9)
    with refusal("this model has no beam to show; ask one that translates"):
        shown(model, "beam", "to be")


def test_a_classifier_shows_its_heads():
    model = classifier("sequence")
    found = shown(model, "sentence", "a b")
    assert found["views"] == ["attention", "positions", "model"]
    assert found["sides"]["source"]["pieces"][0]["special"] == "<s>"
    name = found["maps"][0]["name"]
    one = shown(model, "attention", "a b", name=name)
    np.testing.assert_allclose(unpacked(one), model.attention("a b")[name], atol=2e-5)
    with refusal("this model writes no text; leave the target out"):
        model.traced("a", "b")


def test_what_there_is_not_is_refused(model):
    with refusal(f"unknown view 'x'; known are: {', '.join(NAMES)}"):
        shown(model, "x", TEXT)
    with refusal("unknown name 'x'; known are: encoder.0.self"):
        shown(model, "attention", TEXT, TARGET, "x")
    with refusal("the view needs a name; known are: encoder.0.self"):
        shown(model, "attention", TEXT, TARGET)
    without = Translator.__new__(Translator)
    without.verbs = frozenset()
    with refusal("this model has no attention to show; ask another one"):
        shown(without, "sentence", TEXT)


def test_everything_is_all_views(trained_run):
    model = transduct.load(trained_run)
    found = everything(model, TEXT, trained_run / "model", beam=2)
    maps = [f"attention {each['name']}" for each in found["sentence"]["maps"]]
    assert {*found} == {"sentence", *maps, "next", "beam", "positions", "model"}
    assert found["sentence"]["tokens"] == model.translate([TEXT], beam=2)[0].tokens
    assert found["beam"]["beam"] == 2
    about, weights = settings(trained_run / "model")
    assert found["model"] == counted(about, weights)
    parameters = sum(part["parameters"] for part in found["model"]["parts"])
    assert parameters == sum(each.numel() for each in weights.values())
    assert [len(column) > 1 for column in found["model"]["columns"]] == [True, True]
