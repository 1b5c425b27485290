"""The translator of the course in float32 is the one that `transduct translate` takes."""

import pytest
import torch
from transduct_course import ours, small


def test_it_writes_what_the_chapters_say_of_our_sentence():
    assert ours.translator().translate([ours.SENTENCE])[0].text == ours.TRANSLATION
    batch = ours.batch()
    assert torch.equal(small.predicted(ours.model(), batch), batch.outputs)
    assert ours.pieces(batch.source)[-1] == ours.pieces(batch.outputs)[-1]  # the end


@torch.no_grad()
def test_vectors_and_weights_are_those_of_the_model():
    batch, model = ours.batch(), ours.model()
    first, *_, last = ours.vectors()
    assert first.shape == (len(batch.source), model.config.d_model)
    memory = model.encode(batch.source, batch.source_segments)
    torch.testing.assert_close(model.encoder_norm(last), memory)
    for name, weights in ours.maps().items():
        assert weights.sum(-1).flatten().tolist() == pytest.approx([1.0] * weights[..., 0].numel())
        assert name in model.attention_names
