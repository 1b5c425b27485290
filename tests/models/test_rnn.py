"""The recurrent encoder-decoder equals the papers' equations, masks the future, and steps as it was
trained."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import SIZE, gradients, randomise, tokens_of
from transduct.functional.attention import concat_scores, dot_scores, general_scores
from transduct.models.rnn import RNN, Config
from transduct.segments import Segments

SOURCES, TARGETS = [5, 2, 7], [4, 6, 1]
ATTENTIONS = ["none", "dot", "general", "concat", "additive"]
LUONG = ["dot", "general", "concat"]

with_every_attention = pytest.mark.parametrize("attention", ATTENTIONS)
with_both_cells = pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
in_both_ways = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])


def tiny(**changes):
    """An RNN of two layers, with widths that differ, ready to be used."""
    torch.manual_seed(1)
    shape = {
        "d_model": 10,
        "d_hidden": 12,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
        "max_length": 16,
    }
    return randomise(
        RNN(Config(**{"source_size": SIZE, "target_size": SIZE, **shape, **changes})).eval()
    )


def run(model, sources=SOURCES, targets=TARGETS, source=None, target=None, weights=None):
    """Hidden (M, d_model) of random tokens, or of those given."""
    random_source, source_segments = tokens_of(sources, seed=1)
    random_target, target_segments = tokens_of(targets, seed=2)
    source = random_source if source is None else source
    target = random_target if target is None else target
    memory = model.encode(source, source_segments, weights)
    return model.decode(target, target_segments, memory, source_segments, weights)


def changed(tokens, places):
    """The tokens with others at these places."""
    tokens = tokens.clone()
    tokens[places] = (tokens[places] + 1) % SIZE
    return tokens


def encoded(model, x):
    """The memory (S, d_hidden) of one sentence's embeddings by torch's own recurrence."""
    config, ways = model.config, 1 + model.config.bidirectional
    kind = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[config.cell]
    theirs = kind(
        config.d_model,
        config.width // ways,
        config.encoder_layers,
        bidirectional=config.bidirectional,
    )
    values = {}
    for number, layer in enumerate(model.encoder.layers):
        for name, parameter in layer.named_parameters():
            names = [f"{name}_l{number}", f"{name}_l{number}_reverse"][:ways]
            values |= dict(zip(names, parameter.chunk(ways)))
    return torch.func.functional_call(theirs, values, (x,))[0]


def by_the_papers(model, source, target):
    """Hidden (T, d_model) of one sentence, a token at a time, with torch's cells and the equations
    of the papers."""
    config, root = model.config, math.sqrt(model.config.d_model)
    memory = encoded(model, model.source_table[source] * root)
    half = config.width // 2 if config.bidirectional else config.width
    summary = torch.cat((memory[-1, :half], memory[0, half:]))
    # h, and c of an LSTM
    begin = model.bridge(summary).tanh().view(config.decoder_layers, -1, config.width)
    states = [tuple(layer) for layer in begin]
    cell = {"tanh": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}[
        config.cell
    ]

    def context(h):
        attention = model.attention
        if config.attention == "none":
            return summary
        if config.attention == "dot":
            scores = dot_scores(h[None], memory)
        elif config.attention == "general":
            scores = general_scores(h[None], memory, attention.weight)
        else:
            scores = concat_scores(
                h[None], memory, attention.query.weight, attention.key.weight, attention.vector
            )
        return scores.softmax(-1)[0] @ memory

    rows = []
    for x in model.target_table[target] * root:
        c = context(states[-1][0])
        if config.attention in ("none", "additive"):
            x = torch.cat((x, c))
        for number, layer in enumerate(model.decoder.layers):
            held = [state[None] for state in states[number]]
            after = cell(x[None], held if config.cell == "lstm" else held[0], *layer.parameters())
            states[number] = (
                tuple(state[0] for state in after) if config.cell == "lstm" else (after[0],)
            )
            x = states[number][0]
        if config.attention in LUONG:
            c = context(x)
        rows.append(torch.tanh(model.output(torch.cat((c, x)))))
    return torch.stack(rows)


@with_every_attention
@with_both_cells
@in_both_ways
def test_outputs_and_gradients_are_those_of_the_papers_equations(attention, cell, bidirectional):
    model = tiny(attention=attention, cell=cell, bidirectional=bidirectional, tie="none")
    source, target = (
        tokens_of(SOURCES, 1)[0].split(SOURCES),
        tokens_of(TARGETS, 2)[0].split(TARGETS),
    )
    expected = torch.cat([by_the_papers(model, *pair) for pair in zip(source, target)])
    found = run(model)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    inputs = [p for p in model.parameters() if p is not model.output_table]
    for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@with_every_attention
@with_both_cells
@torch.no_grad()
def test_the_decoder_does_not_see_the_future(attention, cell):
    model = tiny(attention=attention, cell=cell)
    target, _ = tokens_of(TARGETS, 2)
    difference = (run(model) - run(model, target=changed(target, [2, 9]))).abs().amax(-1)
    # before the changes, and the other sequence
    assert difference[[0, 1, 4, 5, 6, 7, 8, 10]].max() < 1e-6
    assert difference[[2, 3, 9]].min() > 1e-4


@in_both_ways
@torch.no_grad()
def test_the_encoder_sees_its_own_sequence_and_nothing_else(bidirectional):
    model = tiny(bidirectional=bidirectional)
    source, segments = tokens_of(SOURCES)
    difference = (
        (model.encode(source, segments) - model.encode(changed(source, [8]), segments))
        .abs()
        .amax(-1)
    )
    seen = range(7, 14) if bidirectional else range(8, 14)
    assert difference[[*seen]].min() > 1e-4
    assert difference[[i for i in range(14) if i not in seen]].max() < 1e-6


@with_every_attention
@in_both_ways
@torch.no_grad()
def test_a_pair_is_given_the_same_hidden_alone_and_in_a_batch(attention, bidirectional):
    model = tiny(attention=attention, bidirectional=bidirectional)
    together = run(model).split(TARGETS)
    source, target = (
        tokens_of(SOURCES, 1)[0].split(SOURCES),
        tokens_of(TARGETS, 2)[0].split(TARGETS),
    )
    for i, hidden in enumerate(together):
        alone = run(model, [SOURCES[i]], [TARGETS[i]], source[i], target[i])
        torch.testing.assert_close(alone, hidden, atol=1e-5, rtol=1e-5)


@with_every_attention
@torch.no_grad()
def test_an_empty_source_is_no_error(attention):
    model = tiny(attention=attention)
    assert run(model, [0, 2], [3, 3]).isfinite().all()
    torch.testing.assert_close(
        run(model, [0, 2], [3, 3])[:3], run(model, [0], [3], target=tokens_of([3, 3], 2)[0][:3])
    )


@with_every_attention
@with_both_cells
@torch.no_grad()
def test_a_step_equals_decode(attention, cell):
    model, beam, length = tiny(attention=attention, cell=cell), 2, 6
    source, source_segments = tokens_of(SOURCES, 1)
    target, segments = tokens_of([length] * len(SOURCES) * beam, 2)
    memory = model.encode(source, source_segments)
    state, steps = model.start(memory, source_segments, beam), []
    for tokens in target.view(-1, length).unbind(1):
        logits, state = model.step(tokens, state)
        steps.append(logits)
    # each row its own source
    repeated = torch.cat([part for part in memory.split(SOURCES) for _ in range(beam)])
    of_rows = Segments.of([n for n in SOURCES for _ in range(beam)])
    expected = model.logits(model.decode(target, segments, repeated, of_rows))
    torch.testing.assert_close(torch.stack(steps, 1).flatten(0, 1), expected, atol=1e-5, rtol=1e-5)
    held = len(SOURCES), 1, 1 if attention == "none" else max(SOURCES), 12
    assert state.memory.keys.shape == state.memory.values.shape == held  # never copied per beam


@with_every_attention
def test_asking_for_weights_changes_nothing_and_gives_those_that_have_names(attention):
    model, weights = tiny(attention=attention), []
    torch.testing.assert_close(run(model, weights=weights), run(model))
    assert model.attention_names == ([] if attention == "none" else ["decoder.0.cross"])
    assert [tuple(w.shape) for w in weights] == [(3, 1, 6, 7)] * len(model.attention_names)
    for w in weights:
        for sequence, target, source in zip(w[:, 0], TARGETS, SOURCES):
            torch.testing.assert_close(sequence[:target].sum(-1), torch.ones(target))
            assert not sequence[:, source:].any()


@with_every_attention
@with_both_cells
def test_the_loop_over_time_is_the_fast_path(attention, cell):
    """Scheduled sampling with a negligible probability: the same outputs and gradients as teacher
    forcing."""
    given, sampled = (
        tiny(attention=attention, cell=cell, scheduled_sampling=p) for p in (0.0, 1e-30)
    )
    expected, found = run(given), run(sampled.train())
    torch.testing.assert_close(found, expected)
    mine, reference = (
        gradients(model.logits(hidden), list(model.parameters()))
        for model, hidden in ((sampled, found), (given, expected))
    )
    for one, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(one, other, atol=5e-5, rtol=1e-5)


@with_every_attention
def test_with_sampling_at_every_step_the_model_reads_its_own_likeliest_tokens(attention):
    model = tiny(attention=attention, scheduled_sampling=1.0)
    source, segments = tokens_of(SOURCES, 1)
    target, _ = tokens_of(TARGETS, 2)
    state = model.start(model.encode(source, segments), segments, 1)
    newest, steps = target[[0, 4, 10]], []
    for _ in range(max(TARGETS)):
        logits, state = model.step(newest, state)
        newest = logits.argmax(-1)
        steps.append(logits)
    own = torch.cat([row[:length] for row, length in zip(torch.stack(steps, 1), TARGETS)])
    teacher = model.logits(run(model))
    model.train()
    torch.testing.assert_close(model.logits(run(model)), own)
    torch.testing.assert_close(model.logits(run(model, target=changed(target, [1, 2, 7]))), own)
    assert not torch.allclose(teacher, own)


def test_some_tokens_are_replaced_where_sampling_is_scheduled_in_training_alone():
    model = tiny(scheduled_sampling=0.5)
    expected = run(model)
    model.train()
    torch.manual_seed(3)
    first, second = run(model), run(model)
    torch.manual_seed(3)
    assert torch.equal(run(model), first)
    assert not torch.allclose(first, second)
    # what begins a sequence is never replaced
    torch.testing.assert_close(first[[0, 4, 10]], expected[[0, 4, 10]])
    assert not torch.allclose(first, expected)


def test_dropout_falls_in_training_alone_and_follows_the_seed():
    model = tiny(dropout=0.3)
    assert torch.equal(run(model), run(model))
    model.train()

    def loss(seed):
        torch.manual_seed(seed)
        return F.cross_entropy(model.logits(run(model)), tokens_of(TARGETS, 3)[0]).item()

    assert loss(1) == loss(1) != loss(2)
    zeros = (run(model) == 0.0).float().mean()
    assert 0.15 < float(zeros) < 0.45  # of the output's layer


@with_every_attention
@with_both_cells
@torch.no_grad()
def test_in_bfloat16_everything_stays_in_bfloat16(attention, cell):
    model = tiny(attention=attention, cell=cell)
    expected = run(model)
    found = run(model.bfloat16())
    assert found.dtype == torch.bfloat16
    assert float((found.float() - expected).abs().mean()) < 0.05 * float(expected.abs().mean())
    memory = model.encode(*tokens_of(SOURCES))
    logits, _ = model.step(torch.tensor([1] * 3), model.start(memory, Segments.of(SOURCES), 1))
    assert logits.dtype == torch.bfloat16


@with_every_attention
def test_under_autocast_gradients_are_near_those_of_float32(attention):
    model = tiny(attention=attention)
    expected = gradients(run(model), [model.target_table, *model.bridge.parameters()])
    with torch.autocast("cpu", torch.bfloat16):
        hidden = run(model)
    for one, other in zip(
        gradients(hidden.float(), [model.target_table, *model.bridge.parameters()]),
        expected,
        strict=True,
    ):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.1


def test_tied_tables_are_one_parameter():
    def tables(tie):
        model = tiny(tie=tie)
        return len({id(model.source_table), id(model.target_table), id(model.output_table)})

    assert [tables(tie) for tie in ("all", "decoder", "none")] == [1, 2, 3]


def test_a_memory_span_opens_the_gates_of_all_layers_and_changes_nothing_else():
    def weights(span):
        torch.manual_seed(1)
        shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 10, "d_hidden": 12}
        return dict(
            RNN(Config(SIZE, SIZE, cell="lstm", memory_span=span, **shape)).named_parameters()
        )

    plain, long = weights(None), weights(50)
    differ = {name for name, weight in plain.items() if not torch.equal(weight, long[name])}
    assert differ == {
        f"{side}.layers.{number}.bias_ih" for side in ("encoder", "decoder") for number in (0, 1)
    }
