"""Named sizes, and properties of every generating model: cache, search and scores."""

import re
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.families import GENERATORS
from tests.helpers import END, PLACES, SIZE, tiny, tokens_of
from tests.models import (
    test_bert,
    test_dalle,
    test_detr,
    test_gpt,
    test_rnn,
    test_transformer,
    test_vit,
)
from tests.models.stepping import assert_steps_equal_whole_sequences
from transduct.inference import engine
from transduct.inference.batches import encode
from transduct.inference.settings import DecodingConfig
from transduct.models import bert, detr, gpt, rnn, speech, transformer, vit
from transduct.models.dalle import CodesConfig

SEQUENCES = [[3, 4, 5, 6], [7], [8, 3], [4, 4, 9, 10, 5, 6]]


NAMED = {
    bert.Bert: lambda size: bert.Config(100, **bert.SIZES[size]),
    detr.Detr: lambda size: detr.Config(10, **detr.SIZES[size]),
    rnn.RNN: lambda size: rnn.Config(100, 100, **rnn.SIZES[size]),
    speech.Speech: lambda size: speech.Config(30, **speech.SIZES[size]),
    transformer.Transformer: lambda size: transformer.Config(100, 100, **transformer.SIZES[size]),
    vit.ViT: lambda size: vit.Config(10, **vit.SIZES[size]),
}


@pytest.mark.parametrize("model", NAMED, ids=lambda model: model.__name__)
def test_every_named_size_can_be_built(model):
    with torch.device("meta"):
        for size in sys.modules[model.__module__].SIZES:
            model(NAMED[model](size))


PUBLISHED = {"norm": "post", "positions": "learned", "embedding_norm": True, "max_length": 512}
WORDS = transformer.Config(37_000, 37_000, norm="post")


@pytest.mark.parametrize(
    "model, config, size, count",
    [
        # with two labels, as bert-base-uncased
        (
            bert.Bert,
            bert.Config(30_521, head="sequence", labels=2, **PUBLISHED),
            "base",
            109_483_778,
        ),
        (gpt.GPT, gpt.Config(65, max_length=256), "tiny", 0.8),
        (gpt.GPT, gpt.Config(65, max_length=256), "small", 10.7),
        (gpt.GPT, gpt.Config(50_257, max_length=256), "base", 123.7),
        (transformer.Transformer, WORDS, "base", 63.1),
        (transformer.Transformer, WORDS, "big", 214.2),
        # for ImageNet's thousand labels (Touvron et al. 2021; Dosovitskiy et al.)
        (vit.ViT, vit.Config(1000), "tiny", 5_717_416),
        (vit.ViT, vit.Config(1000), "small", 22_050_664),
        (vit.ViT, vit.Config(1000), "base", 86_567_656),
    ],
)
def test_sizes_are_those_of_the_papers(model, config, size, count):
    """To the parameter, or to a tenth of a million."""
    with torch.device("meta"):
        built = model(replace(config, **sys.modules[model.__module__].SIZES[size]))
    found = sum(p.numel() for p in built.parameters())
    assert (found if isinstance(count, int) else round(found / 1e6, 1)) == pytest.approx(
        count, abs=0.2 if model is gpt.GPT else 0
    )


CODES = {"picture_size": 6, "channels": [16], "codes": 7, "d_code": 4}
CHANNELS = "must list channels such as 8, 16, 40 or 64 that divide into groups of about 16"
TWO_WAYS = "must be even: each of two directions has half of it"
ONE_LIST = "one shared vocabulary, found 7 and 9 entries; set tokenizer.shared=true"
SIDES = {"source_size": 7, "target_size": 7}
IMPOSSIBLE = [  # a configuration that is possible, changes, and what they are told
    *((bert.Config, {"vocabulary_size": 7}, *each) for each in [
        ({"n_grams": 2, "head": "tokens", "labels": 2},
         "n_grams is 2, but only the head 'sequence' has n-grams; set"),
        ({"max_length": 4, "head": "span"},
         "max_length is 4, must be at least 5 for the head 'span'"),
        ({"head": "sequence"}, "labels is 0, must be at least 2 for the head 'sequence'"),
        ({"head": "tokens", "labels": 1}, "labels is 1, must be at least 2 for the head 'tokens'"),
    ]),
    *((rnn.Config, SIDES, *each) for each in [
        ({"d_hidden": 7}, f"d_hidden is 7, {TWO_WAYS}"),
        ({"d_model": 9}, f"d_hidden is 9, {TWO_WAYS}"),
        ({"memory_span": 64},
         "memory_span is 64, but a gru cell has no forget gates; leave it out or set cell to lstm"),
        ({"target_size": 9}, ONE_LIST),
    ]),
    *((transformer.Config, SIDES, *each) for each in [
        ({"d_model": 10, "num_heads": 4}, "d_model 10 is not a multiple of num_heads 4; set d_k"),
        ({"num_kv_heads": 3}, "num_heads 8 is not a multiple of num_kv_heads 3"),
        ({"target_size": 9}, ONE_LIST),
    ]),
    *((vit.Config, {"labels": 7}, *each) for each in [
        ({"image_size": 30}, "image_size is 30, must be a multiple of patch_size (16)"),
        ({"backbone": [8, 16]},
         "patch_size is 16, must be 4, as backbone has 2 levels of stride 2"),
    ]),
    *((detr.Config, test_detr.SHAPE, *each) for each in [
        ({"channels": []}, f"channels is [], {CHANNELS}"),
        ({"channels": [8, -3]}, f"channels is [8, -3], {CHANNELS}"),
        ({"channels": [50]}, f"channels is [50], {CHANNELS}"),
        ({"side": 30}, "side is 30, must be a multiple of 4"),
        ({"queries": 5}, "queries is 5, must be a square number"),
        ({"d_model": 18}, "d_model is 18, must be a multiple of 4 and of num_heads (2)"),
    ]),
    (speech.Config, {"vocabulary_size": 7, "bands": 8, "num_heads": 4}, {"bands": 6,
     "heads": "bands"}, "bands is 6, must be a multiple of num_heads 4 for heads=bands"),
    *((CodesConfig, CODES, *each) for each in [
        ({"channels": []}, f"channels is [], {CHANNELS}"),
        ({"channels": [50]}, f"channels is [50], {CHANNELS}"),
        ({"channels": [16, 16]}, "picture_size is 6, must be a multiple of 4 for 2 levels"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("config, possible, changes, message", IMPOSSIBLE, ids=str)
def test_what_cannot_be_built_is_refused(config, possible, changes, message):
    assert config(**possible)
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**{**possible, **changes})


def bert_of(head):
    learned = {"positions": "learned", "embedding_norm": True, "activation": "swiglu"}
    model, (tokens, segments) = test_bert.tiny(head=head, **learned), tokens_of(test_bert.LENGTHS)
    return model, test_bert.scores(model, tokens, test_bert.TYPES, segments)


def transformer_of(positions, mode):
    shape = {"tie": "none", "activation": "swiglu"}
    model = tiny(positions=positions, position_mode=mode, **shape)
    return model, [test_transformer.run(model)]


def gpt_of(positions):
    model = test_gpt.tiny(positions=positions, tie=False, activation="swiglu")
    return model, [test_gpt.run(model, *tokens_of(test_gpt.LENGTHS))]


def rnn_of(attention, cell):
    model = test_rnn.tiny(attention=attention, cell=cell, tie="none")
    return model, [model.logits(test_rnn.run(model))]


def vit_of(pool, backbone):
    model = test_vit.tiny(pool=pool, backbone=backbone, activation="swiglu")
    return model, [test_vit.scores(model, test_vit.pictures())]


def detr_of():
    model = test_detr.tiny_detr()
    memory, grid = model.encode(test_detr.pictures())
    return model, [*model.decode(memory, grid), model.places(memory)]


def codes_of(quantiser):
    model = test_dalle.tiny_vae(quantiser=quantiser)
    remade, _, penalty = model(test_dalle.pictures(), 1.0)
    return model, [remade - test_dalle.pictures(), penalty]


@pytest.mark.parametrize(
    "made",
    [
        *((bert_of, head) for head in test_bert.HEADS),
        *((transformer_of, *place) for place in PLACES),
        *((gpt_of, positions) for positions in ("learned", "relative")),
        *((rnn_of, *each) for each in product(test_rnn.ATTENTIONS, ("tanh", "gru", "lstm"))),
        *((vit_of, *each) for each in product(test_vit.POOLS, test_vit.BACKBONES)),
        (detr_of,),
        *((codes_of, quantiser) for quantiser in ("vq", "gumbel")),
    ],
    ids=lambda made: " ".join([made[0].__name__, *map(str, made[1:])]),
)
def test_all_parameters_take_part(made):
    make, *how = made
    model, outputs = make(*how)
    sum(output.square().sum() for output in outputs).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@pytest.fixture(params=GENERATORS)
def family(request):
    return GENERATORS[request.param]()


def found_by(family, sequences, **options):
    sources, begin = family.inputs(sequences)
    limits = [2 + len(sequence) for sequence in sequences]
    return engine.generate(family.model, sources, limits, DecodingConfig(**options), begin, END)


@torch.inference_mode()
def test_a_cache_changes_nothing(family):
    sources, begin = family.inputs(SEQUENCES)
    memory, segments = encode(family.model, sources, torch.device("cpu"))
    state = family.model.start(memory, segments, beam=3)
    assert_steps_equal_whole_sequences(
        family.model, state, begin, 3, 5, (3, SIZE),
        lambda owner, row: family.logits(SEQUENCES[owner], row)[-1],
    )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 4}, {"beam": 3, "temperature": 1.0, "seed": 5}]
)
def test_a_score_is_the_sum_of_the_log_probabilities(family, options):
    for sequence, hypotheses in zip(SEQUENCES, found_by(family, SEQUENCES, **options), strict=True):
        for hypothesis in hypotheses:
            tokens = [*hypothesis.tokens, END]
            likely = family.logits(sequence, hypothesis.tokens).double().log_softmax(-1)
            total = sum(float(row[token]) for row, token in zip(likely, tokens, strict=True))
            assert hypothesis.score == pytest.approx(total, abs=1e-4)


def test_an_n_best_list_is_sorted_and_holds_nothing_twice(family):
    for hypotheses in found_by(family, SEQUENCES, beam=4, length_penalty=0.0):
        assert len(hypotheses) == 4
        assert [h.rank for h in hypotheses] == sorted((h.rank for h in hypotheses), reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == 4


def test_a_beam_of_one_takes_the_likeliest_token_each_time(family):
    for sequence, [hypothesis] in zip(SEQUENCES, found_by(family, SEQUENCES, beam=1), strict=True):
        likeliest = family.logits(sequence, hypothesis.tokens).argmax(-1).tolist()
        expected = [*hypothesis.tokens, END]
        if len(expected) == 2 + len(sequence):  # the limit ended it
            likeliest[-1] = END
        assert likeliest == expected


@pytest.mark.parametrize("options", [{"beam": 3}, {"beam": 2, "temperature": 0.8}])
def test_an_input_gives_the_same_outputs_alone_and_in_any_batch(family, options):
    together = found_by(family, SEQUENCES, **options)
    backwards = found_by(family, SEQUENCES[::-1], **options)[::-1]
    alone = [found_by(family, [sequence], **options)[0] for sequence in SEQUENCES]
    for one, other, third in zip(together, backwards, alone, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other] == [h.tokens for h in third]
        assert [h.score for h in one] == pytest.approx([h.score for h in third], abs=1e-5)
