"""The Transformer masks the future, keeps sequences separate, and equals Marian's with Marian's
weights."""

import pytest
import torch
from torch.nn import functional as F

from tests.helpers import PLACES, SIZE, gradients, randomise, tiny, tokens_of
from transduct.blocks.embeddings import narrowed, output_of
from transduct.inference import engine
from transduct.inference.fused import fuse
from transduct.inference.packed import pack_layers
from transduct.inference.quantised import pack_quantised, quantise
from transduct.inference.settings import DecodingConfig
from transduct.models.transformer import Config, Transformer
from transduct.segments import Segments

SOURCES, TARGETS = [5, 2, 7], [4, 6, 1]

in_every_place = pytest.mark.parametrize(
    ("positions", "position_mode"), PLACES, ids=lambda word: word
)


def run(model, sources=SOURCES, targets=TARGETS, source=None, target=None):
    """Logits (M, V) of random tokens, or of those given."""
    random_source, source_segments = tokens_of(sources, seed=1)
    random_target, target_segments = tokens_of(targets, seed=2)
    source = random_source if source is None else source
    target = random_target if target is None else target
    memory = model.encode(source, source_segments)
    return model.logits(model.decode(target, target_segments, memory, source_segments))


def changed(tokens, places):
    """The tokens with others at these places."""
    tokens = tokens.clone()
    tokens[places] = (tokens[places] + 1) % SIZE
    return tokens


@in_every_place
@torch.no_grad()
def test_the_decoder_does_not_see_the_future(positions, position_mode):
    model = tiny(positions=positions, position_mode=position_mode)
    target, _ = tokens_of([4, 6, 1], seed=2)
    difference = (run(model) - run(model, target=changed(target, [3, 9]))).abs().amax(-1)
    # before the changes, and the other sequences
    assert difference[[0, 1, 2, 4, 5, 6, 7, 8, 10]].max() < 1e-5
    assert difference[[3, 9]].min() > 1e-3


@in_every_place
@torch.no_grad()
def test_the_encoder_sees_all_of_its_own_sequence_and_nothing_else(positions, position_mode):
    model = tiny(positions=positions, position_mode=position_mode)
    source, segments = tokens_of(SOURCES)
    difference = (
        (model.encode(source, segments) - model.encode(changed(source, [6]), segments))
        .abs()
        .amax(-1)
    )
    assert difference[[5, 6]].min() > 1e-3
    assert difference[[0, 1, 2, 3, 4, *range(7, 14)]].max() < 1e-5


@pytest.mark.parametrize(
    "changes", [{}, {"num_kv_heads": 2, "d_v": 3, "norm": "post"}], ids=["plain", "grouped"]
)
@torch.no_grad()
def test_a_pair_is_given_the_same_logits_alone_and_in_a_batch(changes):
    model = tiny(**changes)
    together = run(model).split(TARGETS)
    source, target = (
        tokens_of(SOURCES, 1)[0].split(SOURCES),
        tokens_of(TARGETS, 2)[0].split(TARGETS),
    )
    for i, logits in enumerate(together):
        alone = run(model, [SOURCES[i]], [TARGETS[i]], source[i], target[i])
        torch.testing.assert_close(alone, logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_an_empty_source_is_no_error():
    logits = run(tiny(), [0, 2], [3, 3])
    assert logits.isfinite().all()


CACHED = [{"positions": positions, "position_mode": mode} for positions, mode in PLACES] + [
    {"norm": "post"},
    {"num_kv_heads": 2},
    {"num_kv_heads": 1, "d_v": 3, "positions": "rotary"},
    {"activation": "swiglu", "norm_kind": "rms", "tie": "none"},
    {"positions": "bucketed", "bias": False, "activation": "geglu_tanh", "norm_kind": "rms"},
    {"positions": "bucketed", "shared_positions": False, "buckets": 4, "farthest": 5},
    {"norm": "post", "final_norm": True, "embedding_norm": True, "embedding_scale": False},
    {"positions": "sinusoidal_inclusive", "first_position": 2, "tie": "embeddings"},
]


@pytest.mark.parametrize(
    "changes", CACHED, ids=lambda changes: "-".join(map(str, changes.values()))
)
@torch.no_grad()
def test_a_step_with_the_cache_equals_decode(changes):
    model, beam, length = tiny(**changes), 2, 6
    source, source_segments = tokens_of(SOURCES, 1)
    target, segments = tokens_of([length] * len(SOURCES) * beam, 2)
    memory = model.encode(source, source_segments)
    state = model.start(memory, source_segments, beam)
    steps = []
    for tokens in target.view(-1, length).unbind(1):
        logits, state = model.step(tokens, state)
        steps.append(logits)
    parts = memory.split(SOURCES)
    # each row of the search its own source
    repeated = torch.cat([part for part in parts for _ in range(beam)])
    of_rows = Segments.of([n for n in SOURCES for _ in range(beam)])
    expected = model.logits(model.decode(target, segments, repeated, of_rows))
    torch.testing.assert_close(torch.stack(steps, 1).flatten(0, 1), expected, atol=1e-4, rtol=1e-4)


def test_a_step_has_the_gradient_of_decode():
    """For training through a search, even if there are kernels, which have no gradient."""
    model, target = tiny(), torch.tensor([3, 1, 5])
    source, segments = tokens_of([4], seed=1)

    def by_decode():
        memory = model.encode(source, segments)
        return model.logits(model.decode(target, Segments.of([3]), memory, segments))[-1]

    def by_step():
        state = model.start(model.encode(source, segments), segments, 1)
        for token in target:
            logits, state = model.step(token[None], state)
        return logits[0]

    found, expected = (
        torch.autograd.grad(way().logsumexp(0), [*model.parameters()])
        for way in (by_step, by_decode)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_asking_for_weights_changes_nothing_and_gives_two_a_layer():
    model = tiny(num_kv_heads=2, positions="alibi")
    source, source_segments = tokens_of(SOURCES, 1)
    target, segments = tokens_of(TARGETS, 2)
    weights = []
    memory = model.encode(source, source_segments, weights)
    model.decode(target, segments, memory, source_segments, weights)
    shapes = [(3, 4, 7, 7)] * 2 + [(3, 4, 6, 6), (3, 4, 6, 7)] * 2
    assert [tuple(w.shape) for w in weights] == shapes
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:-1]))
    assert torch.equal(weights[2], weights[2].tril())


@in_every_place
@torch.no_grad()
def test_in_bfloat16_everything_stays_in_bfloat16(positions, position_mode):
    model = tiny(positions=positions, position_mode=position_mode, d_v=20, num_kv_heads=2)
    expected = run(model)
    found = run(model.bfloat16())
    assert found.dtype == torch.bfloat16
    errors = (found.float() - expected).abs()
    assert float(errors.mean()) < 0.05 * float(expected.abs().mean())
    memory = model.encode(*tokens_of(SOURCES))
    logits, _ = model.step(torch.tensor([1] * 3), model.start(memory, Segments.of(SOURCES), 1))
    assert logits.dtype == torch.bfloat16


def test_tied_tables_are_one_parameter():
    def tables(tie):
        model = tiny(tie=tie)
        return len(
            {
                id(model.source_embedding.table),
                id(model.target_embedding.table),
                id(model.output_table),
            }
        )

    assert [tables(tie) for tie in ("all", "decoder", "none")] == [1, 2, 3]


@pytest.mark.parametrize(
    "changes, widths", [({}, (64, 64)), ({"d_k": 5}, (5, 5)), ({"d_k": 5, "d_v": 7}, (5, 7))]
)
def test_widths_of_keys_and_values_have_defaults(changes, widths):
    config = Config(source_size=7, target_size=7, **changes)
    assert (config.key_width, config.value_width) == widths


def test_only_the_normalised_index_depends_on_the_length_of_a_sequence():
    schemes = {scheme for scheme, _ in PLACES if Config(7, 7, positions=scheme).length_dependent}
    assert schemes == {"normalised_index"}


# Marian's names of a module, and ours.
LAYER = {
    "self_attn": "self_attention",
    "encoder_attn": "cross_attention",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "self_attn_layer_norm": "around_attention.norm",
    "encoder_attn_layer_norm": "around_cross.norm",
    "final_layer_norm": "around_feed_forward.norm",
}
PROJECTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}


def our_name(name):
    """The parameter of ours that holds what Marian's parameter `name` holds."""
    side, _, number, part, *rest = name.removeprefix("model.").split(".")
    return ".".join([side, number, LAYER[part], *(PROJECTION.get(word, word) for word in rest)])


@pytest.mark.parametrize(("theirs", "activation"), [("swish", "silu"), ("relu", "relu")])
def test_logits_and_gradients_are_those_of_marian(theirs, activation):
    transformers = pytest.importorskip(
        "transformers", reason="parity with Marian needs transformers"
    )
    config = transformers.MarianConfig(
        vocab_size=SIZE,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation_function=theirs,
        max_position_embeddings=16,
        scale_embedding=True,
        dropout=0.0,
        attn_implementation="eager",
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=2,
    )
    marian = randomise(transformers.MarianMTModel(config).eval(), 3)
    ours = tiny(norm="post", positions="sinusoidal_concatenated", activation=activation, d_k=None)
    layers = {n: p for n, p in marian.named_parameters() if ".layers." in n}
    mine = dict(ours.named_parameters())
    assert len(mine) == len(layers) + 1
    with torch.no_grad():
        ours.output_table.copy_(marian.model.shared.weight)
        for name, parameter in layers.items():
            mine[our_name(name)].copy_(parameter)

    words = SIZE - 1  # without padding, which Marian learns nothing of
    source, target = (1 + tokens_of([n] * 3, n, words)[0].view(3, n) for n in (5, 4))
    expected = marian(
        input_ids=source, attention_mask=torch.ones_like(source), decoder_input_ids=target
    ).logits
    found = run(ours, [5] * 3, [4] * 3, source.flatten(), target.flatten()).view(expected.shape)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    wanted = [marian.model.shared.weight, *layers.values()]
    inputs = [ours.output_table, *(mine[our_name(name)] for name in layers)]
    # a mean over sentences, as a loss is one
    found, expected = (found / len(found), expected / len(expected))
    for one, other in zip(gradients(found, inputs), gradients(expected, wanted), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


WAYS = {  # of a model in use, and how far its numbers may be from the formula's
    "as it is": ((), 1e-6),
    "float32": ((pack_layers,), 1e-5),
    "float32 in single calls": ((pack_layers, fuse), 1e-5),
    "bfloat16": ((torch.nn.Module.bfloat16, pack_layers, fuse), 0.1),
    "8-bit": ((quantise,), 1e-5),
    "8-bit in single calls": ((quantise, pack_layers, pack_quantised, fuse), 1e-5),
}


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_every_way_to_scores_adds_the_bias_of_the_output(way, tie):
    steps, far = WAYS[way]
    biased, plain = tiny(output_bias=True, tie=tie), tiny(tie=tie)
    weights = dict(biased.named_parameters())
    bias = 3.0 * weights.pop("output_bias").detach().clone()
    biased.output_bias.copy_(bias)
    plain.load_state_dict(
        {name: p for name, p in biased.state_dict().items() if name != "output_bias"}
    )
    for step in steps:
        step(biased)
        step(plain)

    def scored(model):
        """Logits of whole targets, of steps, and of steps over a few tokens."""
        tokens, segments = tokens_of([5, 3], 1)
        found = [run(model)]
        for each in (model, narrowed(model, torch.tensor([1, 4, 7]))):
            state = each.start(each.encode(tokens, segments), segments, 2)
            found.append(torch.stack([each.step(torch.arange(4) + i, state)[0] for i in range(3)]))
        return found

    assert bias.abs().min() > 0.0
    for mine, without, added in zip(
        scored(biased), scored(plain), (bias, bias, bias[[1, 4, 7]]), strict=True
    ):
        torch.testing.assert_close(mine.float(), without.float() + added, atol=far, rtol=far)
    table, held = output_of(biased)
    torch.testing.assert_close(held.float(), bias, atol=far, rtol=far)
    assert table.shape == (SIZE, 16)
    assert output_of(plain)[1] is None


def test_the_bias_of_the_output_begins_at_zero_and_is_searched_with():
    assert not Transformer(Config(SIZE, SIZE, d_model=16, output_bias=True)).output_bias.any()
    biased, plain = tiny(output_bias=True), tiny()
    with torch.no_grad():
        biased.output_bias[5] += 4.0
    sources, limits = [[3, 4, 2], [5, 2], [6, 7, 8, 2]], [6] * 3

    def found(model, captured):
        config = DecodingConfig(beam=3, captured=captured)
        searched = engine.generate(model, sources, limits, config, 1, 2)
        return [[(h.tokens, round(h.score, 4)) for h in each] for each in searched]

    assert found(biased, True) == found(biased, False) != found(plain, False)
    [[best, *_], *_] = engine.generate(biased, sources, limits, DecodingConfig(beam=3), 1, 2)
    score = engine.score(biased, sources[:1], [best.tokens], 1, 2, 100)
    assert score == pytest.approx([best.score], abs=1e-4)


def test_training_is_reproducible_under_a_seed_and_differs_without():
    model = tiny(dropout=0.3, attention_dropout=0.2).train()

    def loss(seed):
        torch.manual_seed(seed)
        return F.cross_entropy(run(model), tokens_of(TARGETS, 3)[0]).item()

    assert loss(1) == loss(1) != loss(2)


def test_what_is_left_out_is_named():
    sizes = {"source_size": 9, "target_size": 9}
    assert Config(**sizes).left_out is None
    for name in ("bias", "embedding_scale"):
        assert Config(**sizes, **{name: False}).left_out == f"a model with {name}=false"
