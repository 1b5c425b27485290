"""A model is taken apart without losing or counting twice a parameter, and drawn with all its
parts."""

import pytest

from tests.helpers import tiny
from transduct.drawing.models import aligned, described, drawing, parts
from transduct.drawing.svg import Rectangle, Text
from transduct.models import bert, gpt, rnn
from transduct.storage import weights_of

MODELS = {
    "transformer": lambda: tiny(encoder_layers=3),
    "rnn": lambda: rnn.RNN(rnn.Config(9, 9, d_model=8)),
    "bert": lambda: bert.Bert(
        bert.Config(9, d_model=8, num_heads=2, d_ff=16, layers=2, max_length=8)
    ),
    "gpt": lambda: gpt.GPT(gpt.Config(9, d_model=8, num_heads=2, d_ff=16, layers=3, max_length=8)),
}


@pytest.mark.parametrize("family", MODELS)
def test_all_parameters_are_counted_once(family):
    model = MODELS[family]()
    total = sum(weight.numel() for weight in model.parameters())
    weights = weights_of(model)
    assert sum(part.parameters for part in parts(weights)) == total
    assert described(weights)[-1] == ["all", "", "", f"{total:,}"]


def test_layers_of_a_stack_are_one_part():
    found = {part.name: part for part in parts(weights_of(tiny(encoder_layers=3)))}
    query = found["encoder.*.self_attention.query"]
    assert (query.shape, len(query.layers), query.parameters) == ("64 x 16", 3, 3 * (64 * 16 + 64))
    assert not any(char.isdigit() for name in found for char in name)


@pytest.mark.parametrize("family", MODELS)
def test_a_drawing_names_every_module_within_the_page(family):
    model = MODELS[family]()
    picture = drawing(weights_of(model), "a title")
    texts = [shape.text for shape in picture.shapes if isinstance(shape, Text)]
    for name in {name.split(".")[0] for name in weights_of(model)}:
        assert any(text.startswith(f"{name} ") for text in texts), name
    for shape in picture.shapes:
        if isinstance(shape, Rectangle):
            assert 0 <= shape.x <= shape.x + shape.width <= picture.width
            assert 0 <= shape.y <= shape.y + shape.height <= picture.height


def test_a_drawing_has_two_layers_of_a_stack_and_says_how_many_there_are():
    texts = [
        s.text for s in drawing(weights_of(tiny(encoder_layers=3))).shapes if isinstance(s, Text)
    ]
    assert [text for text in texts if text.startswith("encoder ")] == ["encoder 1", "encoder 2"]
    assert any(text.startswith("... 3 layers in all") for text in texts)
    assert not any(text.startswith("... 2 layers") for text in texts)


def test_columns_align_with_hangul():
    assert [*aligned([["손실", "a"], ["1", "bb"]])] == ["손실   a", "   1  bb"]
