"""A converted SentencePiece model tokenizes as the original does, and converts back."""

import os
import random
import sys

import pytest
import sentencepiece as library
from google.protobuf import runtime_version
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.interop.published import LINES, SPECIALS, model_of, pieces_of
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer
from transduct.interop.sentencepiece import model_in, read, write

TEXTS = [*LINES[0][:30], "", "▁ a▁", "é  ñ 漢字 x", "</s> ガ"]


def peer(model):
    return library.SentencePieceProcessor(model_proto=model)


def tokenizer_of(tmp_path, model, names=None):
    (tmp_path / "source.spm").write_bytes(model)
    return read(tmp_path / "source.spm", SPECIALS + (pieces_of(model) if names is None else names))


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "identity"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_it_cuts_as_the_model_and_the_model_comes_back(tmp_path, kind, rule):
    model = model_of(0, kind, rule)
    text = tokenizer_of(tmp_path, model)
    tokenizer = Tokenizer(text)
    expected = peer(model).encode(TEXTS)
    assert tokenizer.kind == kind
    assert tokenizer.size == 3 + len(pieces_of(model))
    assert tokenizer.encode(TEXTS) == expected
    assert peer(write(model_in(text))).encode(TEXTS) == expected
    assert tokenizer.decode(expected[:30]) == [
        line.lower() if "cf" in rule else line for line in TEXTS[:30]
    ]


@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("removed", [False, True])
def test_blanks_are_added_and_removed_as_the_model_says(tmp_path, removed, prefixed):
    parsed = proto.ModelProto.FromString(model_of(0))
    rules = parsed.normalizer_spec
    rules.remove_extra_whitespaces, rules.add_dummy_prefix = removed, prefixed
    model = parsed.SerializeToString()
    texts = [*LINES[0][:5], *(f" {line.replace(' ', '  ')} " for line in LINES[0][:5])]
    expected = peer(model).encode(texts)
    text = tokenizer_of(tmp_path, model)
    assert Tokenizer(text).encode(texts) == expected
    assert peer(write(model_in(text))).encode(texts) == expected


def test_what_the_list_lacks_is_unknown_and_what_the_model_lacks_is_never_cut_into(tmp_path):
    model = model_of(0)
    names = [*pieces_of(model)[1:], "▁new", "ñ", "<s>"]
    text = tokenizer_of(tmp_path, model, names)
    tokenizer, lacked = Tokenizer(text), pieces_of(model)[0]
    expected = peer(model).encode(TEXTS, out_type=str)
    ids = {name: number for number, name in enumerate([*SPECIALS, *names[:-1]])}
    assert tokenizer.encode(TEXTS) == [[ids.get(name, 0) for name in row] for row in expected]
    assert any(lacked in row for row in expected)
    # letters that are unknown together have a name
    assert tokenizer.encode([" new", "ñ", "<s>"])[1][-1] == ids["ñ"]
    assert ids["▁new"] not in tokenizer.encode(["new"])[0]
    assert tokenizer.pieces([0, 1, 2, ids["▁new"]]) == [*SPECIALS, "▁new"]
    assert tokenizer.decode([[ids["▁new"], ids["ñ"]]]) == ["newñ"]
    again = peer(write(model_in(text)))
    assert again.encode(TEXTS, out_type=str) == expected
    with refusal(r"source\.spm: two of the tokens that it is to cut text into have the same"):
        tokenizer_of(tmp_path, model, [*names, "▁new"])


def test_bytes_stand_for_what_is_unknown_where_the_model_says_so(tmp_path):
    parsed = proto.ModelProto.FromString(model_of(0))
    parsed.trainer_spec.byte_fallback = True
    for byte in range(256):
        parsed.pieces.add(piece=f"<0x{byte:02X}>", score=0.0, type=6)
    model = parsed.SerializeToString()
    tokenizer = Tokenizer(text := tokenizer_of(tmp_path, model))
    texts = ["漢字 one", "😀", "ten"]
    assert tokenizer.encode(texts) == peer(model).encode(texts)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts
    again = peer(write(model_in(text)))
    assert again.encode(texts) == tokenizer.encode(texts)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_what_controls_a_model_is_no_text(tmp_path, kind):
    parsed = proto.ModelProto.FromString(model_of(0, kind))
    parsed.pieces.add(piece="<to_de>", score=0.0, type=3)
    model = parsed.SerializeToString()
    names = pieces_of(model)
    tokenizer = Tokenizer(tokenizer_of(tmp_path, model, names))
    control = 3 + names.index("<to_de>")
    [ids] = tokenizer.encode(["ten <to_de>"])
    assert control not in ids, "in a text it is text"
    theirs = peer(model)
    [ten] = tokenizer.encode(["ten"])
    assert tokenizer.decode([[control, *ten]]) == [
        theirs.decode([theirs.piece_to_id("<to_de>"), *theirs.encode("ten")])
    ]
    assert tokenizer.decode([[control, *ten]]) == ["ten"]


def test_an_unused_piece_of_a_unigram_model_is_never_cut_into(tmp_path):
    parsed = proto.ModelProto.FromString(model_of(0))
    before = peer(parsed.SerializeToString()).encode(TEXTS)
    used = max(
        (number for row in before for number in row),
        key=lambda number: len(parsed.pieces[number].piece),
    )
    parsed.pieces[used].type = 5
    model = parsed.SerializeToString()
    found = Tokenizer(tokenizer_of(tmp_path, model)).encode(TEXTS)
    assert found == peer(model).encode(TEXTS) != before


def test_its_merges_are_not_dropped_and_another_tokenizer_was_none(tmp_path):
    tokenizer = Tokenizer(tokenizer_of(tmp_path, model_of(0, "bpe")))
    with refusal("a tokenizer of kind 'SentencePiece' has no merges to drop; set tok"):
        tokenizer.resegment([3], 0.5, None)
    Tokenizer.train(["a b"], "bpe", 20).save(tmp_path / "ours.json")
    assert model_in((tmp_path / "ours.json").read_text()) is None


NO_SCORE, UNMARKED = "a score that is not a number", "blanks that are not marked"


@pytest.mark.parametrize(
    "kind, part, change, message",
    [
        ("unigram", "trainer_spec", {"model_type": 3}, "pieces that are neither unigram's nor BPE"),
        ("unigram", "trainer_spec", {"treat_whitespace_as_suffix": True}, UNMARKED),
        ("unigram", "normalizer_spec", {"escape_whitespaces": False}, UNMARKED),
        ("unigram", "denormalizer_spec", {"precompiled_charsmap": b"a"}, "rules for text that com"),
        ("bpe", "pieces", {"type": 5}, "pieces that are merged through and not used"),
        ("unigram", "pieces", {"score": float("nan")}, f"{NO_SCORE}, or a piece of"),
        ("unigram", "pieces", {"score": float("inf")}, NO_SCORE),
        ("bpe", "pieces", {"piece": "a" * 1001}, "a score .*, or a piece of more than 1,000 lett"),
    ],
)
def test_what_a_tokenizer_cannot_do_is_refused(tmp_path, kind, part, change, message):
    model = proto.ModelProto.FromString(model_of(0, kind))
    changed = model.pieces[9] if part == "pieces" else getattr(model, part)
    for name, value in change.items():
        setattr(changed, name, value)
    with refusal(f"source.spm: a SentencePiece model with {message}.*; give another model"):
        tokenizer_of(tmp_path, model.SerializeToString(), [])


def with_rules(tmp_path, change):
    """A tokenizer of a model whose rules for characters were changed."""
    model = proto.ModelProto.FromString(model_of(0))
    model.normalizer_spec.precompiled_charsmap = change(model.normalizer_spec.precompiled_charsmap)
    return Tokenizer(tokenizer_of(tmp_path, model.SerializeToString(), pieces_of(model_of(0))))


DAMAGES = {
    "too short": lambda held: b"\x01",
    "a size beyond the end": lambda held: b"\xff" * 4,
    "no rules": lambda held: b"\0" * 4,
    "half a rule": lambda held: b"\x05\0\0\0abcdefgh",
    "cut": lambda held: held[:1000],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_rules_that_are_damaged_are_refused(tmp_path, damage):
    with refusal(r"source.spm: a SentencePiece model that is damaged .*; copy it again"):
        with_rules(tmp_path, DAMAGES[damage])


def cut(skipped, kept):
    def change(held):
        start = 4 + int.from_bytes(held[:4], "little")
        return held[:start] + held[start + skipped : start + kept] + b"a" * 512

    return change


def anywhere(seed):
    rules = random.Random(seed).randbytes(4096)
    return lambda held: (4096).to_bytes(4, "little") + rules + b"a\0bc\0"


HARMLESS = [
    *(cut(skipped, kept) for skipped in (0, 1) for kept in (0, 40)),
    *map(anywhere, range(5)),
]


@pytest.mark.parametrize("change", HARMLESS)
def test_replacements_that_are_cut_or_lead_anywhere_do_no_harm(tmp_path, change):
    texts = [*TEXTS, "①ﬁ각", "Việt Nam"]
    assert len(with_rules(tmp_path, change).encode(texts)) == len(texts)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "source.spm")
    with refusal(r"source.spm: not a regular file; expected a SentencePiece model"):
        read(tmp_path / "source.spm", SPECIALS)


@pytest.mark.parametrize("missing", ["sentencepiece", "protobuf"])
def test_the_line_that_installs_it_is_named(monkeypatch, tmp_path, missing):
    monkeypatch.setitem(
        sys.modules,
        "sentencepiece" if missing == "sentencepiece" else "google.protobuf.message",
        None,
    )
    with refusal(rf"{missing} is not installed; run: pip install .*\[huggingface\]"):
        read(tmp_path / "source.spm", SPECIALS)


def test_a_protobuf_that_is_too_old_is_named(monkeypatch, tmp_path):
    def refuse(*_):
        raise runtime_version.VersionError("5.0 < 6.0")

    monkeypatch.setattr(runtime_version, "ValidateProtobufRuntimeVersion", refuse)
    monkeypatch.delitem(sys.modules, "sentencepiece.sentencepiece_model_pb2")
    monkeypatch.delattr(library, "sentencepiece_model_pb2")
    with refusal(r"protobuf is too old \(5.0 < 6.0\); run: pip install -U"):
        read(tmp_path / "source.spm", SPECIALS)
