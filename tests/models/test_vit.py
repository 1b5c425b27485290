"""ViT equals Hugging Face's with its weights, keeps pictures separate, and depends on the positions
of patches."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import TINY, randomise
from transduct.functional.positions import sinusoidal_2d
from transduct.models.vit import Config, ViT

POOLS, POSITIONS, BACKBONES = ["class", "mean"], ["none", "learned", "sinusoidal_2d"], [[], [4, 8]]


def tiny(seed=1, **changes):
    """Two layers of width 16 over 3 x 3 patches, ready to be used."""
    torch.manual_seed(seed)
    shape = {**TINY, "image_size": 12, "patch_size": 4, "layers": 2, "labels": 3}
    return randomise(ViT(Config(**{**shape, **changes})).eval(), seed)


def pictures(count=2, side=12, seed=1):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def scores(model, given):
    return model.classify(*model.encode(given))


# Hugging Face's names of a part, and ours.
LAYER = {
    "attention.q_proj": "self_attention.query",
    "attention.k_proj": "self_attention.key",
    "attention.v_proj": "self_attention.value",
    "attention.o_proj": "self_attention.output",
    "layernorm_before": "around_attention.norm",
    "layernorm_after": "around_feed_forward.norm",
    "mlp.fc1": "feed_forward.inner",
    "mlp.fc2": "feed_forward.outer",
}
PARTS = {
    "vit.embeddings.cls_token": "class_token",
    "vit.embeddings.position_embeddings": "positions",
    "vit.embeddings.patch_embeddings.projection": "patches.projection",
    "vit.layernorm": "encoder_norm",
    "classifier": "output",
}


def our_name(name):
    """The parameter of ours that holds what theirs of this name holds."""
    if name in PARTS:
        return PARTS[name]
    part, _, kind = name.rpartition(".")
    if part in PARTS:
        return f"{PARTS[part]}.{kind}"
    number, _, part = part.removeprefix("vit.layers.").partition(".")
    return f"encoder.{number}.{LAYER[part]}.{kind}"


def test_logits_and_gradients_are_those_of_hugging_face():
    transformers = pytest.importorskip("transformers", reason="parity with ViT needs transformers")
    config = transformers.ViTConfig(
        image_size=12,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        num_labels=3,
        attn_implementation="eager",
    )
    other = randomise(transformers.ViTForImageClassification(config).eval(), 3)
    ours = tiny()
    mine, parameters = dict(ours.named_parameters()), dict(other.named_parameters())
    names = {our_name(name): name for name in parameters}
    assert names.keys() == mine.keys()
    with torch.no_grad():
        for name, their_name in names.items():
            mine[name].copy_(parameters[their_name].reshape(mine[name].shape))

    expected, found = other(pictures()).logits, scores(ours, pictures())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for logits in (found, expected):
        F.cross_entropy(logits, torch.tensor([2, 0])).backward()
    for name, their_name in names.items():
        gradient = parameters[their_name].grad.reshape(mine[name].shape)
        torch.testing.assert_close(mine[name].grad, gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
@torch.no_grad()
def test_a_picture_is_given_the_same_scores_alone_and_in_a_batch(pool, positions, backbone):
    model = tiny(pool=pool, positions=positions, backbone=backbone)
    together = scores(model, pictures(3))
    assert together.shape == (3, 3)
    torch.testing.assert_close(
        torch.cat([scores(model, one[None]) for one in pictures(3)]), together
    )
    assert torch.pdist(together).min() > 1e-3


@pytest.mark.parametrize("pool", POOLS)
@torch.no_grad()
def test_pictures_are_equal_segments(pool):
    _, segments = tiny(pool=pool).encode(pictures(3))
    assert segments.equal
    assert segments.lengths.tolist() == [9 + (pool == "class")] * 3


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pool", POOLS)
@torch.no_grad()
def test_only_positions_tell_where_a_patch_lies(positions, pool):
    given = pictures(1)
    # its columns of patches in another order
    turned = torch.cat((given[..., 4:], given[..., :4]), 3)
    model = tiny(positions=positions, pool=pool)
    same = torch.allclose(scores(model, given), scores(model, turned), atol=1e-5)
    assert same == (positions == "none")


@torch.no_grad()
def test_sinusoids_are_added_to_the_patches_by_row_and_column():
    model = tiny(positions="sinusoidal_2d")
    added = model._positions(torch.zeros(1, 10, 16))
    places = torch.arange(9)
    assert torch.equal(added[1:], sinusoidal_2d(places // 3, places % 3, 16))
    assert not added[0].any()


def test_the_backbone_strides_or_pools():
    for pools in (False, True):
        model = tiny(backbone=BACKBONES[-1], backbone_depth=2, backbone_pools=pools)
        assert [block.pooled for block in model.backbone.blocks] == [pools, False] * len(
            BACKBONES[-1]
        )


def test_a_level_of_the_backbone_has_as_many_blocks_as_are_asked_for():
    model = tiny(backbone=BACKBONES[-1], backbone_depth=3)
    assert len(model.backbone.blocks) == 3 * len(BACKBONES[-1])


def test_asking_for_weights_changes_nothing_and_gives_one_a_layer():
    model, weights = tiny(), []
    torch.testing.assert_close(model.encode(pictures(), weights)[0], model.encode(pictures())[0])
    assert model.attention_names == ["encoder.0.self", "encoder.1.self"]
    assert [tuple(w.shape) for w in weights] == [(2, 4, 10, 10)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))


@torch.no_grad()
def test_dropout_acts_in_training_alone_and_under_a_seed():
    model = tiny(dropout=0.4)

    def drawn(seed):
        torch.manual_seed(seed)
        return scores(model, pictures())

    assert torch.equal(drawn(1), drawn(2))
    model.train()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@torch.no_grad()
def test_in_half_precision_it_answers_nearly_alike():
    model = tiny(positions="sinusoidal_2d")
    expected = scores(model, pictures())
    found = scores(model.bfloat16(), pictures())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.2, rtol=0.1)


META = """
import sys, torch
from transduct.blocks.embeddings import PositionVectors
from transduct.models.vit import Config, ViT
shape = dict(labels=3, image_size=12, patch_size=4, d_model=16, num_heads=4, d_ff=32, layers=2)
with torch.device("meta"):
    ViT(Config(**shape))
    ViT(Config(**shape, backbone=[4, 8]))
    PositionVectors("learned", 16, 8)
assert "torch._dynamo" not in sys.modules
"""


def test_a_model_whose_weights_are_to_be_loaded_needs_no_compiler():
    """Which takes seconds to import, and drawing on the meta device would."""
    subprocess.run([sys.executable, "-c", META], check=True)
