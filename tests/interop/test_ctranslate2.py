"""CTranslate2 runs our Transformer with the same tokens and scores; unsupported models are
rejected."""

import errno
import json
import random
import sys

import ctranslate2
import pytest

from tests.families import Generator
from tests.helpers import TINY, randomise
from tests.refusals import refusal
from transduct import storage
from transduct.data.tokenizer import Tokenizer
from transduct.inference import engine
from transduct.inference.settings import DecodingConfig
from transduct.interop.ctranslate2 import convert
from transduct.models.transformer import Config, Transformer
from transduct.tasks.model import write_model

BEGIN, END = Tokenizer.BEGIN, Tokenizer.END
LIMIT = 12


def written(folder, shared=True, **changes):
    """A model directory with random weights, and the model."""
    texts = [["the cat sat on the mat", "a dog"], ["die Katze sass", "ein Hund auf der Matte"]]
    tokenizers = [
        Tokenizer.train(text, "character", 40) for text in (texts[:1] if shared else texts)
    ]
    names = ["tokenizer.json"] if shared else ["tokenizer.source.json", "tokenizer.target.json"]
    for tokenizer, name in zip(tokenizers, names, strict=True):
        tokenizer.save(folder / name)
    shape = {**TINY, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    sizes = dict(zip(("source_size", "target_size"), (tokenizers[n].size for n in (0, -1))))
    model = randomise(Transformer(Config(**{**sizes, **shape, "max_length": 16, **changes})).eval())
    write_model(folder / "model", "translation", model, {}, [folder / name for name in names], "")
    return model, tokenizers


VARIANTS = [
    {},
    {"norm": "post", "activation": "gelu"},
    {"norm_kind": "rms", "activation": "swiglu"},
    {"activation": "gelu_tanh", "positions": "learned"},
    {"activation": "silu", "positions": "none", "tie": "decoder"},
    {"positions": "sinusoidal_concatenated", "tie": "none"},
    {
        "positions": "sinusoidal_concatenated",
        "norm": "post",
        "activation": "silu",
        "output_bias": True,
    },
    {"positions": "binary", "shared": False, "tie": "decoder", "encoder_layers": 1},
    {"positions": "rotary"},
    {
        "positions": "relative",
        "max_length": 48,
    },  # farther than the distances that have vectors of their own
    {"num_kv_heads": 1},
    {
        "num_heads": 4,
        "num_kv_heads": 2,
        "positions": "rotary",
        "norm_kind": "rms",
        "activation": "swiglu",
    },
    {"d_k": 4},
    {"d_k": 4, "d_v": 4},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_it_finds_the_same_tokens_and_scores(tmp_path, changes):
    model, tokenizers = written(tmp_path, **changes)
    convert(tmp_path / "model", tmp_path / "out")
    translator = ctranslate2.Translator(
        str(tmp_path / "out"), compute_type="float32", intra_threads=1
    )
    generator, longest = random.Random(1), model.config.max_length - 7
    sources = [
        [*generator.choices(range(3, tokenizers[0].size), k=1 + i % longest), END]
        for i in range(100)
    ]
    # it adds the end token itself
    pieces = [tokenizers[0].pieces(source[:-1]) for source in sources]
    ids = {piece: i for i, piece in enumerate(tokenizers[-1].pieces(range(tokenizers[-1].size)))}
    greedy = {
        "beam_size": 1,
        "max_decoding_length": LIMIT,
        "min_decoding_length": 0,
        "return_scores": True,
    }
    theirs = translator.translate_batch(pieces, **greedy, length_penalty=0)
    config = DecodingConfig(beam=1, length_penalty=0.0)
    ours = engine.generate(model, sources, [LIMIT + 1] * len(sources), config, BEGIN, END)
    found_by_them = [[ids[piece] for piece in found.hypotheses[0]] for found in theirs]
    different = [
        (source, tokens, hypothesis.tokens)
        for source, tokens, [hypothesis] in zip(sources, found_by_them, ours)
        if tokens != hypothesis.tokens
    ]
    # Libraries round differently, so either token of a tie may be taken; ties are rare.
    assert len(different) <= 1
    for source, their, own in different:
        rows = Generator(model).logits(source, their)
        pairs = zip(rows, [*their, END], [*own, END])
        row, theirs_next, ours_next = next(pair for pair in pairs if pair[1] != pair[2])
        assert float(row[theirs_next]) == pytest.approx(float(row[ours_next]), abs=1e-4)
    for source, tokens, found in list(zip(sources, found_by_them, theirs))[:20]:
        likely = Generator(model).logits(source, tokens).double().log_softmax(-1)
        # at the limit theirs scores no end
        scored = tokens if len(tokens) == LIMIT else [*tokens, END]
        total = sum(float(row[token]) for row, token in zip(likely, scored))
        assert found.scores[0] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_padding_whose_row_is_zeros_is_not_written(tmp_path, bias):
    model, [tokenizer] = written(tmp_path, tie="decoder", output_bias=bias)
    model.requires_grad_(False)
    model.output_table -= 0.5
    model.decoder_norm.bias += 2.0  # of all logits, that of the padding, 0, is by far the highest
    model.output_table[BEGIN] = 0.0
    storage.write_file(
        tmp_path / "model" / storage.WEIGHTS, storage.pack(storage.weights_of(model))
    )
    convert(tmp_path / "model", tmp_path / "out")
    translator = ctranslate2.Translator(
        str(tmp_path / "out"), compute_type="float32", intra_threads=1
    )
    sources = [[3, 4, 5, END], [6, END], [7, 8, END]]
    pieces = [tokenizer.pieces(source[:-1]) for source in sources]
    found = translator.translate_batch(
        pieces, beam_size=1, max_decoding_length=LIMIT, min_decoding_length=0
    )
    config = DecodingConfig(beam=1, length_penalty=0.0)
    limits = [LIMIT + 1] * len(sources)
    ours = engine.generate(model, sources, limits, config, BEGIN, END, forbidden=[BEGIN])
    assert [each.hypotheses[0] for each in found] == [
        tokenizer.pieces(hypothesis.tokens) for [hypothesis] in ours
    ]


def test_what_is_changed_in_a_text_is_said_and_does_not_disturb(tmp_path):
    written(tmp_path)
    held = tmp_path / "model" / "config.json"
    rule = {"side": "both", "pattern": "&amp;", "by": "&", "cycle": 0}
    held.write_text(json.dumps(json.loads(held.read_text()) | {"replace": [rule]}))
    convert(tmp_path / "model", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["replace"] == [rule]
    translator = ctranslate2.Translator(
        str(tmp_path / "out"), compute_type="float32", intra_threads=1
    )
    assert translator.translate_batch([["a"]], max_decoding_length=LIMIT)


@pytest.mark.parametrize(
    ("decoding", "lengths"),
    [
        ({}, (2.0, 20, 16)),
        ({"expansion": 1.5, "beam": 3}, (1.5, 20, 16)),
        ({"max_length": 9, "at_limit": "cut", "length_rule": "power"}, (0.0, 10, 10)),
        ({"max_length": 9, "expansion": 3.0, "stopping": "early"}, (3.0, 9, 9)),
    ],
)
def test_our_rules_of_a_search_are_noted(tmp_path, decoding, lengths):
    written(tmp_path)
    held = tmp_path / "model" / "config.json"
    held.write_text(json.dumps(json.loads(held.read_text()) | {"decoding": decoding}))
    convert(tmp_path / "model", tmp_path / "out")
    search = json.loads((tmp_path / "out" / "config.json").read_text())["search"]
    assert tuple(search.pop(name) for name in ("expansion", "more", "most")) == lengths
    expected = vars(DecodingConfig(**decoding))
    assert search == {name: expected[name] for name in search}
    assert len(search) == 5


def test_tokenizers_are_copied_and_no_temporary_file_is_left(tmp_path):
    written(tmp_path)
    convert(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (
        tmp_path / "tokenizer.json"
    ).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "tokenizer.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "alibi"}, "positions 'alibi' in an encoder"),
        (
            {"position_mode": "concatenate"},
            "positions 'sinusoidal' that are not added to the embedding",
        ),
        (
            {"position_mode": "attention"},
            "positions 'sinusoidal' that are not added to the embedding",
        ),
        ({"positions": "normalised_index"}, "positions that depend on the length of the sentence"),
        ({"d_v": 4}, "heads of the widths d_k None and d_v 4"),
        ({"bias": False}, "a model with bias=false"),
    ],
)
def test_what_it_has_no_place_for_is_refused(tmp_path, changes, message):
    written(tmp_path, **changes)
    with refusal(f"CTranslate2 does not support {message}; train a model without it"):
        convert(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    written(tmp_path)
    (tmp_path / "file").touch()
    with refusal(r"file/out: cannot be written \(Not a directory\); choose another place"):
        convert(tmp_path / "model", tmp_path / "file" / "out")

    def full(self, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ctranslate2.specs.TransformerSpec, "save", full)
        with refusal("out: the disk is full; nothing was changed there"):
            convert(tmp_path / "model", tmp_path / "out")
    put = storage.put_in_place

    def late(beside, directory):
        directory.mkdir()
        (directory / "precious").touch()
        put(beside, directory)

    monkeypatch.setattr(storage, "put_in_place", late)
    with refusal("out: exists already; choose another name"):
        convert(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out" / "precious").exists()
    assert not list(tmp_path.glob(".*"))


def test_the_line_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with refusal(r"ctranslate2 is not installed; run: pip install 'transduct\[ctranslate2"):
        convert(tmp_path, tmp_path / "out")
