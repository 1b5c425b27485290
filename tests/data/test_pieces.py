"""Characters are replaced by SentencePiece's rules as SentencePiece replaces them."""

import io
import json
import random
from array import array

import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.interop.published import SPECIALS, model_of
from tests.refusals import refusal
from transduct.data.pieces import Charsmap, Pieces
from transduct.interop import sentencepiece as models
from transduct.interop.sentencepiece import read

RANGES = [
    (0x20, 0x250),
    (0x300, 0x330),
    (0x1100, 0x1200),
    (0x1E00, 0x2040),
    (0x3040, 0x3200),
    (0xFF00, 0xFFF0),
]
LETTERS = [chr(code) for start, stop in RANGES for code in range(start, stop)]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A vocabulary may name few of a model's pieces, for here only its rules count."""
    monkeypatch.setattr(models, "ENOUGH", 0.0)


@pytest.fixture(params=["nmt_nfkc", "nmt_nfkc_cf", "identity"])
def both(request, tmp_path):
    """Its normaliser and ours."""
    model = model_of(0, rule=request.param)
    (tmp_path / "model").write_bytes(model)
    text = read(tmp_path / "model", ["<unk>", "<pad>", "</s>"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor, Pieces(tokenizers.Tokenizer.from_str(text), ["<unk>", "<s>", "</s>"])


def test_texts_are_normalised_as_there(both):
    theirs, ours = both
    generator = random.Random(1)
    texts = ["".join(generator.choices(LETTERS, k=12)) for _ in range(500)]
    texts += ["plain ASCII", "Under\x01control\t", "", "  ", "a  b ", "▁", "각 각", "😀\ud800"[:1]]
    assert [ours.normalised(text) for text in texts] == [
        "".join(theirs.encode(text, out_type=str)) for text in texts
    ]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_text_that_the_rules_empty_still_begins_a_word_where_blanks_are_kept(tmp_path, kind):
    parsed = proto.ModelProto.FromString(model_of(0, kind))
    parsed.normalizer_spec.remove_extra_whitespaces = False
    (tmp_path / "model").write_bytes(parsed.SerializeToString())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=parsed.SerializeToString())
    ours = Pieces(tokenizers.Tokenizer.from_str(read(tmp_path / "model", SPECIALS)), SPECIALS)
    for text in ("\x7f", "", " ", "a ", "  a"):
        assert ours.normalised(text) == "".join(theirs.encode(text, out_type=str))


def test_a_replacement_that_would_lie_beyond_the_end_is_empty():
    units = [1 << 10, *[0] * 255]
    units[1 ^ ord("é".encode()[:1])] = (ord("é".encode()[:1]) | 0x100) | 2 << 10
    units[1 ^ ord("é".encode()[:1]) ^ 2] = 1 << 30
    charsmap = Charsmap((1024).to_bytes(4, "little") + array("I", units).tobytes() + b"a\0")
    assert charsmap.longest("é".encode(), 0) == (1, 1 << 30)
    assert charsmap("aéb") == "a\ufffdb"  # of two bytes the first became nothing


def test_rules_that_lengthen_a_text_a_thousand_times_are_refused():
    units = [1 << 10, *[0] * 255]
    units[1 ^ ord("a")] = ord("a") | 0x100 | 2 << 10
    units[1 ^ ord("a") ^ 2] = 1 << 31
    charsmap = Charsmap((1024).to_bytes(4, "little") + array("I", units).tobytes() + b"b" * 1000)
    assert charsmap("a" * 9) == "b" * 9000
    with refusal("character rules lengthen a text over 20 times; take"):
        charsmap("a" * 100_000)


def test_a_rule_for_several_letters_of_ascii_is_applied(tmp_path):
    (tmp_path / "rules.tsv").write_text("2E 2E 2E\t2026\n60 60\t22\n")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['one... ``two a.. `b…"']),
        model_writer=written,
        vocab_size=30,
        minloglevel=2,
        normalization_rule_tsv=str(tmp_path / "rules.tsv"),
        hard_vocab_limit=False,
    )
    model = written.getvalue()
    (tmp_path / "model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = Pieces(tokenizers.Tokenizer.from_str(read(tmp_path / "model", SPECIALS)), SPECIALS)
    for text in ("one...", "``two", "a.. `b"):
        assert ours.normalised(text) == "".join(theirs.encode(text, out_type=str))
    assert ours.charsmap.keeps_ascii is False


def test_a_damaged_trie_that_leads_in_a_circle_is_left():
    units = [1 << 10, *[0] * 255]
    units[1 ^ ord("a")] = ord("a") | (1 ^ ord("a") ^ 1) << 10  # its child is where the search began
    assert Charsmap((1024).to_bytes(4, "little") + array("I", units).tobytes() + b"a\0").keeps_ascii


def test_ascii_takes_the_short_way_only_where_no_rule_is_for_it(both):
    _, ours = both
    if ours.charsmap is not None:
        assert ours.charsmap.keeps_ascii == (ours.charsmap("A") == "A")
        assert json.dumps(ours.charsmap("\ud800")) == '"?"'  # half a character, of no text
