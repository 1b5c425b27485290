"""GPT masks the future, continues prompts like whole sequences, and equals GPT-2 with its
weights."""

import math

import pytest
import torch

from tests.helpers import SIZE, TINY, gradients, randomise, tokens_of
from transduct.models.gpt import GPT, Config
from transduct.segments import Segments

POSITIONS = [
    *(
        "none",
        "index",
        "normalised_index",
        "binary",
        "one_hot",
        "learned",
        "sinusoidal",
        "sinusoidal_concatenated",
    ),
    *("rotary", "alibi", "relative"),
]
LENGTHS = [5, 2, 7]

at_every_position = pytest.mark.parametrize("positions", POSITIONS)


def tiny(seed=1, **changes):
    """A GPT of two layers and width 16, ready to be used."""
    torch.manual_seed(seed)
    shape = {**TINY, "layers": 2, "dropout": 0.0, "max_length": 16}
    return randomise(GPT(Config(SIZE, **{**shape, **changes})).eval(), seed)


def run(model, tokens, segments):
    return model.logits(model.hidden(tokens, segments))


@at_every_position
@torch.no_grad()
def test_a_token_sees_itself_and_what_came_before_in_its_own_sequence(positions):
    model, (tokens, segments) = tiny(positions=positions), tokens_of(LENGTHS)
    other = tokens.clone()
    other[[3, 8]] = (
        other[[3, 8]] + 1
    ) % SIZE  # the fourth token of the first sequence, the second of the third
    difference = (run(model, tokens, segments) - run(model, other, segments)).abs().amax(-1)
    assert difference[[0, 1, 2, 5, 6, 7]].max() < 1e-5
    assert difference[[3, 4, *range(8, 14)]].min() > 1e-3


@torch.no_grad()
def test_a_sequence_is_given_the_same_logits_alone_and_in_a_batch():
    model, (tokens, segments) = tiny(norm="post"), tokens_of(LENGTHS)
    together = run(model, tokens, segments).split(LENGTHS)
    for part, logits in zip(tokens.split(LENGTHS), together, strict=True):
        torch.testing.assert_close(
            run(model, part, Segments.of([len(part)])), logits, atol=1e-5, rtol=1e-5
        )


# search goes on from prompts


def begin(model, prompts, beam):
    """The state after all but the last tokens of some prompts."""
    lengths = [len(prompt) - 1 for prompt in prompts]
    segments = Segments.of(lengths)
    return model.start(
        model.encode(torch.cat([prompt[:-1] for prompt in prompts]), segments), segments, beam
    )


def steps(model, prompts, rows, beam):
    """Logits (R, t + 1, V) after the last token of each prompt and after each of the tokens (R, t)
    that follow."""
    state, found = begin(model, prompts, beam), []
    last = torch.stack([prompt[-1] for prompt in prompts]).repeat_interleave(beam)
    for tokens in [last, *rows.unbind(1)]:
        logits, state = model.step(tokens, state)
        found.append(logits)
    return torch.stack(found, 1)


def at_once(model, prompts, rows, beam):
    """The same from whole sequences."""
    wholes = [torch.cat((prompts[row // beam], tokens)) for row, tokens in enumerate(rows)]
    logits = run(model, torch.cat(wholes), Segments.of(list(map(len, wholes)))).split(
        list(map(len, wholes))
    )
    return torch.stack([each[-rows.shape[1] - 1 :] for each in logits])


def prompts_and_rows(lengths, beam, count=4):
    tokens, rows = tokens_of(lengths, 1)[0], tokens_of([count] * len(lengths) * beam, 2)[0]
    return tokens.split(lengths), rows.view(-1, count)


CASES = [{"positions": positions} for positions in POSITIONS] + [
    {"norm": "post"},
    {"tie": False, "activation": "swiglu", "norm_kind": "rms", "positions": "rotary"},
]


@pytest.mark.parametrize("changes", CASES, ids=lambda changes: "-".join(map(str, changes.values())))
@pytest.mark.parametrize("lengths", [[3, 1, 6], [1, 1], [4, 4]], ids=str)
@torch.no_grad()
def test_steps_from_a_prompt_equal_the_whole_sequence(changes, lengths):
    model, beam = tiny(**changes), 3
    prompts, rows = prompts_and_rows(lengths, beam)
    expected = at_once(model, prompts, rows, beam)
    torch.testing.assert_close(steps(model, prompts, rows, beam), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_prompt_is_given_the_same_steps_alone_and_in_a_batch():
    model, beam = tiny(), 2
    prompts, rows = prompts_and_rows([3, 1, 6], beam)
    together = steps(model, prompts, rows, beam).split(beam)
    for prompt, part, logits in zip(prompts, rows.split(beam), together, strict=True):
        torch.testing.assert_close(steps(model, [prompt], part, beam), logits, atol=1e-5, rtol=1e-5)


@at_every_position
@torch.no_grad()
def test_select_keeps_rows_in_the_order_given(positions):
    model, beam = tiny(positions=positions), 3
    prompts, rows = prompts_and_rows([3, 1, 6, 4], beam)
    state = begin(model, prompts, beam)
    _, state = model.step(
        torch.stack([prompt[-1] for prompt in prompts]).repeat_interleave(beam), state
    )
    swapped = torch.tensor([2, 2, 0, 3, 5, 4, 8, 7, 6, 9, 9, 9])  # within each source
    _, state = model.step(rows[:, 0], state)
    state.select(swapped)
    _, state = model.step(rows[:, 1], state)
    kept = torch.tensor([1, 0, 2, 11, 9, 10])  # the second and the third source are finished
    state.select(kept)
    found, _ = model.step(rows[kept, 2], state)
    histories = torch.stack((rows[swapped, 0], rows[:, 1], rows[:, 2]), 1)[kept]
    expected = at_once(model, [prompts[0], prompts[3]], histories, beam)[:, -1]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_prompt_is_kept_once_whatever_the_beam():
    model = tiny()
    prompts, _ = prompts_and_rows([3, 1, 6], 1)
    state = begin(model, prompts, 5)
    assert [tuple(prompt.keys.shape) for prompt in state.memories] == [(3, 4, 5, 4)] * 2
    assert state.positions.tolist() == [2] * 5 + [0] * 5 + [5] * 5


@torch.no_grad()
def test_a_finished_row_may_be_stepped_on_beyond_the_last_position():
    model = tiny(max_length=4)
    prompts, rows = prompts_and_rows([4, 1], 1, count=3)
    found = steps(model, prompts, rows, 1)
    torch.testing.assert_close(
        found[1:], at_once(model, prompts[1:], rows[1:], 1), atol=1e-4, rtol=1e-4
    )
    assert found.isfinite().all()


# what it is made of


def test_asking_for_weights_changes_nothing_and_gives_one_a_layer():
    model, (tokens, segments) = tiny(positions="alibi"), tokens_of(LENGTHS)
    weights = []
    found = model.hidden(tokens, segments, weights)
    torch.testing.assert_close(found, model.hidden(tokens, segments))
    assert model.attention_names == ["decoder.0.self", "decoder.1.self"]
    assert [tuple(each.shape) for each in weights] == [(3, 4, 7, 7)] * 2
    assert all(torch.equal(each, each.tril()) for each in weights)


@at_every_position
@torch.no_grad()
def test_in_bfloat16_everything_stays_in_bfloat16(positions):
    model, (tokens, segments) = tiny(positions=positions), tokens_of(LENGTHS)
    expected = run(model, tokens, segments)
    found = run(model.bfloat16(), tokens, segments)
    assert found.dtype == torch.bfloat16
    assert float((found.float() - expected).abs().mean()) < 0.05 * float(expected.abs().mean())
    prompts, rows = prompts_and_rows([3, 1], 2)
    assert steps(model, prompts, rows, 2).dtype == torch.bfloat16


def test_a_tied_table_is_one_parameter():
    tied, own = tiny(), tiny(tie=False)
    assert tied.output_table is tied.embedding.table
    assert own.output_table is not own.embedding.table


# GPT-2's names of the parts of a layer, and ours.
PARTS = {
    "wpe": "embedding.positions.table",
    "ln_f": "decoder_norm",
    "ln_1": "around_attention.norm",
    "attn.c_proj": "self_attention.output",
    "ln_2": "around_feed_forward.norm",
    "mlp.c_fc": "feed_forward.inner",
    "mlp.c_proj": "feed_forward.outer",
}


def as_ours(tensors):
    """Tensors by GPT-2's names, by our names; its linear layers are turned, and one of them is
    three of ours."""
    named = {}
    for name, tensor in tensors.items():
        *place, part, kind = name.removeprefix("transformer.").replace("h.", "decoder.").split(".")
        module = ".".join([*place, part])
        tensor = tensor.T if part.startswith("c_") and kind == "weight" else tensor
        if part == "wpe":
            named[PARTS[part]] = tensor
        elif part == "c_attn":
            layer = module.removesuffix("attn.c_attn")
            for head, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                named[f"{layer}self_attention.{head}.{kind}"] = third
        elif part != "wte":
            theirs = next(each for each in PARTS if module.endswith(each))
            named[f"{module.removesuffix(theirs)}{PARTS[theirs]}.{kind}"] = tensor
    return named


def test_logits_and_gradients_are_those_of_gpt_2():
    transformers = pytest.importorskip(
        "transformers", reason="parity with GPT-2 needs transformers"
    )
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_inner=32,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    theirs = randomise(transformers.GPT2LMHeadModel(config).eval(), 3)
    ours, root = tiny(tie=False), math.sqrt(16)
    weights, mine = dict(theirs.named_parameters()), dict(ours.named_parameters())
    table = weights["transformer.wte.weight"]
    copied = as_ours(weights)
    assert copied.keys() == mine.keys() - {"embedding.table", "output_table"}
    with torch.no_grad():
        mine["embedding.table"].copy_(table / root)  # ours are scaled by the root of the width
        mine["output_table"].copy_(table)
        for name, weight in copied.items():
            mine[name].copy_(weight)

    tokens = tokens_of([5] * 3)[0].view(3, 5)
    expected = theirs(input_ids=tokens).logits
    found = run(ours, tokens.flatten(), Segments.of([5] * 3)).view(expected.shape)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    found, expected = found / 15, expected / 15  # a mean over tokens, as a loss is one
    wanted = dict(zip(weights, gradients(expected, list(weights.values())), strict=True))
    grads = dict(zip(mine, gradients(found, list(mine.values())), strict=True))
    of_table = grads.pop("embedding.table") / root + grads.pop("output_table")
    torch.testing.assert_close(of_table, wanted["transformer.wte.weight"], atol=1e-5, rtol=1e-5)
    wanted = as_ours(wanted)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], atol=1e-5, rtol=1e-5)
