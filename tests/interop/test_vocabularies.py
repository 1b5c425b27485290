"""Tokenizers of published models cut text as their own code does, and what does not fit is
refused."""

import json
import re
import shutil

import pytest
import sentencepiece

from tests.interop import tiny
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.interop.architectures import ARCHITECTURES, settings_of
from transduct.interop.vocabularies import in_our_order, languages_in, words_of

HARD = [
    *(
        "twenty two thousand",
        "  x\ty ",
        "ｆｉｖｅ ﬁve",
        "cafe\u0301 é",
        "이십삼 twelve",
        "漢字 one",
    ),
    *("", "one\u00a0two\u3000three", "x" * 40, "ein Häuschen, <b>!", "one  two\nthree"),
]
SIZES = {"t5": (1, 0), "pegasus": (1, 0), "mbart": (2, 1), "m2m_100": (2, 1), "bart": (2, 1)}


def settings(kind, size):
    """Settings of a model of this kind whose vocabulary has this size."""
    end, padding = SIZES[kind]
    sizes = {"d_model": 8, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_{part}": 1 for part in ("layers", "attention_heads", "ffn_dim")}
    sizes |= {"vocab_size": size, "eos_token_id": end, "pad_token_id": padding}
    return settings_of(ARCHITECTURES[kind], sizes, "config.json")


def words(folder, kind, size):
    begin = 0 if kind in ("t5", "pegasus") else 2
    return words_of(folder, kind, settings(kind, size), begin, folder / "config.json")


@pytest.mark.parametrize("kind", ["t5", "pegasus", "mbart", "nllb", "m2m", "bart"])
def test_texts_are_cut_as_there(tmp_path, kind):
    theirs = tiny.tokenizer_of(kind, tmp_path / "raw")
    theirs.save_pretrained(tmp_path / "saved")
    own = {"nllb": "m2m_100", "m2m": "m2m_100"}.get(kind, kind)
    size = len(theirs) if kind != "m2m" else max(theirs.lang_token_to_id.values()) + 9
    found = words(tmp_path / "saved", own, size)
    ours = Tokenizer(found.text)
    assert ours.size == len(found.ids)
    texts = [*HARD, *tiny.TEXTS[:20]]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [[found.ids[i] for i in row] for row in ours.encode(texts)] == expected
    plain = [
        text
        for text, row in zip(texts, expected)
        if theirs.unk_token_id not in row and "\n" not in text
    ]
    rows = ours.encode(plain)
    told = theirs.batch_decode([[found.ids[i] for i in row] for row in rows])
    assert [text.strip() for text in ours.decode(rows)] == [text.strip() for text in told]
    assert ours.encode(["</s>"])[0] != [Tokenizer.END], "the name of a special token is plain text"


def test_pieces_alone_are_cut_as_sentencepiece_does(tmp_path):
    """With bytes for what the vocabulary lacks, and a piece that a user has defined."""
    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "byte_fallback": True}
    options |= {"user_defined_symbols": ["<2ko>", "<2de>"]}
    model = _with_user_defined(options)
    (tmp_path / "spiece.model").write_bytes(model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = words(tmp_path, "t5", peer.vocab_size())
    ours = Tokenizer(found.text)
    texts = [*HARD, "<2ko> twenty two", "one <2de> two", "ꙮ ሀ"]
    mine = [[found.ids[i] for i in row] for row in ours.encode(texts)]
    assert mine == [peer.encode(text) for text in texts]
    assert languages_in(found.names) == (["ko", "de"], "", "<2{to}> ")
    assert ours.decode(ours.encode(["漢字 one"])) == ["漢字 one"]


def _with_user_defined(options):
    import io

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*tiny.LINES[0], *tiny.LINES[1]]),
        model_writer=written,
        vocab_size=600,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


def test_the_begin_token_is_moved_or_gets_a_row_of_its_own():
    assert in_our_order(5, unknown=2, begin=0, end=1, padding=0) == [2, 0, 1, 3, 4]
    assert in_our_order(5, unknown=3, begin=2, end=2, padding=1) == [3, 2, 2, 0, 1, 4]


def test_a_vocabulary_of_another_model_is_refused(tmp_path):
    """A list that holds the other side's pieces, as one published model has it."""
    names = ["</s>", "<unk>", "<pad>", *(f"▁other{number}" for number in range(300))]
    from tests.interop import published
    from transduct.interop import sentencepiece as ours

    (tmp_path / "source.spm").write_bytes(published.model_of(0))
    with pytest.raises(TransductError, match="the vocabulary holds 0 % of its pieces; it is that"):
        ours.read(tmp_path / "source.spm", names)


WORDS = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.update(model=WORDS), "a tokenizer of type 'WordLevel'; expected BPE or"),
        (lambda c: c["model"].update(unk_token="<none>"), "has no unknown token; give the"),
        (lambda c: c.update(pre_tokenizer=SLOW), "asks for the pattern '(a+)+', which"),
    ],
)
def test_a_tokenizer_file_that_cannot_be_obeyed_is_refused(tmp_path, change, message):
    theirs = tiny.tokenizer_of("bart", tmp_path / "raw")
    theirs.save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TransductError, match=re.escape(message)):
        words(tmp_path / "saved", "bart", len(theirs))


def test_pieces_that_do_not_fit_the_model_are_refused(tmp_path):
    theirs = tiny.tokenizer_of("m2m", tmp_path / "raw")
    folder = tmp_path / "raw"
    with pytest.raises(TransductError, match="tokens; it is of another model: copy both files"):
        words(folder, "m2m_100", 100)
    numbers = json.loads((folder / "vocab.json").read_text())
    shutil.copytree(folder, tmp_path / "odd")
    (tmp_path / "odd" / "vocab.json").write_text(json.dumps(numbers | {"x": "y"}))
    with pytest.raises(TransductError, match=r"vocab\.json: holds an id that is no number"):
        words(tmp_path / "odd", "m2m_100", len(theirs))
    del numbers["<unk>"]
    (folder / "vocab.json").write_text(json.dumps(numbers))
    with pytest.raises(TransductError, match="has no token <unk>; give the tokenizer of this"):
        words(folder, "m2m_100", 500)
