"""A Marian model of Hugging Face's translates and cuts text here as it does there, and goes back as it came."""

import json
import shutil
import sys
import unicodedata
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import transduct
from tests.interop import published
from tests.interop.published import PAIRS, renumbered
from tests.recipes import tiny_recipe
from transduct.errors import TransductError
from transduct.interop import ctranslate2, int8
from transduct.interop.huggingface import convert, found_in, read
from transduct.tasks.base import train

TEXTS = [source for source, _ in PAIRS[:24]]
HARD = [
    *("", "   ", "twenty  two thousand", "  x\ty ", "▁one▁▁two▁", "ｆｉｖｅ ﬁve", "one\ntwo\r\nthree", "x" * 50),
    *("one\u2028two\x00three</s> four", "</s>", "<unk><s> <pad>", "five 😀😀six 이십", "👨‍👩‍👧 one"),
    *("one\u00a0two\u3000three\u200bfour", "\ufeffone", "\u00adsoft\u00ad", "①②½ ㎏ ㍿ ～", "ﾊﾟ ｶﾞ ガ", "ﬁ\u0301"),
    *("éà twelve 漢字 one", "é one é ñ x", "cafe\u0301 e\u0302\u0301 ế", "a\u0300\u0301\u0302b", "Ω K ǆ ŉ"),
    *("이십삼", "٣ ४ i̇ İ", "one…two‥ “q” ’s", unicodedata.normalize("NFD", "이십삼 헿 Việt Nam tiếng")),
    *(">>fra<< twenty one", ">>fra<<twenty", ">>fra<<", ">>xyz<< one", "a >>fra<< b", " >>fra<< b", ">>a b<<", "<<>>"),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A published folder, its model and the names of its tokens; and ours, made of it."""
    path = tmp_path_factory.mktemp("original") / "opus"
    model, named = published.folder(path)
    read(path, path.parent / "ours")
    return path, model, named, path.parent / "ours"


def generated(model, source, limit, forbidden, **options):
    """The ids that a model of theirs writes after one source, without the end."""
    found = model.generate(
        torch.tensor([source]), bad_words_ids=[[each] for each in forbidden], max_length=limit + 1, **options
    )[0].tolist()[1:]
    end = model.config.eos_token_id
    return found[: found.index(end)] if end in found else found


def limit_of(source, longest=published.LENGTH):
    return min(longest, 2 * len(source) + 20)


def same_translations(ours, model, tokenizer, to_ours, beams):
    """Compare outputs for every text, greedy or by beams, without a length penalty."""
    forbidden = [theirs for theirs, our in to_ours.items() if our in (0, 1)]
    for beam in beams:
        options = {"num_beams": beam, **({"length_penalty": 0.0} if beam > 1 else {})}
        mine = ours.translate(TEXTS, beam=beam, length_penalty=0.0)
        for text, found in zip(TEXTS, mine, strict=True):
            source = tokenizer(text, split_special_tokens=True)["input_ids"]
            theirs = generated(model, source, limit_of(source), forbidden, **options)
            assert found.tokens == [to_ours[token] for token in theirs]
            assert found.text == tokenizer.decode(theirs, use_source_tokenizer=False)


@torch.no_grad()
def likelihood(model, source, target):
    """The log-probability of a target by a model of theirs."""
    begin, end = model.config.decoder_start_token_id, model.config.eos_token_id
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[begin, *target]])).logits[0]
    rows = logits.double().log_softmax(-1)
    return float(sum(row[token] for row, token in zip(rows, [*target, end], strict=True)))


def test_it_translates_and_scores_as_there(original):
    path, model, [names], ours = original
    to_ours = renumbered(names)
    translator, tokenizer = transduct.load(ours), published.tokenizer(path)
    same_translations(translator, model, tokenizer, to_ours, (1, 3))
    targets = [[number for number in range(3, 3 + 2 * length)] for length in range(len(TEXTS) // 2)]
    expected = [
        likelihood(model, tokenizer(text)["input_ids"], [names.index(n) for n in named])
        for text, named in zip(TEXTS, map(translator.target_tokenizer.pieces, targets))
    ]
    assert translator.score(TEXTS[: len(targets)], targets) == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 10


def test_without_the_bias_it_would_not(original):
    path, model, [names], ours = original
    config, weights = json.loads((ours / "config.json").read_text()), load_file(ours / "model.safetensors")
    poorer = path.parent / "poorer"
    shutil.copytree(ours, poorer)
    config["model"]["output_bias"] = False
    del weights["output_bias"]
    (poorer / "config.json").write_text(json.dumps(config))
    save_file(weights, poorer / "model.safetensors")
    with pytest.raises(AssertionError):
        same_translations(transduct.load(poorer), model, published.tokenizer(path), renumbered(names), (1,))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_are_cut_and_put_together_as_there(tmp_path, kind):
    _, [names] = published.folder(tmp_path / "opus", kind)
    read(tmp_path / "opus", tmp_path / "ours")
    to_ours, theirs = renumbered(names), published.tokenizer(tmp_path / "opus")
    ours = transduct.load(tmp_path / "ours")
    texts = [*HARD, *TEXTS, *(target for _, target in PAIRS[:24])]
    for mine, given in ((ours.source_tokenizer, "text"), (ours.target_tokenizer, "text_target")):
        assert mine.kind == kind
        expected = [theirs(**{given: text}, split_special_tokens=True)["input_ids"][:-1] for text in texts]
        assert mine.encode(texts) == [[to_ours[token] for token in row] for row in expected]
    back = {our: number for number, our in to_ours.items()}
    rows = [[number % (len(names) - 3) + 3 for number in range(7 * i, 8 * i)] for i in range(40)]
    expected = [theirs.decode([back[token] for token in row], use_source_tokenizer=False) for row in rows]
    assert [text.strip() for text in ours.target_tokenizer.decode(rows)] == expected


VARIETIES = [
    {"separate": True},
    {"tie_word_embeddings": False},
    {"separate": True, "tie_word_embeddings": False, "activation_function": "gelu"},
    {"biased": False, "activation_function": "relu", "encoder_layers": 1, "decoder_layers": 2},
    {"same": True, "rule": "identity", "activation_function": "gelu_new"},
]


@pytest.mark.parametrize("variety", VARIETIES, ids=str)
def test_its_varieties_translate_as_there_and_go_back_as_they_came(tmp_path, variety):
    separate = variety.get("separate", False)
    model, named = published.folder(tmp_path / "opus", **variety)
    read(tmp_path / "opus", tmp_path / "ours")
    ours, tokenizer = transduct.load(tmp_path / "ours"), published.tokenizer(tmp_path / "opus", separate)
    assert (ours.model.config.output_bias, ours.decoding.beam) == (variety.get("biased", True), 3)
    same_translations(ours, model, tokenizer, renumbered(named[-1]), (1,))
    convert(tmp_path / "ours", tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("opus", "back"))
    orders = [sorted(renumbered(names), key=renumbered(names).get) for names in (named[0], named[-1])]
    for name, tensor in after.items():
        order = torch.tensor(orders["encoder.embed" not in name])
        if name == "final_logits_bias":
            expected = before[name][:, order]
        elif name in ("lm_head.weight", "model.shared.weight") or "embed_tokens" in name:
            expected = before[name][order]
        else:
            expected = before[name]
        assert torch.equal(tensor, expected)
    assert after.keys() == before.keys() - ({"model.shared.weight"} if not model.config.tie_word_embeddings else set())


def loaded(path):
    """The model and the tokenizer that Hugging Face makes of a folder by itself."""
    library = published.transformers()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return library.AutoModelForSeq2SeqLM.from_pretrained(path), library.AutoTokenizer.from_pretrained(path)


def test_what_goes_back_is_read_by_hugging_face_as_what_came(original, tmp_path):
    convert(original[3], tmp_path / "back")
    model, tokenizer = loaded(tmp_path / "back")
    ours, same = transduct.load(original[3]), {number: number for number in range(len(original[2][0]))}
    texts = [*HARD, *TEXTS]
    assert [row[:-1] for row in tokenizer(texts)["input_ids"]] == ours.source_tokenizer.encode(texts)
    assert [row[:-1] for row in tokenizer(text_target=texts)["input_ids"]] == ours.target_tokenizer.encode(texts)
    same_translations(ours, model, tokenizer, same, (1, 3))
    read(tmp_path / "back", tmp_path / "again") if False else None


