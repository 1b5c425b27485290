"""Layers fused into a single call equal the same layers one by one."""

import copy
from dataclasses import fields
from functools import cache

import pytest
import torch

from tests.changes import CHANGES, OF_ROTARY
from tests.helpers import BEGIN, END, SIZE, compiled, tiny, tokens_of
from transduct.blocks.embeddings import narrowed
from transduct.blocks.transformer import Decoder, Encoder
from transduct.inference import engine, fused
from transduct.inference.fused import FusedDecoder, FusedEncoder, fuse
from transduct.inference.packed import pack_layers
from transduct.inference.quantised import pack_quantised, quantise
from transduct.inference.settings import DecodingConfig
from transduct.kernels import cpu, cpu_search
from transduct.models import bert, detr, speech, transformer, vit
from transduct.models.transformer import Transformer
from transduct.segments import Segments

KINDS = pytest.mark.parametrize("integers", [False, True], ids=["float32", "8-bit"])
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        {},
        {"norm_kind": "rms", "positions": "learned"},
        {"num_kv_heads": 2, "d_k": 5, "d_v": 7, "positions": "none"},
        {"num_kv_heads": 1, "d_ff": 37, "tie": "none"},
        {"num_kv_heads": 2, "positions": "rotary", "activation": "gelu"},
        {"activation": "silu"},
    ],
    ids=["layer", "rms", "grouped, odd widths", "one group, an odd width inside", "rotary", "silu"],
)
SOURCES = [[3, 4, 5, END], [7, END], [8, 3, 9, 9, 4, END], [6, 5, 4, 3, 3, 3, 3, 3, 10, END], [END]]


def both(integers, change=lambda model: None, **changes):
    """A plain model, and the same packed and fused; `change` is made to it first."""
    plain = tiny(**{"max_length": 48, **changes})
    change(plain)
    if integers:
        quantise(plain)
    used = copy.deepcopy(plain)
    pack_layers(used)
    pack_quantised(used)
    fuse(used)
    return plain, used


def steps_of(model, beam, tokens, spoil=lambda ancestry: ancestry):
    """Logits of each row in each step, with rows exchanged and sources dropped meanwhile."""
    source, segments = tokens_of([3, 1, 12, 4])
    state, sources, found = model.start(model.encode(source, segments), segments, beam), 4, []
    draws = torch.Generator().manual_seed(1)
    for number, newest in enumerate(tokens):
        logits, state = model.step(newest[: sources * beam], state)
        found += list(logits)
        if number in (7, 37):
            kept = torch.tensor([2, 0, 1] if number == 7 else [1, 2])
            state.select((kept[:, None] * beam + torch.arange(beam)).flatten())
            sources = len(kept)
        chosen = (
            torch.randint(beam, (sources, beam), generator=draws)
            + torch.arange(sources)[:, None] * beam
        )
        state.select(chosen.flatten())
        spoil(state.ancestry)
    assert state.length == len(tokens)
    return torch.stack(found)


def tokens_for(beam):
    return torch.randint(SIZE, (40, 4 * beam), generator=torch.Generator().manual_seed(2))


def assert_near(found, expected, integers):
    apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
    if not integers:
        assert apart.max() < 1e-5
    else:
        assert apart.median() < 1e-5
        assert apart.max() < 0.1, (
            "a number on the border between two integers may fall on the other side"
        )


@compiled
@KINDS
@SHAPES
@pytest.mark.parametrize("norm, beam", [("pre", 1), ("post", 3)])
@torch.inference_mode()
def test_a_decoder_in_one_call_equals_the_decoder(monkeypatch, integers, shape, norm, beam):
    plain, used = both(integers, norm=norm, **shape)
    assert isinstance(used.decoder, FusedDecoder)
    found = steps_of(used, beam, tokens_for(beam))
    monkeypatch.setattr(cpu, "supports", lambda *_, **__: False)  # the other takes the formulas
    assert_near(found, steps_of(plain, beam, tokens_for(beam)), integers)


@compiled
@KINDS
@pytest.mark.parametrize(
    "scheme", ["index", "binary", "one_hot", "sinusoidal", "sinusoidal_concatenated"]
)
@torch.inference_mode()
def test_positions_whose_vectors_are_views_of_others_are_read_as_they_are(
    monkeypatch, integers, scheme
):
    # an odd width takes a slice
    plain, used = both(integers, positions=scheme, d_model=51, num_heads=3)
    found = steps_of(used, 3, tokens_for(3))
    monkeypatch.setattr(cpu, "supports", lambda *_, **__: False)
    assert_near(found, steps_of(plain, 3, tokens_for(3)), integers)


@compiled
@KINDS
def test_a_copy_works_after_the_original_is_deleted(integers):
    def found(model):
        hypotheses = engine.generate(
            model, SOURCES, [8] * len(SOURCES), DecodingConfig(beam=2), BEGIN, END
        )
        return [[(each.tokens, each.score) for each in of_source] for of_source in hypotheses]

    used = both(integers)[1]
    expected, copied = found(used), copy.deepcopy(used)
    del used
    assert found(copied) == expected


@compiled
@torch.inference_mode()
def test_the_control_swapped_slots_are_another_decoder():
    def swap(ancestry):
        ancestry.writers = (ancestry.writers + 1) % 3

    plain, used = both(False)
    assert (
        steps_of(used, 3, tokens_for(3), swap) - steps_of(plain, 3, tokens_for(3))
    ).abs().median() > 0.01


@compiled
@KINDS
@SHAPES
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("lengths", [[3, 1, 12, 4], [1], [0, 5, 0], []], ids=str)
@torch.inference_mode()
def test_an_encoder_in_one_call_equals_the_encoder(monkeypatch, integers, shape, norm, lengths):
    plain, used = both(integers, norm=norm, **shape)
    assert isinstance(used.encoder, FusedEncoder)
    found = used.encode(*tokens_of(lengths))
    monkeypatch.setattr(cpu, "supports", lambda *_, **__: False)
    if not lengths:
        assert found.shape == (0, 16)
    else:
        assert_near(found, plain.encode(*tokens_of(lengths)), integers)


@compiled
@torch.inference_mode()
def test_long_sequences_and_weights_go_layer_by_layer(monkeypatch):
    plain, used = both(False)
    calls = []
    monkeypatch.setattr(cpu.PackedLayers, "encode", lambda *_: calls.append(1))
    tokens, segments = tokens_of([5, 7])
    weights = [[], []]
    encoded = [
        each.encode(tokens, segments, held)
        for each, held in zip((plain, used), weights, strict=True)
    ]
    torch.testing.assert_close(*encoded, atol=1e-5, rtol=1e-5)
    assert len(weights[1]) == 2
    monkeypatch.setattr(fused, "LONGEST", 4)
    torch.testing.assert_close(
        *(each.encode(tokens, segments) for each in (plain, used)), atol=1e-5, rtol=1e-5
    )
    assert not calls
    monkeypatch.setattr(fused, "LONGEST", 7)
    used.encoder(torch.randn(12, 16), segments)
    assert calls == [1], "the control: at the limit it is one call"


@compiled
@KINDS
@torch.inference_mode()
def test_tokens_may_have_32_bits_and_those_outside_the_vocabulary_are_refused(integers):
    _, used = both(integers)
    source, segments = tokens_of([3, 1])
    found = []
    for kind in (torch.int64, torch.int32):
        state = used.start(used.encode(source, segments), segments, 1)
        found.append(used.step(torch.tensor([1, 7], dtype=kind), state)[0])
    assert found[0].equal(found[1])
    for token in (-1, SIZE, 10**9):
        with pytest.raises(IndexError, match="a token is not in the vocabulary"):
            used.step(
                torch.tensor([1, token]), used.start(used.encode(source, segments), segments, 1)
            )


@compiled
@KINDS
@torch.inference_mode()
def test_a_sequence_is_encoded_the_same_whatever_lies_beside_it(monkeypatch, integers):
    """Also if some sequences run in one call and others layer by layer."""
    _, used = both(integers)
    monkeypatch.setattr(fused, "LONGEST", 5)
    lengths = [3, 9, 5, 0, 12, 6, 1]
    tokens, segments = tokens_of(lengths)
    together = used.encode(tokens, segments).split(lengths)
    for part, found in zip(tokens.split(lengths), together, strict=True):
        assert found.equal(used.encode(part, Segments.of([len(part)])))


@compiled
@KINDS
@SHAPES
@pytest.mark.parametrize("lengths", [[3, 1, 12, 4], [1], [4, 4], [0, 5, 0], []], ids=str)
@torch.inference_mode()
def test_what_is_remembered_of_sources_is_what_the_layers_give(
    monkeypatch, integers, shape, lengths
):
    models, (_, segments) = both(integers, **shape), tokens_of(lengths)
    torch.manual_seed(1)
    memory = torch.randn(sum(lengths), 16)
    held = [models[1].start(memory, segments, 2).memories]
    monkeypatch.setattr(cpu, "supports", lambda *_, **__: False)
    held += [models[0].start(memory, segments, 2).memories]
    for ours, theirs in zip(*held, strict=True):
        for name in ("keys", "values"):
            found, expected = getattr(ours, name), getattr(theirs, name)
            assert found.is_contiguous()
            assert found.dtype == (torch.float16 if integers else torch.float32)
            torch.testing.assert_close(
                found, expected.to(found.dtype), atol=1e-5, rtol=1e-3 if integers else 1e-5
            )
        assert (ours.bias is None) == (theirs.bias is None)


@compiled
@torch.inference_mode()
def test_the_input_of_an_encoder_is_not_changed():
    _, used = both(False)
    x, segments = torch.randn(12, 16), tokens_of([5, 7])[1]
    before = x.clone()
    used.encoder(x, segments)
    assert torch.equal(x, before)


@compiled
@KINDS
@torch.inference_mode()
def test_whole_targets_have_the_same_scores(integers):
    plain, used = both(integers)
    (tokens, segments), (target, target_segments) = tokens_of([3, 2]), tokens_of([4, 1], 2)
    one, other = (
        each.decode(target, target_segments, each.encode(tokens, segments), segments)
        for each in (plain, used)
    )
    assert (one - other).norm() < (0.05 if integers else 1e-5) * one.norm()


@compiled
@KINDS
@torch.inference_mode()
def test_a_shortlist_is_scored_by_its_own_table(integers):
    _, used = both(integers)
    chosen, tokens = torch.tensor([0, 2, 5, 7]), tokens_for(1)
    few = steps_of(narrowed(used, chosen), 1, tokens)
    torch.testing.assert_close(few, steps_of(used, 1, tokens)[:, chosen], atol=1e-5, rtol=1e-5)


@compiled
@torch.inference_mode()
def test_where_positions_end_the_layers_go_on(monkeypatch):
    monkeypatch.setattr(fused, "TURNS", 5)
    plain, used = both(False, positions="rotary")
    assert used.decoder.packed.longest == 5
    torch.testing.assert_close(
        *(steps_of(each, 3, tokens_for(3)) for each in (plain, used)), atol=1e-5, rtol=1e-5
    )
    _, used = both(False, max_length=5)
    with pytest.raises(IndexError):
        steps_of(used, 1, tokens_for(1))


def found_by(model, beam):
    return engine.generate(
        model, SOURCES, [12] * len(SOURCES), DecodingConfig(beam=beam), BEGIN, END
    )


def assert_same_outputs(found, expected, apart=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=apart)


@compiled
@torch.inference_mode()
def test_steps_at_once_refuse_tokens_outside_the_vocabulary():
    _, used = both(False)
    source, segments = tokens_of([3, 1])
    limits, scores = torch.tensor([9, 9]), torch.zeros(2, 1).double()
    # the last has no vector, and what follows is no name
    names = torch.tensor([*range(SIZE - 1), SIZE, 4])[:SIZE]
    plain = [(SIZE, [], None), (4, [3, SIZE], None), (4, [-1], None)]
    for second, never, own in [*plain, (SIZE, [], names), (SIZE - 1, [], names)]:
        state = used.start(used.encode(source, segments), segments, 1)
        never = torch.tensor(never, dtype=torch.int64)
        run = cpu_search.Run(torch.tensor([[1], [second]]), scores, END, never, limits, 3, own)
        with pytest.raises(IndexError, match="a token is not in the vocabulary"):
            used.decoder.ahead(used, state, run)


@compiled
@KINDS
@torch.inference_mode()
def test_the_kernels_do_not_depend_on_the_default_dtype(integers):
    _, used = both(integers)
    expected, tokens = steps_of(used, 3, tokens_for(3)), tokens_of([3, 1, 12, 4])
    try:
        torch.set_default_dtype(torch.float64)
        found = steps_of(used, 3, tokens_for(3))
        assert used.encode(*tokens).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("beam", [1, 4])
@KINDS
@pytest.mark.parametrize(
    "changes", [{}, {"norm": "post", "num_kv_heads": 2, "d_v": 5}, {"norm_kind": "rms"}], ids=str
)
def test_without_the_library_a_search_finds_the_same(monkeypatch, integers, changes, beam):
    """The tokens are the same to the end, because the tiny models are confident enough."""
    _, used = both(integers, **changes)
    assert isinstance(used.decoder, FusedDecoder) == (cpu.library() is not None)
    for layer in used.decoder:  # without the library caches are not rounded
        layer.self_attention.cache_dtype = layer.cross_attention.cache_dtype = torch.float32
    found = found_by(used, beam)
    monkeypatch.setattr(cpu, "library", lambda: None)
    _, used = both(integers, **changes)
    assert not isinstance(used.decoder, FusedDecoder)
    assert not isinstance(used.encoder, FusedEncoder)
    assert_same_outputs(found, found_by(used, beam))


@compiled
@KINDS
@pytest.mark.parametrize(
    "changes, encoder, decoder",
    [
        ({"positions": "alibi"}, False, False),
        ({"activation": "swiglu"}, False, False),
        ({"position_mode": "concatenate"}, True, False),
        ({"positions": "normalised_index"}, True, False),
        ({"positions": "none"}, True, True),
        ({"positions": "bucketed", "bias": False}, False, False),
        ({"bias": False}, True, True),
        ({"embedding_norm": True}, True, False),
        ({"norm": "post", "final_norm": True, "norm_epsilon": 1e-3}, True, True),
    ],
    ids=str,
)
def test_parts_that_the_kernels_do_not_know_are_read_part_by_part(
    integers, changes, encoder, decoder
):
    plain, used = both(integers, **changes)
    assert isinstance(used.encoder, FusedEncoder) == encoder
    assert isinstance(used.decoder, FusedDecoder) == decoder
    # see `assert_near`
    assert_same_outputs(found_by(used, 3), found_by(plain, 3), 0.1 if integers else 1e-5)


@compiled
@pytest.mark.parametrize("activation", cpu.ACTIVATIONS)
@torch.inference_mode()
def test_activations_are_those_of_torch(activation):
    """In a layer whose matrices are the identity."""
    plain, _ = both(
        False, d_ff=16, activation=activation, norm="post", encoder_layers=1, positions="none"
    )
    x = torch.linspace(-30.0, 30.0, 16 * 40).view(40, 16)
    for layer in plain.encoder:
        layer.self_attention.output.weight.zero_()
        for linear in (layer.feed_forward.inner, layer.feed_forward.outer):
            linear.weight.copy_(torch.eye(16))
    used = copy.deepcopy(plain)
    pack_layers(used)
    fuse(used)
    segments = tokens_of([40])[1]
    assert isinstance(used.encoder, FusedEncoder)
    torch.testing.assert_close(
        used.encoder(x, segments), plain.encoder(x, segments), atol=5e-6, rtol=1e-5
    )


# what is changed is computed as it reads


def all_answers(model):
    """What the encoder, whole targets and ten steps give: rows are exchanged, a source leaves."""
    source, target = tokens_of([3, 1, 12, 4]), tokens_of([4, 1, 7, 2], 2)
    memory = model.encode(*source)
    logits = model.logits(model.decode(*target, memory, source[1]))
    return torch.cat((memory[:, :SIZE], logits, steps_of(model, 3, tokens_for(3)[:10])))


@cache
def unchanged(integers, positions):
    return all_answers(both(integers, positions=positions)[0])


@pytest.mark.parametrize("name", [*CHANGES, *OF_ROTARY])
@KINDS
@torch.inference_mode()
def test_a_changed_model_gives_the_same_answers(monkeypatch, integers, name):
    positions = "rotary" if name in OF_ROTARY else "sinusoidal"
    plain, used = both(integers, (CHANGES | OF_ROTARY)[name], positions=positions)
    found, before = all_answers(used), unchanged(integers, positions)
    monkeypatch.setattr(cpu, "supports", lambda *_, **__: False)
    expected = all_answers(plain)
    assert_near(found, expected, integers)
    assert (expected - before).norm() > 0.01 * before.norm(), "the control: it is a change"


SHIPPED = {
    transformer: Transformer,
    bert: bert.Bert,
    vit: vit.ViT,
    speech: speech.Speech,
    detr: detr.Detr,
}


@compiled
@pytest.mark.parametrize(
    "family, size", [(family, size) for family in SHIPPED for size in family.SIZES]
)
def test_no_size_of_a_family_is_taken_for_a_changed_one(family, size):
    sizes = dict.fromkeys(["source_size", "target_size", "vocabulary_size", "labels", "classes"], 5)
    shape = {"bands": 80, **sizes, **family.SIZES[size]}
    shape |= dict.fromkeys(["layers", "encoder_layers", "decoder_layers"], 1)
    names = {each.name for each in fields(family.Config)}
    model = SHIPPED[family](
        family.Config(**{name: value for name, value in shape.items() if name in names})
    ).eval()
    before = {name: type(part) for name, part in model.named_children()}
    pack_layers(model)
    fuse(model)
    assert Encoder in before.values()
    for name, kind in before.items():
        if kind in (Encoder, Decoder):
            assert (
                type(getattr(model, name)) is {Encoder: FusedEncoder, Decoder: FusedDecoder}[kind]
            )


def test_bfloat16_stays_as_it_is():
    model = tiny().bfloat16()
    pack_layers(model)
    fuse(model)
    assert not isinstance(model.encoder, FusedEncoder)
    assert not isinstance(model.decoder, FusedDecoder)


def test_an_encoder_without_layers_stays_as_it_is():
    assert fused.packed_layers(torch.nn.ModuleList()) is None


def test_a_model_that_was_not_packed_stays_as_it_is():
    model = tiny()
    fuse(model)
    assert not isinstance(model.encoder, FusedEncoder)


@compiled
@KINDS
def test_a_hook_on_the_output_table_is_seen(integers):
    plain, _ = both(integers)
    pack_layers(plain)
    pack_quantised(plain)
    plain.output_table.register_forward_hook(lambda _, given, found: 2.0 * found)
    fuse(plain)
    assert not isinstance(plain.decoder, FusedDecoder)
