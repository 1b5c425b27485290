"""The graphs compute what our Transformer does, alone and in batches; the program in docs/onnx.md
translates alike."""

import json
import random
import re
import sys
from pathlib import Path

import numpy
import onnx
import onnxruntime
import pytest
import torch

from tests.families import Generator
from tests.interop import published
from tests.interop.test_ctranslate2 import BEGIN, END, written
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.interop import onnx as ours
from transduct.interop import published as reader
from transduct.interop.onnx import convert
from transduct.predictors.base import load

SEARCH = {"beam": 3, "length_penalty": 0.6}
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
VARIANTS = [
    {
        "norm": "post",
        "activation": "gelu",
        "positions": "rotary",
        "num_kv_heads": 1,
        "encoder_layers": 1,
    },
    {},
    {"norm_kind": "rms", "activation": "swiglu", "positions": "alibi", "d_v": 6, "tie": "none"},
    {
        "activation": "gelu_tanh",
        "positions": "relative",
        "d_k": 6,
        "encoder_layers": 1,
        "decoder_layers": 1,
    },
    {
        "activation": "silu",
        "positions": "normalised_index",
        "position_mode": "attention",
        "output_bias": True,
    },
    {
        "positions": "binary",
        "position_mode": "concatenate",
        "shared": False,
        "tie": "decoder",
        "decoder_layers": 1,
    },
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A folder with the first of these, which changes its text, and its graphs; its model and
    tokenizers."""
    folder = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(1)
    held = written(folder, **VARIANTS[0])
    rules = [
        {"side": "source", "pattern": "dog", "by": "cat"},
        {"side": "target", "pattern": "cat", "by": "mat"},
    ]
    published.edit(folder / "model" / "config.json", replace=rules, decoding=SEARCH)
    convert(folder / "model", folder / "de-en.onnx")
    return folder, *held


class Graphs:
    """The two graphs of a folder."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(
                folder / f"{name}.onnx", providers=["CPUExecutionProvider"]
            )
            for name in ("encoder", "decoder")
        )

    def scores(self, sources, rows):
        """(B, R, T, V): what stands before each token of R rows of each source, which are all as
        long."""
        lengths = numpy.array([len(source) for source in sources])
        padded = numpy.array([source + [3] * (lengths.max() - len(source)) for source in sources])
        keys, values = self.encoder.run(None, {"source": padded, "lengths": lengths})
        tokens = numpy.array(rows)
        shape = (self.config["decoder_layers"], *tokens.shape[:2], self.config["num_kv_heads"], 0)
        past = [numpy.zeros((*shape, self.config[width]), "float32") for width in ("d_k", "d_v")]
        memory, found = {"keys": keys, "values": values, "lengths": lengths}, []
        for place in range(tokens.shape[2]):
            inputs = {
                "tokens": tokens[..., place],
                "past_keys": past[0],
                "past_values": past[1],
                **memory,
            }
            scores, *past = self.decoder.run(None, inputs)
            found.append(scores)
        return torch.from_numpy(numpy.stack(found, 2))


def test_every_row_of_every_source_has_our_scores(converted):
    folder, model, tokenizers = converted
    check_scores(folder / "de-en.onnx", model, tokenizers)


# Each has what the others have, and takes ten seconds.
@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS[1:], ids=str)
def test_other_varieties_have_our_scores(tmp_path, changes):
    torch.manual_seed(1)
    held = written(tmp_path, **changes)
    convert(tmp_path / "model", tmp_path / "out")
    check_scores(tmp_path / "out", *held)


def check_scores(folder, model, tokenizers):
    generator = random.Random(1)
    sources = [
        [*generator.choices(range(3, tokenizers[0].size), k=length), END] for length in (1, 9, 4)
    ]
    rows = [
        [[BEGIN, *generator.choices(range(3, tokenizers[-1].size), k=6)] for _ in range(2)]
        for _ in sources
    ]
    found = Graphs(folder).scores(sources, rows)
    for source, outputs, theirs in zip(sources, rows, found, strict=True):
        for output, scores in zip(outputs, theirs, strict=True):
            expected = Generator(model).logits(source, output[1:]).log_softmax(-1)
            torch.testing.assert_close(scores[:, END:], expected[:, END:], atol=1e-4, rtol=0)
            assert bool((scores[:, [Tokenizer.UNKNOWN, BEGIN]] == float("-inf")).all())


def test_the_program_on_the_page_translates_as_we_do(converted, monkeypatch):
    monkeypatch.chdir(converted[0])
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    held = {}
    exec(program, held)
    texts = ["the cat sat", "a dog", "", "mat", "  ", "a </s> dog", "on the dog"]
    expected = [found.text for found in load("model").translate(texts, beam=1)]
    assert held["translate"](texts) == expected
    assert [held["translate"]([text])[0] for text in texts] == expected  # the same alone
    assert len({*expected}) > 1


@pytest.mark.slow
def test_the_program_on_the_page_translates_as_we_do_with_a_model_of_marians(tmp_path, monkeypatch):
    published.folder(tmp_path / "opus")
    reader.read(tmp_path / "opus", tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "de-en.onnx")
    monkeypatch.chdir(tmp_path)
    held = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0], held)
    # some pieces are not the model's
    texts = [">>fra<< twenty one", ">>fra<<", ">>xyz<< one", "one é two", "a b 7", ""]
    model = load("model")
    assert [held["encode"](text) for text in texts] == model.encode(texts)
    texts.remove(">>fra<<")  # nothing to translate, so that nothing is written
    assert held["translate"](texts) == [found.text for found in model.translate(texts, beam=1)]


def test_the_graphs_are_sound_and_say_nothing_of_where_they_were_made(converted):
    converted = converted[0]
    out = converted / "de-en.onnx"
    names = ["config.json", "decoder.onnx", "encoder.onnx", "tokenizer.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    config, own = (
        json.loads((folder / "config.json").read_text()) for folder in (out, converted / "model")
    )
    assert config["decoding"] == own["decoding"] == SEARCH
    assert config["replace"] == own["replace"]
    assert (out / "tokenizer.json").read_bytes() == (converted / "tokenizer.json").read_bytes()
    for name in names[1:3]:
        onnx.checker.check_model(out / name, full_check=True)
        content = (out / name).read_bytes()
        assert b"transduct" not in content
        assert b".py" not in content
    assert sorted(path.name for path in converted.iterdir()) == [
        "de-en.onnx",
        "model",
        "tokenizer.json",
    ]


def test_what_is_too_large_for_a_graph_is_refused(tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.setattr(ours, "LARGEST", 1000)
    with refusal(r"model: [\d,]+ bytes of weights; a graph in one file holds fewer than 1,000"):
        convert(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("library", ["onnx", "onnxscript"])
def test_the_libraries_are_an_extra(tmp_path, monkeypatch, library):
    written(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with refusal(rf"{library} is not installed; run: pip install 'transduct\[onnx\]'"):
        convert(tmp_path / "model", tmp_path / "out")
