"""The peers do the same work: the requested number of tokens, in the same groups, with a model of
the same size."""

import sys

import pytest
import torch

from transduct.errors import TransductError
from transduct.interop import ctranslate2 as interop
from transduct.models.transformer import Config, Transformer
from transduct_bench import peers
from transduct_bench.ours import untrained
from transduct_bench.peers import END, IGNORED, groups

SHAPE = {
    "dropout": 0.1,
    "vocabulary": 40,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 32,
}
SOURCES, LENGTHS = [[3, 4], [5, 6, 7], [8, 9, 10], [3, 11, 12, 13]], [5, 5, 7, 7]
BATCHES = [([[3, 4], [5, 6, 7]], [[8, 9], [10, 11, 12]]), ([[4]], [[5, 6]])]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A model as CTranslate2 reads it."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("models")
    untrained(folder / "ours", "tiny", 40)
    interop.convert(folder / "ours", folder / "theirs")
    return str(folder / "theirs")


@pytest.fixture
def translations(monkeypatch):
    """What CTranslate2 wrote: the tokens of every output."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    held = []

    class Translator(ctranslate2.Translator):
        def translate_batch(self, *given, **named):
            jobs = super().translate_batch(*given, **named)
            held.extend([job.result().hypotheses[0] for job in jobs])
            return jobs

    monkeypatch.setattr(ctranslate2, "Translator", Translator)
    return held


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("workers, threads", [(1, 1), (2, 1)])
def test_ctranslate2_writes_exactly_as_many_tokens_as_asked(
    converted, translations, beam, workers, threads
):
    run = peers.ctranslate2_decoding(
        converted, SOURCES, LENGTHS, beam, "int8", 4, workers, threads, "cpu"
    )
    assert run() == sum(LENGTHS)
    assert sorted(len(tokens) for tokens in translations) == sorted(LENGTHS)
    assert len(translations[0]) == max(LENGTHS), (
        "the longest first, which no other worker then waits for"
    )
    assert run() == sum(LENGTHS), "again"


def test_ctranslate2_left_alone_ends_where_it_ends(converted, translations):
    run = peers.ctranslate2_decoding(converted, SOURCES, None, 1, "float32", 4, 1, 1, "cpu")
    assert run() == sum(len(tokens) + 1 for tokens in translations), (
        "the end of each is a token too"
    )


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_transformers_writes_exactly_as_many_tokens_as_asked(monkeypatch, beam, precision):
    transformers = pytest.importorskip("transformers")
    held, generate = [], transformers.MarianMTModel.generate

    def recorded(self, *given, **named):
        found = generate(self, *given, **named)
        held.extend(found.tolist())
        return found

    monkeypatch.setattr(transformers.MarianMTModel, "generate", recorded)
    torch.manual_seed(1)
    run = peers.transformers_decoding(SHAPE, SOURCES, LENGTHS, beam, precision, 4, 1, "cpu")
    assert run() == sum(LENGTHS)
    assert [len(tokens) - 1 for tokens in held] == LENGTHS, "a token to begin with, and these"
    assert not [tokens for tokens in held if END in tokens[:-1]]


@pytest.mark.parametrize("train", [peers.torch_training, peers.transformers_training])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_peers_learn_from_every_token(monkeypatch, train, precision):
    if train is peers.transformers_training:
        pytest.importorskip("transformers")
    made, optimiser = [], torch.optim.AdamW

    def recorded(parameters, **named):
        made.extend(parameters)
        return optimiser(made, **named)

    monkeypatch.setattr(torch.optim, "AdamW", recorded)
    torch.manual_seed(1)
    run = train(SHAPE, BATCHES, precision, 1, "cpu")
    before = [p.detach().clone() for p in made]
    assert run() == sum(len(target) + 1 for _, targets in BATCHES for target in targets)
    assert all(
        not torch.equal(p, old) for p, old in zip(made, before, strict=True) if p.requires_grad
    )
    assert all(p.isfinite().all() for p in made)


@pytest.mark.parametrize("train", [peers.torch_training, peers.transformers_training])
def test_peers_clip_gradients_as_ours_does(monkeypatch, train):
    if train is peers.transformers_training:
        pytest.importorskip("transformers")
    norms, optimiser = [], torch.optim.AdamW

    def watched(parameters, **named):
        made = optimiser(parameters, **named)
        learnt = [p for p in made.param_groups[0]["params"] if p.requires_grad]
        for p in learnt:
            # so that there is something to clip
            p.register_hook(lambda gradient: 1000.0 * gradient)
        made.register_step_pre_hook(
            lambda *_: norms.append(torch.nn.utils.get_total_norm([p.grad for p in learnt]))
        )
        return made

    monkeypatch.setattr(torch.optim, "AdamW", watched)
    torch.manual_seed(1)
    train(SHAPE, BATCHES, "float32", 1, "cpu")()
    assert [norm.item() for norm in norms] == pytest.approx([1.0] * len(BATCHES), rel=1e-3)


def test_models_are_of_the_same_size(monkeypatch):
    pytest.importorskip("transformers")
    sizes = {name: SHAPE[name] for name in SHAPE if name not in ("dropout", "vocabulary")}
    ours = sum(p.numel() for p in Transformer(Config(40, 40, **sizes)).parameters())
    marian = sum(p.numel() for p in peers._marian(SHAPE, "cpu").parameters() if p.requires_grad)
    assert marian == pytest.approx(ours, abs=4 * 16), (
        "norms at the end of each stack are ours alone"
    )


@pytest.mark.parametrize("peer", ["ctranslate2", "transformers"])
def test_a_peer_that_is_missing_is_said(monkeypatch, peer):
    monkeypatch.setitem(sys.modules, peer, None)
    work = (SOURCES, LENGTHS, 1, "float32", 4, 1)
    function, given, extra = {
        "ctranslate2": (peers.ctranslate2_decoding, ("model", *work, 1, "cpu"), "ctranslate2"),
        "transformers": (peers.transformers_decoding, (SHAPE, *work, "cpu"), "bench"),
    }[peer]
    with pytest.raises(TransductError) as caught:
        function(*given)
    assert str(caught.value) == f"{peer} is not installed; run: pip install 'transduct[{extra}]'"


@pytest.mark.parametrize(
    "lengths, most, expected",
    [
        ([4, 4, 4, 5, 5], 2, [("ab", 4), ("c", 4), ("de", 5)]),
        ([4, 4, 4, 5, 5], 9, [("abc", 4), ("de", 5)]),
        (None, 3, [("abc", None), ("de", None)]),
        ([1, 2, 1, 1, 2], 1, [("a", 1), ("b", 2), ("c", 1), ("d", 1), ("e", 2)]),
    ],
)
def test_groups_are_neighbours_of_one_length(lengths, most, expected):
    assert list(groups("abcde", lengths, most)) == [
        (list(items), length) for items, length in expected
    ]
    assert list(groups([], lengths and [], most)) == []


def test_rows_are_filled_up():
    assert peers._padded([[1], [2, 3]], IGNORED).tolist() == [[1, IGNORED], [2, 3]]
