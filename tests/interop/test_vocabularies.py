"""Tokenizers of published models cut text as their own code does, and what does not fit is
refused."""

import json
import re
import shutil
import unicodedata

import pytest
import sentencepiece

import transduct
from tests.interop import published, tiny
from tests.interop.published import PAIRS, TEXTS, edit, renumbered
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.data.tokenizer import Tokenizer, tokenizers_in
from transduct.interop.architectures import ARCHITECTURES, settings_of
from transduct.interop.huggingface import convert
from transduct.interop.published import read
from transduct.interop.vocabularies import (
    _unended,
    chat_template,
    in_our_order,
    languages_in,
    words_of,
)
from transduct.runs.train import train

# Texts, divided by bars.
HARD = (  # noqa: SIM905
    "twenty two thousand|  x\ty |ｆｉｖｅ ﬁve|cafe\u0301 é|이십삼 twelve|漢字 one||"
    "one\xa0two\u3000three|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx|ein Häuschen, <b>!|"
    "one  two\nthree"
).split("|")
MARIAN = (  # noqa: SIM905
    "|   |twenty  two thousand|  x\ty |▁one▁▁two▁|ｆｉｖｅ ﬁve|one\ntwo\r\nthree|"
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx|one\u2028two\x00three</s> four|</s>|"
    "<unk><s> <pad>|five 😀😀six 이십|👨\u200d👩\u200d👧 one|one\xa0two\u3000three\u200bfour|"
    "\ufeffone|\xadsoft\xad|①②½ ㎏ ㍿ ～|ﾊﾟ ｶﾞ ガ|ﬁ\u0301|éà twelve 漢字 one|é one é ñ x|"
    "cafe\u0301 e\u0302\u0301 ế|a\u0300\u0301\u0302b|Ω K ǆ ŉ|이십삼|٣ ४ i\u0307 İ|"
    "one…two‥ “q” ’s|>>fra<< twenty one|>>fra<<twenty|>>fra<<|>>xyz<< one|a >>fra<< b|"
    " >>fra<< b|>>a b<<|<<>>"
).split("|")
MARIAN.append(unicodedata.normalize("NFD", "이십삼 헿 Việt Nam tiếng"))
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


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, ""),
        ({"tokenizer_config.json": "{}"}, ""),
        ({"tokenizer_config.json": '{"chat_template": "a"}'}, "a"),
        ({"tokenizer_config.json": '{"chat_template": 3}'}, ""),
        (
            {
                "tokenizer_config.json": '{"chat_template": [{"name": "rag", "template": "b"}, '
                '{"name": "default", "template": "c"}]}'
            },
            "c",
        ),
        ({"tokenizer_config.json": '{"chat_template": []}'}, ""),
        ({"tokenizer_config.json": '{"chat_template": "a"}', "chat_template.jinja": "한"}, "한"),
    ],
)
def test_a_chat_template_is_a_file_or_a_setting(tmp_path, files, template):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert chat_template(tmp_path) == template


def test_the_begin_token_is_moved_or_gets_a_row_of_its_own():
    assert in_our_order(5, unknown=2, begin=0, end=1, padding=0) == [2, 0, 1, 3, 4]
    assert in_our_order(5, unknown=3, begin=2, end=2, padding=1) == [3, 2, 2, 0, 1, 4]


def test_a_vocabulary_of_another_model_is_refused(tmp_path):
    """A list that holds the other side's pieces, as one published model has it."""
    names = ["</s>", "<unk>", "<pad>", *(f"▁other{number}" for number in range(300))]
    from transduct.interop import sentencepiece as ours

    (tmp_path / "source.spm").write_bytes(published.model_of(0))
    with refusal("the vocabulary holds 0 % of its pieces; it is that"):
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
    with refusal(re.escape(message)):
        words(tmp_path / "saved", "bart", len(theirs))


def test_pieces_that_do_not_fit_the_model_are_refused(tmp_path):
    theirs = tiny.tokenizer_of("m2m", tmp_path / "raw")
    folder = tmp_path / "raw"
    with refusal("tokens; it is of another model: copy both files"):
        words(folder, "m2m_100", 100)
    numbers = json.loads((folder / "vocab.json").read_text())
    shutil.copytree(folder, tmp_path / "odd")
    (tmp_path / "odd" / "vocab.json").write_text(json.dumps(numbers | {"x": "y"}))
    with refusal(r"vocab\.json: holds an id that is no number"):
        words(tmp_path / "odd", "m2m_100", len(theirs))
    del numbers["<unk>"]
    (folder / "vocab.json").write_text(json.dumps(numbers))
    with refusal("has no token <unk>; give the tokenizer of this"):
        words(folder, "m2m_100", 500)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_marian_s_texts_are_cut_and_put_together_as_there(tmp_path, kind):
    _, [names] = published.folder(tmp_path / "opus", kind)
    read(tmp_path / "opus", tmp_path / "ours")
    to_ours, theirs = renumbered(names), published.tokenizer(tmp_path / "opus")
    # As they were read: a model in use also leaves out characters that nobody sees.
    source, target = (Tokenizer.load(path) for path in tokenizers_in(tmp_path / "ours"))
    texts = [*MARIAN, *TEXTS, *(target for _, target in PAIRS[:24])]
    for mine, given in ((source, "text"), (target, "text_target")):
        assert mine.kind == kind
        expected = [
            theirs(**{given: text}, split_special_tokens=True)["input_ids"][:-1] for text in texts
        ]
        assert mine.encode(texts) == [[to_ours[token] for token in row] for row in expected]
    back = {our: number for number, our in to_ours.items()}
    rows = [[number % (len(names) - 3) + 3 for number in range(7 * i, 8 * i)] for i in range(40)]
    expected = [
        theirs.decode([back[token] for token in row], use_source_tokenizer=False) for row in rows
    ]
    assert [text.strip() for text in target.decode(rows)] == expected


def test_lists_of_the_sides_are_both_read_or_one_for_both(tmp_path):
    published.folder(tmp_path / "one", share_encoder_decoder_embeddings=False)
    read(tmp_path / "one", tmp_path / "ours")
    assert transduct.load(tmp_path / "ours").model.config.tie == "decoder"
    shutil.copytree(tmp_path / "one", tmp_path / "opus")
    shutil.copy(tmp_path / "opus" / "vocab.json", tmp_path / "opus" / "target_vocab.json")
    edit(tmp_path / "opus" / "tokenizer_config.json", separate_vocabs=True)
    edit(tmp_path / "opus" / "config.json", share_encoder_decoder_embeddings=True)
    refused(
        tmp_path,
        "target_vocab.json: a list of its own, config.json says that both sides share theirs",
    )


def test_a_table_that_was_enlarged_is_to_be_cut_there(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    size = len(original[2][0])
    edit(tmp_path / "opus" / "config.json", vocab_size=size + 6, decoder_vocab_size=size + 6)
    refused(
        tmp_path,
        rf"vocab.json: {size} tokens, config.json says {size + 6}: copy both files again or, "
        r"if the model's tables "
        rf"were enlarged, run model.resize_token_embeddings\({size}\) there and save it",
    )


def test_what_a_tokenizer_adds_and_cuts_is_left_out(tmp_path):
    Tokenizer.train(["a b"], "word", 9).save(tmp_path / "tokenizer.json")
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(held | {"truncation": cut, "post_processor": {"type": "Odd"}})
    )
    assert json.loads(_unended(tmp_path / "tokenizer.json")) == held | dict.fromkeys(
        ("truncation", "post_processor", "padding")
    )


def test_lists_of_tokens_are_checked(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    content = json.loads((tmp_path / "opus" / "vocab.json").read_text())
    (tmp_path / "opus" / "vocab.json").write_text(json.dumps(content | {"</s>": 1}))
    refused(tmp_path, "expected each id below that once")
    for wrong in ({"</s>": "0"}, {"</s>": 0.0}, {"</s>": False}):
        (tmp_path / "opus" / "vocab.json").write_text(json.dumps(content | wrong))
        refused(tmp_path, "expected each id below that once")
    renamed = {"\ud800" if name == ">>fra<<" else name: number for name, number in content.items()}
    (tmp_path / "opus" / "vocab.json").write_text(json.dumps(renamed))
    refused(tmp_path, "for a name of whole characters")
    content["<UNK>"] = content.pop("<unk>")
    (tmp_path / "opus" / "vocab.json").write_text(json.dumps(content))
    refused(tmp_path, r"the ids \[-1, \d+, 0\], where -1 is none; expected three")
    edit(tmp_path / "opus" / "tokenizer_config.json", unk_token={"content": "<UNK>"})
    read(tmp_path / "opus", tmp_path / "out")


def refused(tmp_path, message):
    with refusal(message):
        read(tmp_path / "opus", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tie", ["decoder", "none"])
def test_one_tokenizer_of_ours_with_several_tables_comes_back(tmp_path, tie):
    model = {"norm": "post", "positions": "sinusoidal_concatenated", "tie": tie}
    train(tiny_recipe(model=model, training={"steps": 2}), tmp_path / "run", notify=str)
    convert(tmp_path / "run" / "model", tmp_path / "out")
    read(tmp_path / "out", tmp_path / "back")
    texts = ["a b c", "d e"]
    back, ours = (transduct.load(tmp_path / name) for name in ("back", "run"))
    options = {"length_rule": "wu", "stopping": "likeliest", "at_limit": "end", "max_length": 9}
    assert back.translate(texts, **options) == ours.translate(texts, **options)
