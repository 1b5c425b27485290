"""A model is taken apart, and shared weights are noticed."""

from transduct_course.architecture import own_weights

from tests.helpers import tiny


def test_shared_weights_are_noticed():
    model = tiny(encoder_layers=2)
    assert own_weights(model, "encoder.*.feed_forward.inner") is True
    assert own_weights(model, "source_embedding") is None
    model.encoder[1].self_attention.key = model.encoder[0].self_attention.key
    assert own_weights(model, "encoder.*.self_attention.value") is True
