"""Hugging Face's Marian models tokenize and translate alike after conversion, and convert back
unchanged."""

import json
import shutil
import sys
import unicodedata
import warnings

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import transduct
from tests.interop import published
from tests.interop.published import PAIRS, renumbered
from tests.recipes import tiny_recipe
from transduct import storage
from transduct.config import Recipe
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError
from transduct.interfaces.cli import main
from transduct.interop import ctranslate2, int8
from transduct.interop.huggingface import _unended, convert, found_in, read
from transduct.runs.train import train

TEXTS = [source for source, _ in PAIRS[:24]]
HARD = [
    *(
        "",
        "   ",
        "twenty  two thousand",
        "  x\ty ",
        "▁one▁▁two▁",
        "ｆｉｖｅ ﬁve",
        "one\ntwo\r\nthree",
        "x" * 50,
    ),
    *(
        "one\u2028two\x00three</s> four",
        "</s>",
        "<unk><s> <pad>",
        "five 😀😀six 이십",
        "👨‍👩‍👧 one",
    ),
    *(
        "one\u00a0two\u3000three\u200bfour",
        "\ufeffone",
        "\u00adsoft\u00ad",
        "①②½ ㎏ ㍿ ～",
        "ﾊﾟ ｶﾞ ガ",
        "ﬁ\u0301",
    ),
    *(
        "éà twelve 漢字 one",
        "é one é ñ x",
        "cafe\u0301 e\u0302\u0301 ế",
        "a\u0300\u0301\u0302b",
        "Ω K ǆ ŉ",
    ),
    *(
        "이십삼",
        "٣ ४ i̇ İ",
        "one…two‥ “q” ’s",
        unicodedata.normalize("NFD", "이십삼 헿 Việt Nam tiếng"),
    ),
    *(
        ">>fra<< twenty one",
        ">>fra<<twenty",
        ">>fra<<",
        ">>xyz<< one",
        "a >>fra<< b",
        " >>fra<< b",
        ">>a b<<",
        "<<>>",
    ),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A published folder, its model and the names of its tokens; and ours, made of it."""
    path = tmp_path_factory.mktemp("original") / "opus"
    model, named = published.folder(path)
    read(path, path.parent / "ours")
    return path, model, named, path.parent / "ours"


def generated(model, source, limit, forbidden, **options):
    """The output ids of a Hugging Face model for one source, without the end."""
    found = model.generate(
        torch.tensor([source]),
        bad_words_ids=[[each] for each in forbidden],
        max_length=limit + 1,
        **options,
    )[0].tolist()[1:]
    end = model.config.eos_token_id
    return found[: found.index(end)] if end in found else found


def limit_of(source, longest=published.LENGTH):
    return min(longest, 2 * len(source) + 20)


def same_translations(ours, model, tokenizer, to_ours, beams):
    """Compare outputs for every text, greedy or by beams, without a length penalty; how many ended
    in time."""
    forbidden = [theirs for theirs, our in to_ours.items() if our in (0, 1)]
    ended = 0
    for beam in beams:
        options = {"num_beams": beam, **({"length_penalty": 0.0} if beam > 1 else {})}
        mine = ours.translate(TEXTS, beam=beam, length_penalty=0.0)
        assert len({tuple(found.tokens) for found in mine}) > 3  # else there is nothing to compare
        for text, found in zip(TEXTS, mine, strict=True):
            source = tokenizer(text, split_special_tokens=True)["input_ids"]
            limit = limit_of(source)
            theirs = generated(model, source, limit, forbidden, **options)
            if beam > 1 and max(len(theirs), len(found.tokens)) + 1 >= limit:
                continue  # the end that the limit forces costs nothing there
            ended += len(theirs) + 1 < limit
            assert found.tokens == [to_ours[token] for token in theirs]
            assert found.text == tokenizer.decode(theirs, use_source_tokenizer=False)
    return ended


@torch.no_grad()
def likelihood(model, source, target):
    """The log-probability of a target by a model of theirs."""
    begin, end = model.config.decoder_start_token_id, model.config.eos_token_id
    logits = model(
        input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[begin, *target]])
    ).logits[0]
    rows = logits.double().log_softmax(-1)
    return float(sum(row[token] for row, token in zip(rows, [*target, end], strict=True)))


def test_it_translates_and_scores_as_there(original):
    path, model, [names], ours = original
    to_ours = renumbered(names)
    translator, tokenizer = transduct.load(ours), published.tokenizer(path)
    assert same_translations(translator, model, tokenizer, to_ours, (1, 3)) > 4
    targets = [list(range(3, 3 + 2 * length)) for length in range(len(TEXTS) // 2)]
    expected = [
        likelihood(model, tokenizer(text)["input_ids"], [names.index(n) for n in named])
        for text, named in zip(TEXTS, map(translator.target_tokenizer.pieces, targets))
    ]
    assert translator.score(TEXTS[: len(targets)], targets) == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 10


def test_without_the_bias_it_would_not(original):
    path, model, [names], ours = original
    config, weights = (
        json.loads((ours / "config.json").read_text()),
        load_file(ours / "model.safetensors"),
    )
    poorer = path.parent / "poorer"
    shutil.copytree(ours, poorer)
    config["model"]["output_bias"] = False
    del weights["output_bias"]
    (poorer / "config.json").write_text(json.dumps(config))
    save_file(weights, poorer / "model.safetensors")
    with pytest.raises(AssertionError):
        same_translations(
            transduct.load(poorer), model, published.tokenizer(path), renumbered(names), (1,)
        )


def test_padding_counts_for_nothing_where_they_say_so(original, tmp_path):
    path, _, [names], ours = original
    shutil.copytree(path, tmp_path / "opus")
    edit(tmp_path / "opus" / "generation_config.json", renormalize_logits=True)
    weights = load_file(path / "model.safetensors")
    weights["final_logits_bias"][
        0, names.index("<unk>")
    ] = -30.0  # theirs may write it, ours does not
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    read(tmp_path / "opus", tmp_path / "ours")
    model = published.transformers().MarianMTModel.from_pretrained(tmp_path / "opus")
    to_ours, tokenizer = renumbered(names), published.tokenizer(path)
    translator = transduct.load(tmp_path / "ours")
    assert same_translations(translator, model, tokenizer, to_ours, (3,)) > 4
    counted = transduct.load(ours).score(TEXTS, TEXTS)
    with torch.no_grad():
        model.final_logits_bias[0, names.index("<pad>")] = float("-inf")
    sources, targets = (tokenizer(**{side: TEXTS})["input_ids"] for side in ("text", "text_target"))
    expected = [
        likelihood(model, *pair)
        for pair in zip(sources, [row[:-1] for row in targets], strict=True)
    ]
    assert translator.score(TEXTS, TEXTS) == pytest.approx(expected, abs=1e-4)
    assert counted != pytest.approx(expected, abs=1e-2)


def test_the_unknown_token_counts_for_nothing_where_they_forbid_it_too(original, tmp_path):
    path, _, [names], _ = original
    shutil.copytree(path, tmp_path / "opus")
    forbidden = [[names.index(name)] for name in ("<pad>", "<unk>")]
    edit(
        tmp_path / "opus" / "generation_config.json",
        renormalize_logits=True,
        bad_words_ids=forbidden,
    )
    weights = load_file(path / "model.safetensors")
    weights["final_logits_bias"][0, names.index("<unk>")] = 3.0
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    read(tmp_path / "opus", tmp_path / "ours")
    model = published.transformers().MarianMTModel.from_pretrained(tmp_path / "opus")
    translator, tokenizer = transduct.load(tmp_path / "ours"), published.tokenizer(path)
    same_translations(translator, model, tokenizer, renumbered(names), (3,))
    with torch.no_grad():
        model.final_logits_bias[0, [each for [each] in forbidden]] = float("-inf")
    target = list(range(3, 9))
    theirs = [names.index(name) for name in translator.target_tokenizer.pieces(target)]
    expected = [likelihood(model, row, theirs) for row in tokenizer(TEXTS)["input_ids"]]
    assert translator.score(TEXTS, [target] * len(TEXTS)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_are_cut_and_put_together_as_there(tmp_path, kind):
    _, [names] = published.folder(tmp_path / "opus", kind)
    read(tmp_path / "opus", tmp_path / "ours")
    to_ours, theirs = renumbered(names), published.tokenizer(tmp_path / "opus")
    ours = transduct.load(tmp_path / "ours")
    texts = [*HARD, *TEXTS, *(target for _, target in PAIRS[:24])]
    for mine, given in ((ours.source_tokenizer, "text"), (ours.target_tokenizer, "text_target")):
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


def test_what_goes_back_is_read_by_hugging_face_as_what_came(original, tmp_path):
    convert(original[3], tmp_path / "back")
    model, tokenizer = loaded(tmp_path / "back")
    ours, same = (
        transduct.load(original[3]),
        {number: number for number in range(len(original[2][0]))},
    )
    texts = [*HARD, *TEXTS]
    assert [row[:-1] for row in tokenizer(texts)["input_ids"]] == ours.source_tokenizer.encode(
        texts
    )
    assert [
        row[:-1] for row in tokenizer(text_target=texts)["input_ids"]
    ] == ours.target_tokenizer.encode(texts)
    same_translations(ours, model, tokenizer, same, (1, 3))


@pytest.mark.parametrize("penalty", [0.5, 0.0])
def test_what_a_model_says_of_its_search_goes_there_and_comes_back(original, tmp_path, penalty):
    shutil.copytree(original[3], tmp_path / "ours")
    said = {"beam": 2, "length_penalty": penalty, "no_repeat": 3}
    edit(tmp_path / "ours" / "config.json", decoding=said)
    convert(tmp_path / "ours", tmp_path / "out")
    search = published.transformers().GenerationConfig.from_pretrained(tmp_path / "out")
    assert (search.num_beams, search.length_penalty, search.no_repeat_ngram_size) == (2, penalty, 3)
    assert search.max_length == published.LENGTH + 1, "with the token that an output begins with"
    read(tmp_path / "out", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["decoding"] == said


def test_it_goes_on_as_any_model_of_ours(original, tmp_path):
    ours = original[3]
    plain = transduct.load(ours)
    (tmp_path / "text").write_text("\n".join(TEXTS))
    command(
        "convert", ours, tmp_path / "small", "--precision", "int8", "--shortlist", tmp_path / "text"
    )
    small = transduct.load(tmp_path / "small")
    assert small.score(TEXTS, TEXTS) == pytest.approx(plain.score(TEXTS, TEXTS), rel=0.02)
    assert len(small.translate(TEXTS, shortlist=True)) == len(TEXTS)
    narrow = transduct.load(ours).shortlist_of(tmp_path / "text")
    assert list(narrow) == ["shortlist.safetensors"]
    report = plain.evaluate((TEXTS, [[text] for text in TEXTS]))
    assert 0.0 <= report.scores["bleu"] <= 100.0
    ctranslate2.convert(ours, tmp_path / "ct2")
    library = pytest.importorskip("ctranslate2")
    # more would stay so
    engine = library.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    pieces = [plain.source_tokenizer.pieces(ids) for ids in plain.source_tokenizer.encode(TEXTS)]
    found = engine.translate_batch(pieces, beam_size=1, max_decoding_length=12)
    for theirs, mine in zip(found, plain.translate(TEXTS, beam=1), strict=True):
        assert theirs.hypotheses[0][:12] == plain.target_tokenizer.pieces(mine.tokens)[:12]


def test_it_is_trained_further_from_where_it_was(original, tmp_path):
    ours = original[3]
    config = json.loads((ours / "config.json").read_text())
    said = yaml.safe_load((ours / "card.md").read_text().split("```yaml")[1].split("```")[0])
    assert (said["model"].pop("start_from"), said["data"], said["decoding"]) == (
        ours.name, {"max_length": config["model"]["max_length"]}, config["decoding"],
    )  # fmt: skip

    def further(**model):
        data = {
            "train": [{"generate": "number_names", "count": 64}],
            "valid": {"generate": "number_names", "part": "valid", "count": 8},
        }
        training = {"steps": 2, "batch_tokens": 400, "learning_rate": 1e-9, "warmup": 1}
        model = {**said["model"], "start_from": str(ours), **model}
        return Recipe(
            "translation",
            {**data, **said["data"]},
            said["tokenizer"],
            model,
            training,
            said["decoding"],
        )

    train(further(), tmp_path / "run", notify=str)
    after = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (after["model"], after["decoding"]["beam"]) == (
        config["model"],
        config["decoding"]["beam"],
    )
    before, after = transduct.load(ours), transduct.load(tmp_path / "run")
    assert after.score(TEXTS, TEXTS) == pytest.approx(before.score(TEXTS, TEXTS), abs=1e-3)
    sources, targets = zip(*generate("number_names", 8, "valid"))
    tokens = sum(len(row) + 1 for row in before.target_tokenizer.encode(targets))
    records = [
        json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    losses = [record["scores"]["loss"] for record in records if "scores" in record]
    assert losses[-1] == pytest.approx(-sum(before.score(sources, targets)) / tokens, abs=1e-4)
    with pytest.raises(
        TransductError,
        match=r"its output has a bias, this model's has none; set model.output_bias=true",
    ):
        train(further(output_bias=False), tmp_path / "other", notify=str)
    with pytest.raises(
        TransductError, match="Hugging Face's; make a model of ours of it: transduct convert "
    ):
        train(further(start_from=str(original[0])), tmp_path / "other", notify=str)
    # its tokenizers are still SentencePiece's
    convert(tmp_path / "run" / "model", tmp_path / "back")
    assert (tmp_path / "back" / "source.spm").exists()


@pytest.mark.parametrize("tie", ["decoder", "none"])
def test_one_tokenizer_of_ours_with_several_tables_comes_back(tmp_path, tie):
    model = {"norm": "post", "positions": "sinusoidal_concatenated", "tie": tie}
    train(tiny_recipe(model=model, training={"steps": 2}), tmp_path / "run", notify=str)
    convert(tmp_path / "run" / "model", tmp_path / "out")
    read(tmp_path / "out", tmp_path / "back")
    texts = ["a b c", "d e"]
    assert transduct.load(tmp_path / "back").translate(texts) == transduct.load(
        tmp_path / "run"
    ).translate(texts)


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
    for name in (
        "model.safetensors",
        *(path.name for path in (tmp_path / "run" / "model").glob("tokenizer*.json")),
    ):
        assert (tmp_path / "back" / name).read_bytes() == (
            tmp_path / "run" / "model" / name
        ).read_bytes()
    assert transduct.load(tmp_path / "back").translate(texts) == ours.translate(texts)
    held = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(
        json.dumps(held | {"vocab_size": held["vocab_size"] - 1})
    )
    message = (
        r"out/tokenizer.json: \d+ tokens, outputs begin after 1 and end with 2; "
        r"config.json says \d+, 1 and 2: copy"
    )
    with pytest.raises(TransductError, match=message):
        read(tmp_path / "out", tmp_path / "other")
    (tmp_path / "out" / "tokenizer.json").write_bytes(storage.POINTER)
    with pytest.raises(
        TransductError, match=r"out/tokenizer.json: a pointer of Git LFS, not a tokenizer; fetch"
    ):
        read(tmp_path / "out", tmp_path / "other")


def command(*words):
    """Run the program in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["transduct", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def test_the_command_knows_both_ways(original, tmp_path, capsys):
    path, _, _, ours = original
    assert found_in(path)
    assert not found_in(ours)
    assert not found_in(tmp_path)
    assert not command("convert", path, tmp_path / "in")
    assert (tmp_path / "in" / "model.safetensors").read_bytes() == (
        ours / "model.safetensors"
    ).read_bytes()
    assert not command("convert", tmp_path / "in", tmp_path / "out", "--format", "huggingface")
    assert found_in(tmp_path / "out")
    assert command("convert", tmp_path / "nowhere", tmp_path / "no") == 2
    assert "nowhere: no such folder; give a run or a model" in capsys.readouterr().err
    assert command("convert", path, tmp_path / "no", "--precision", "int8") == 2
    assert (
        "Hugging Face's; make a model of ours of it: transduct convert " in capsys.readouterr().err
    )


def edit(path, **changes):
    """Change a JSON file; a change to None takes the key away."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


CONFIGS = [
    (
        {"model_type": "fsmt"},
        "config.json or .*: model_type is 'fsmt'; the nearest is 'marian', from which it differs "
        "by vocabularies of its own kind; known are: marian, bart",
    ),
    (
        {"model_type": None, "architectures": None, "encoder_ffn_dim": None},
        "names no model_type, and its keys are of no known one; known are: marian, bart",
    ),
    (
        {"decoder_ffn_dim": 64},
        "encoder_ffn_dim 32 and decoder_ffn_dim 64; our Transformer has no place for it",
    ),
    (
        {"decoder_attention_heads": 4},
        "encoder_attention_heads 2 and decoder_attention_heads 4; our",
    ),
    ({"activation_function": "tanh"}, "activation_function 'tanh'; our"),
    ({"scale_embedding": False}, "scale_embedding false; our"),
    ({"static_position_embeddings": False}, "static_position_embeddings false; our"),
    ({"normalize_before": True}, "normalize_before true; our"),
    ({"normalize_embedding": True}, "normalize_embedding true; our"),
    ({"add_final_layer_norm": True}, "add_final_layer_norm true; our"),
    ({"d_model": 15}, "an odd d_model, 15; our"),
    ({"decoder_start_token_id": 5}, "a decoder_start_token_id that is not pad_token_id; our"),
    ({"forced_bos_token_id": 5}, "forced_bos_token_id 5; our"),
    ({"num_beams": 0}, "num_beams 0; our"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size -1; our"),
    ({"length_penalty": 21.0}, "length_penalty 21.0; our"),
    (
        {"encoder_no_repeat_ngram_size": 2},
        "config.json or generation_config.json: encoder_no_repeat_ngram_size is 2; leave it",
    ),
    ({"suppress_tokens": [5]}, r"suppress_tokens is \[5\]; leave it out"),
    ({"vocab_size": 10**12}, r"vocab.json: \d+ tokens, config.json says 1000000000000"),
    ({"encoder_layers": 10**9}, "encoder_layers is 1000000000, must be at most 1000"),
    ({"encoder_layers": 999}, "lacks the weights of layers; config.json is of another model"),
    (
        {"encoder_ffn_dim": 10**12, "decoder_ffn_dim": 10**12},
        "d_ff is 1000000000000, must be at most 16777216",
    ),
    ({"d_model": None}, "config.json: missing key 'd_model'"),
    ({"d_model": "16"}, "config.json: d_model is '16'"),
    (
        {"vocab_size": 9},
        r"vocab.json: \d+ tokens, config.json says 9; expected each id below that once",
    ),
    (
        {"d_model": 32},
        r"weight '.*' is \(.*16.*\), config.json says \(.*32.*\); config.json is of another",
    ),
    (
        {"encoder_layers": 3},
        r"lacks weight 'model.encoder.layers.2.*'; config.json is of another model",
    ),
    (
        {"encoder_layers": 1},
        "has an unknown weight 'model.encoder.layers.1.*'; config.json is of another model",
    ),
]


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=str)
def test_what_ours_cannot_say_is_refused(original, tmp_path, changes, message):
    shutil.copytree(original[0], tmp_path / "opus")
    edit(tmp_path / "opus" / "config.json", **changes)
    if {"decoder_start_token_id", "num_beams"} & changes.keys():
        (tmp_path / "opus" / "generation_config.json").unlink()
    refused(tmp_path, message)


def refused(tmp_path, message):
    with pytest.raises(TransductError, match=message):
        read(tmp_path / "opus", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def spoil(path, name, content):
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json: not valid JSON .*; expected a model's configuration"),
        (
            "config.json",
            b"[" * 100_000,
            "config.json: not valid JSON .*; expected a model's configuration",
        ),
        (
            "config.json",
            b"[]",
            "config.json: holds no JSON object; expected a model's configuration",
        ),
        ("config.json", None, "config.json: cannot be read .*; expected a model's configuration"),
        ("vocab.json", None, "vocab.json: cannot be read .*; expected the id of each token"),
        ("source.spm", None, "source.spm: cannot be read .*; expected a SentencePiece model"),
        (
            "target.spm",
            b"\x0a\x7f",
            "target.spm: not a complete SentencePiece model .*; copy it again",
        ),
        ("target.spm", b"", "target.spm: holds no pieces; expected a SentencePiece model"),
        ("model.safetensors", b"abc", "model.safetensors: not a whole safetensors file"),
        (
            "model.safetensors",
            None,
            "half a model, it holds no model.safetensors and no pytorch_model.bin; copy all",
        ),
        (
            "model.safetensors",
            storage.POINTER,
            "a pointer of Git LFS, not a safetensors file; fetch the files",
        ),
        (
            "source.spm",
            storage.POINTER,
            "a pointer of Git LFS, not a SentencePiece model; fetch the files",
        ),
        (
            "vocab.json",
            storage.POINTER,
            "a pointer of Git LFS, not the id of each token; fetch the files",
        ),
    ],
)
def test_files_that_are_damaged_or_missing_are_named(original, tmp_path, name, content, message):
    shutil.copytree(original[0], tmp_path / "opus")
    spoil(tmp_path / "opus", name, content)
    refused(tmp_path, message)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(original, tmp_path, wrong):
    shutil.copytree(original[0], tmp_path / "opus")
    weights = load_file(tmp_path / "opus" / "model.safetensors")
    weights["model.encoder.layers.0.fc1.bias"][0] = wrong
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    refused(
        tmp_path,
        "weight 'model.encoder.layers.0.fc1.bias' holds values that are not numbers; copy it again",
    )


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


def test_nothing_is_unpickled(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    (tmp_path / "opus" / "model.safetensors").rename(tmp_path / "opus" / "pytorch_model.bin")
    refused(tmp_path, r"pytorch_model.bin: (asks for more than tensors|a damaged pickle) .*; take")
    (tmp_path / "opus" / "pytorch_model.bin").rename(
        tmp_path / "opus" / "pytorch_model.bin.index.json"
    )
    refused(tmp_path, r"pytorch_model.bin.index.json: not valid JSON")
    (tmp_path / "opus" / "pytorch_model.bin.index.json").rename(tmp_path / "opus" / "tf_model.h5")
    refused(
        tmp_path,
        r"only tf_model.h5 here; expected model.safetensors: take it, or pytorch_model.bin, "
        r"from the mo",
    )
    (tmp_path / "opus" / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, r"model.safetensors.index.json: has no weight_map; copy it again")


def test_what_may_not_be_written_is_taken_over_or_refused(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    edit(tmp_path / "opus" / "generation_config.json", bad_words_ids=[[7]])
    refused(
        tmp_path, r"bad_words_ids forbids \[7\]; ours forbids <unk> and padding alone: leave it out"
    )
    edit(
        tmp_path / "opus" / "generation_config.json",
        bad_words_ids=None,
        num_beams=None,
        length_penalty=0.5,
    )
    edit(tmp_path / "opus" / "config.json", length_penalty=2.0)  # the other file says more
    read(tmp_path / "opus", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["decoding"] == {
        "beam": 1, "length_penalty": 0.5, "no_repeat": 0,
    }  # fmt: skip
    with pytest.raises(TransductError, match="out: exists already; choose another name"):
        read(tmp_path / "opus", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"early_stopping": False, "max_length": published.LENGTH}, None),
        ({"early_stopping": True, "max_length": 20}, "early_stopping True, max_length 20"),
        ({"early_stopping": "never"}, "early_stopping never"),
        ({"max_new_tokens": 30, "max_length": 20}, "max_new_tokens 30"),
    ],
)
def test_the_card_says_what_of_their_search_is_not_taken_over(original, tmp_path, changes, said):
    shutil.copytree(original[0], tmp_path / "opus")
    edit(tmp_path / "opus" / "generation_config.json", **changes)
    read(tmp_path / "opus", tmp_path / "out")
    card = (tmp_path / "out" / "card.md").read_text()
    assert f"Not taken over: {said}.\n" in card if said else "Not taken over" not in card


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
    refused(tmp_path, r"have the ids \[None, \d+, 0\]; expected three different ones")
    edit(tmp_path / "opus" / "tokenizer_config.json", unk_token={"content": "<UNK>"})
    read(tmp_path / "opus", tmp_path / "out")


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
        ({"residual": False}, "a model with residual=false"),
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
    with pytest.raises(TransductError, match=f"Marian has no place for {message}.*; {remedy}"):
        convert(tmp_path / "model", tmp_path / "out")


def test_other_models_and_places_are_refused(original, tmp_path):
    ours = original[3]
    int8.convert(ours, tmp_path / "small")
    with pytest.raises(
        TransductError, match="small: quantised already; give the model it was made of"
    ):
        convert(tmp_path / "small", tmp_path / "out")
    with pytest.raises(TransductError, match="small: exists already; choose another name"):
        convert(ours, tmp_path / "small")
    shutil.copytree(ours, tmp_path / "model")
    edit(tmp_path / "model" / "config.json", family="rnn")
    with pytest.raises(
        TransductError, match="model: no Transformer for translation; Marian takes no other of our"
    ):
        convert(tmp_path / "model", tmp_path / "out")
    edit(
        tmp_path / "model" / "config.json",
        family="transformer",
        replace=[{"pattern": "a", "with": "b"}],
    )
    with pytest.raises(
        TransductError,
        match="model: text is changed before it is cut; Marian has no place for data",
    ):
        convert(tmp_path / "model", tmp_path / "out")
    edit(tmp_path / "model" / "config.json", replace=None)
    size = json.loads((ours / "config.json").read_text())["model"]["target_size"]
    plain = Tokenizer.train([" ".join(map(str, range(2 * size)))], "word", size)
    plain.save(tmp_path / "model" / "tokenizer.target.json")
    with pytest.raises(
        TransductError, match="one of its tokenizers was SentencePiece's, one is ours"
    ):
        convert(tmp_path / "model", tmp_path / "out")
