"""Models go to Hugging Face's Marian and come back unchanged."""

import dataclasses
import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

import transduct
from tests.helpers import SIZE, tiny
from tests.interop import published
from tests.interop.published import TEXTS, edit, generated, renumbered, same_translations
from tests.interop.test_vocabularies import MARIAN as HARD
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct import storage
from transduct.data.tokenizer import Tokenizer, tokenizers_in
from transduct.interop.architectures import ACTIVATIONS as THEIRS
from transduct.interop.architectures import Bart, settings_of
from transduct.interop.huggingface import ACTIVATIONS, MARIAN, convert, their_config, unsupported
from transduct.interop.published import read
from transduct.models.transformer import Config
from transduct.runs.train import train
from transduct.tasks.model import write_model

LIKE = {"norm": "post", "positions": "sinusoidal_concatenated"}
# How our own search is asked for, of a model that brings theirs.
OURS = {"length_rule": "wu", "stopping": "likeliest", "at_limit": "end", "max_length": 12}


VARIETIES = [
    {"separate": True},
    {"tie_word_embeddings": False},
    {"separate": True, "tie_word_embeddings": False, "activation_function": "gelu"},
    {"biased": False, "activation_function": "relu", "encoder_layers": 1, "decoder_layers": 2},
    {"same": True, "rule": "identity", "activation_function": "gelu_new"},
]


@pytest.mark.parametrize("variety", VARIETIES, ids=str)
def test_varieties_translate_as_there_and_go_back_unchanged(tmp_path, variety):
    separate = variety.get("separate", False)
    model, named = published.folder(tmp_path / "opus", **variety)
    read(tmp_path / "opus", tmp_path / "ours")
    ours, tokenizer = (
        transduct.load(tmp_path / "ours"),
        published.tokenizer(tmp_path / "opus", separate),
    )
    assert (ours.model.config.output_bias, ours.decoding.beam) == (variety.get("biased", True), 3)
    same_translations(ours, model, tokenizer, renumbered(named[-1]), (1,))
    convert(tmp_path / "ours", tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("opus", "back"))
    orders = [
        sorted(renumbered(names), key=renumbered(names).get) for names in (named[0], named[-1])
    ]
    for name, tensor in after.items():
        order = torch.tensor(orders["encoder.embed" not in name])
        if name == "final_logits_bias":
            expected = before[name][:, order]
        elif name in ("lm_head.weight", "model.shared.weight") or "embed_tokens" in name:
            expected = before[name][order]
        else:
            expected = before[name]
        assert torch.equal(tensor, expected)
    assert after.keys() == before.keys() - (
        {"model.shared.weight"} if not model.config.tie_word_embeddings else set()
    )
    _, tokenizer = loaded(tmp_path / "back")
    assert [
        row[:-1] for row in tokenizer(text_target=TEXTS)["input_ids"]
    ] == ours.target_tokenizer.encode(TEXTS)


def loaded(path):
    """The model and the tokenizer that Hugging Face makes of a folder by itself."""
    library = published.transformers()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return library.AutoModelForSeq2SeqLM.from_pretrained(
            path
        ), library.AutoTokenizer.from_pretrained(path)


def test_transformers_reads_an_exported_model(original, tmp_path):
    convert(original[3], tmp_path / "back")
    model, tokenizer = loaded(tmp_path / "back")
    ours, same = (
        transduct.load(original[3]),
        {number: number for number in range(len(original[2][0]))},
    )
    # As they were read: a model in use also leaves out characters that nobody sees.
    sides = [Tokenizer.load(path) for path in tokenizers_in(original[3])]
    texts = [*HARD, *TEXTS]
    assert [row[:-1] for row in tokenizer(texts)["input_ids"]] == sides[0].encode(texts)
    assert [row[:-1] for row in tokenizer(text_target=texts)["input_ids"]] == sides[1].encode(texts)
    same_translations(ours, model, tokenizer, same, (1, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"length_penalty": 0.5},
        {"length_penalty": 0.0, "stopping": "early", "at_limit": "cut"},
        {"stopping": "never"},
    ],
)
def test_search_settings_go_there_and_come_back(original, tmp_path, changes):
    shutil.copytree(original[3], tmp_path / "ours")
    said = {"length_rule": "power", "beam": 2, "length_penalty": 1.0, "stopping": "estimate"}
    said |= {"no_repeat": 3, "max_length": published.LENGTH, "at_limit": "free"} | changes
    edit(tmp_path / "ours" / "config.json", decoding=said)
    convert(tmp_path / "ours", tmp_path / "out")
    search = published.transformers().GenerationConfig.from_pretrained(tmp_path / "out")
    assert (search.num_beams, search.length_penalty, search.no_repeat_ngram_size) == (
        *(2, said["length_penalty"], 3),
    )
    assert search.max_length == published.LENGTH + 1, "with the token that an output begins with"
    read(tmp_path / "out", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["decoding"] == said


@pytest.mark.parametrize("tie", ["all", "embeddings", "decoder", "none"])
def test_weights_come_back_whatever_is_tied(tmp_path, tie):
    tokenizer = Tokenizer.train(["a b c"], "character", SIZE)
    tokenizer.save(tmp_path / "tokenizer.json")
    sizes = dict.fromkeys(("source_size", "target_size"), tokenizer.size)
    model = tiny(**LIKE, **sizes, d_k=None, output_bias=True, tie=tie)
    tokenizers = [tmp_path / "tokenizer.json"]
    write_model(tmp_path / "model", "translation", model, {}, tokenizers, "")
    convert(tmp_path / "model", tmp_path / "out")
    theirs = loaded_model(tmp_path / "out")
    assert theirs.config.tie_word_embeddings == (tie in ("all", "decoder"))
    read(tmp_path / "out", tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def loaded_model(path):
    return published.transformers().AutoModelForSeq2SeqLM.from_pretrained(path)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_configuration_comes_back(activation):
    config = Config(SIZE, SIZE, **LIKE, dropout=0.3, attention_dropout=0.2, activation=activation)
    assert unsupported(config) is None
    found = settings_of(MARIAN, their_config(config), "config.json")
    names = {field.name for field in dataclasses.fields(Bart)} - {"decoder_vocab_size"}
    assert names <= their_config(config).keys()
    assert THEIRS[found.activation_function] == activation
    assert (found.dropout, found.attention_dropout) == (0.3, 0.2)


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_of_ours_is_read_by_hugging_face(tmp_path, shared):
    recipe = tiny_recipe(
        tokenizer={"shared": shared},
        model={"norm": "post", "positions": "sinusoidal_concatenated", "output_bias": shared},
        training={"steps": 10},
    )
    train(recipe, tmp_path / "run", notify=str)
    convert(tmp_path / "run" / "model", tmp_path / "out")
    ours, (model, tokenizer) = transduct.load(tmp_path / "run"), loaded(tmp_path / "out")
    texts = ["a b c", "", "  d\te  f ", "g</s>h", "Z ế"]
    assert tokenizer(texts)["input_ids"] == [
        [*row, 2] for row in ours.source_tokenizer.encode(texts)
    ]
    assert (tmp_path / "out" / "tokenizer.target.json").exists() != shared
    library = published.transformers()
    if not shared:
        target = library.PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "out" / "tokenizer.target.json")
        )
        assert target("a b c")["input_ids"] == [*ours.target_tokenizer.encode(["a b c"])[0], 2]
    for text, found in zip(texts, ours.translate(texts, beam=1), strict=True):
        source = tokenizer(text)["input_ids"]
        limit = min(recipe.data["max_length"], 2 * len(source) + 20)
        expected = generated(model, source, limit, [0, 1], num_beams=1) if text else []
        assert found.tokens == expected
    model.save_pretrained(tmp_path / "out")  # as after a training there
    if shared:
        tokenizer.save_pretrained(tmp_path / "out")
    read(tmp_path / "out", tmp_path / "back")
    before, after = tmp_path / "run" / "model", tmp_path / "back"
    for side in (0, -1):  # two that are equal come back as one
        came, went = (tokenizers_in(path)[side] for path in (after, before))
        assert came.read_bytes() == went.read_bytes()
    weights, found = (load_file(path / "model.safetensors") for path in (before, after))
    assert weights.keys() == found.keys()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())
    back = transduct.load(tmp_path / "back")
    assert back.translate(texts, **OURS) == ours.translate(texts, **OURS)
    held = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(
        json.dumps(held | {"vocab_size": held["vocab_size"] - 1})
    )
    message = (
        r"out/tokenizer.json: \d+ tokens, outputs begin after 1 and end with 2; "
        r"config.json says \d+, 1 and 2: copy"
    )
    with refusal(message):
        read(tmp_path / "out", tmp_path / "other")
    (tmp_path / "out" / "tokenizer.json").write_bytes(storage.POINTER)
    with refusal(r"out/tokenizer.json: a pointer of Git LFS, not a tokenizer; fetch"):
        read(tmp_path / "out", tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre"}, "norms of the kind 'layer' that stand 'pre'"),
        ({"norm_kind": "rms"}, "norms of the kind 'rms' that stand 'post'"),
        ({"positions": "sinusoidal"}, "positions 'sinusoidal'"),
        ({"positions": "rotary"}, "positions 'rotary'"),
        ({"position_mode": "attention"}, "positions that are not added to the embedding"),
        ({"activation": "swiglu"}, "activation 'swiglu'"),
        ({"d_k": 4}, "heads of the widths d_k 4"),
        ({"num_kv_heads": 1}, r"groups of heads \(1 for keys, 2 for queries\)"),
        ({"d_model": 15, "num_heads": 1}, "an odd d_model, 15"),
        ({"bias": False}, "a model with bias=false"),
    ],
)
def test_what_marian_cannot_say_is_refused(original, tmp_path, changes, message):
    shutil.copytree(original[3], tmp_path / "model")
    content = json.loads((tmp_path / "model" / "config.json").read_text())
    content["model"] |= changes
    (tmp_path / "model" / "config.json").write_text(json.dumps(content))
    remedy = (
        "train a model with model.norm=post model.positions=sinusoidal_concatenated, .* "
        "activation=relu"
    )
    with refusal(f"Marian does not support {message}.*; {remedy}"):
        convert(tmp_path / "model", tmp_path / "out")


def test_replacements_and_tokenizers_of_two_kinds_are_refused(original, tmp_path):
    ours = original[3]
    shutil.copytree(ours, tmp_path / "model")
    edit(tmp_path / "model" / "config.json", replace=[{"pattern": "a", "with": "b"}])
    with refusal("model: text is changed before it is cut; Marian does not support data"):
        convert(tmp_path / "model", tmp_path / "out")
    edit(tmp_path / "model" / "config.json", replace=None)
    size = json.loads((ours / "config.json").read_text())["model"]["target_size"]
    plain = Tokenizer.train([" ".join(map(str, range(2 * size)))], "word", size)
    plain.save(tmp_path / "model" / "tokenizer.target.json")
    with refusal("one of its tokenizers was SentencePiece's, one is ours"):
        convert(tmp_path / "model", tmp_path / "out")
