"""Models of each published architecture compute here what they compute there, and what is not whole
is refused in one line with nothing written."""

import json
import re
import shutil
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import transduct
from tests.interop import published, tiny
from tests.interop.published import edit, renumbered, same_translations
from tests.refusals import refusal
from transduct import storage
from transduct.config import Recipe
from transduct.data.samples import generate
from transduct.functional.positions import sinusoidal_concatenated
from transduct.inference.batches import encode, flat
from transduct.interfaces.cli import main
from transduct.interop import ctranslate2, huggingface, int8
from transduct.interop.published import found_in, read
from transduct.runs.train import train

TEXTS, WORDS = tiny.TEXTS[:10], published.TEXTS
# What T5 with gates has, mT5 has, and Marian's search is compared in test_huggingface.py too.
DOUBLES = ("mt5", "marian")
CHECKED = [pytest.param(kind, marks=[pytest.mark.slow] * (kind in DOUBLES)) for kind in tiny.KINDS]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Makes each model once: theirs, and ours of it."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            theirs = tiny.trained(kind, folder / "theirs")
            read(folder / "theirs", folder / "ours")
            made[kind] = theirs, transduct.load(folder / "ours"), folder / "ours"
        return made[kind]

    return get


@torch.no_grad()
def logits_there(theirs, texts):
    """Log-probabilities (T, V) of each text as its own target, in one padded batch."""
    given = theirs.tokenizer(texts, return_tensors="pt", padding=True)
    targets = theirs.tokenizer(text_target=texts)["input_ids"]
    start = theirs.model.config.decoder_start_token_id
    longest = max(map(len, targets))
    rows = [[start, *row[:-1], *[start] * (longest - len(row))] for row in targets]
    found = theirs.model(**given, decoder_input_ids=torch.tensor(rows)).logits
    return [row[: len(target)] for row, target in zip(found, targets)], targets


@pytest.mark.parametrize("kind", CHECKED)
def test_logits_and_scores_are_equal_on_texts_of_unequal_length(models, kind):
    theirs, ours, _ = models(kind)
    texts = sorted(TEXTS, key=len)[:: len(TEXTS) // 4]
    assert len({len(text.split()) for text in texts}) > 2
    expected, targets = logits_there(theirs, texts)
    special = ours.special_tokens(ours.decoding if not theirs.languages else _said(ours, theirs))
    memory, segments = encode(
        ours.model, [special.source(ids) for ids in ours.encode(texts)], torch.device("cpu")
    )
    own = ours.target_tokenizer.encode(texts)
    rows, of_rows = flat([[*special.first, *ids] for ids in own], torch.device("cpu"))
    found = ours.model.logits(ours.model.decode(rows, of_rows, memory, segments))
    names = ours.target_tokenizer.pieces(range(ours.target_tokenizer.size))
    known = {name.strip(): number for number, name in enumerate(names) if number > 2}
    size = expected[0].shape[1]
    theirs_names = theirs.names(range(size))
    order = [(n, known[name]) for n, name in enumerate(theirs_names) if name in known]
    assert len(order) > size - 12  # M2M-100's tables have rows that no token uses
    here, there = ([pair[side] for pair in order] for side in (1, 0))
    assert torch.allclose(found[:, here], torch.cat(expected)[:, there], atol=1e-4)
    scores = ours.score(texts, texts, **theirs.languages)
    forced = theirs.begun - 1
    likely = [
        sum(row[n].log_softmax(-1)[token].item() for n, token in enumerate(target) if n >= forced)
        for row, target in zip(expected, targets)
    ]
    assert scores == pytest.approx(likely, abs=1e-3)


def _said(ours, theirs):
    from dataclasses import replace

    return replace(ours.decoding, **theirs.languages)


@pytest.mark.parametrize("kind", CHECKED)
def test_greedy_and_beam_search_find_the_same_tokens(models, kind):
    theirs, ours, _ = models(kind)
    assert ours.decoding.length_rule == "power"
    several = set()
    for beam in (1, 4):
        found = ours.translate(TEXTS, beam=beam, max_length=40, **theirs.languages)
        for text, mine in zip(TEXTS, found, strict=True):
            names = [name.strip() for name in ours.target_tokenizer.pieces(mine.tokens)]
            assert names == theirs.generated(text, beam)
            several.add(tuple(names))
    assert len(several) > 5  # else there is nothing to compare


@pytest.mark.parametrize("kind", ["t5", "nllb"])
def test_eight_bits_translate_alike(models, kind, tmp_path):
    theirs, ours, directory = models(kind)
    int8.convert(directory, tmp_path / "small")
    small = transduct.load(tmp_path / "small")
    expected = ours.score(TEXTS, TEXTS, **theirs.languages)
    found = small.score(TEXTS, TEXTS, **theirs.languages)
    assert found == pytest.approx(expected, rel=0.05, abs=0.1)
    assert len(small.translate(TEXTS, **theirs.languages)) == len(TEXTS)


def test_languages_are_needed_and_the_nearest_is_named(models):
    _, ours, _ = models("nllb")
    text = ["twenty two"]
    with refusal("needs the language to translate to: give --to"):
        ours.translate(text, source_language="en", target_language="")
    with refusal(r"unknown language 'koreann'; the nearest is 'kor_"):
        ours.translate(text, source_language="en", target_language="koreann")
    by_code = ours.translate(text, source_language="eng", target_language="de")
    assert by_code == ours.translate(text, source_language="English", target_language="deu_Latn")
    assert by_code != ours.translate(text, source_language="en", target_language="ko")
    weights = ours.attention("one", "two", source_language="en", target_language="ko")
    assert weights.target[1] == "kor_Hang"
    with refusal("a score has no option 'beam'; leave it out"):
        ours.score(text, text, beam=3)


def test_a_chat_template_is_kept(models, tmp_path):
    _, _, ours = models("t5")
    folder = shutil.copytree(ours.parent / "theirs", tmp_path / "theirs")
    edit(folder / "tokenizer_config.json", chat_template="{{ messages }}")
    read(folder, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert not (ours / "chat_template.jinja").exists()


def test_a_model_of_one_pair_has_no_languages(models):
    _, ours, _ = models("t5")
    with refusal("this model has one pair of languages; leave out --to"):
        ours.translate(["one"], target_language="ko")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: both(f, d_ff=48), "says (48, 32); config.json is of another model"),
        (lambda f: both(f, num_layers=3), "lacks weight 'encoder.block.2."),
        (lambda f: both(f, num_layers=1), "has an unknown weight '"),
        (lambda f: both(f, model_type="longt5"), "the nearest is 't5', from which it differs by"),
        (lambda f: both(f, model_type="t6"), "model_type is 't6'; the nearest is 't5'"),
        (lambda f: both(f, vocab_size=100), "it is of another model: copy both files again"),
        (lambda f: both(f, vocab_size=5000), "of which it names "),
        (lambda f: both(f, feed_forward_proj="gated-tanh"), "feed_forward_proj 'gated-tanh'; our"),
        (lambda f: both(f, eos_token_id=9999), "expected ids below that"),
        (lambda f: both(f, decoder_start_token_id=None), "names no decoder_start_token_id; add"),
        (lambda f: (f / "model.safetensors").unlink(), "half a model, it holds no model.safetens"),
        (lambda f: (f / "tokenizer.json").unlink(), "half a model, it holds no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer ("),
        (lambda f: cut(f / "model.safetensors", 0.5), "not a whole safetensors file ("),
        (lambda f: lie(f / "model.safetensors"), "not a whole safetensors file ("),
        (lambda f: changed(f, lambda w: w.pop("encoder.final_layer_norm.weight")), "lacks w"),
        (lambda f: changed(f, lambda w: w.update(odd=torch.ones(3))), "unknown weight 'odd'"),
        (
            lambda f: changed(f, lambda w: w["shared.weight"].fill_(float("nan"))),
            "holds values that are not numbers; copy it again",
        ),
        (lambda f: linked(f / "model.safetensors"), "a link out of its directory; copy the file"),
    ],
)  # fmt: skip
def test_what_is_not_whole_is_refused_and_nothing_is_written(models, tmp_path, change, message):
    theirs, _, _ = models("t5")
    folder = tmp_path / "in" / "theirs"
    shutil.copytree(theirs.path, folder)
    change(folder)
    with refusal(re.escape(message)) as error:
        read(folder, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def both(folder, **changes):
    for path in (folder / "config.json", folder / "generation_config.json"):  # the latter says more
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def lie(path):
    data = bytearray(path.read_bytes())
    data[:8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(bytes(data))


def changed(folder, change):
    weights = {name: w.clone() for name, w in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def linked(path):
    elsewhere = path.parents[1] / "elsewhere.safetensors"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def test_a_missing_model_type_is_recognised_and_search_settings_are_taken(models, tmp_path):
    theirs, ours, _ = models("t5")
    folder = tmp_path / "theirs"
    shutil.copytree(theirs.path, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    said = {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True, "max_length": 30}
    said |= {"bad_words_ids": [[5], [6, 7]], "no_repeat_ngram_size": 4, "repetition_penalty": 1.2}
    (folder / "generation_config.json").write_text(json.dumps(said))
    read(folder, tmp_path / "ours")
    again = transduct.load(tmp_path / "ours")
    found = again.decoding
    assert (found.beam, found.length_penalty, found.stopping) == (3, 0.6, "early")
    assert (found.max_length, found.no_repeat) == (29, 4)
    [forbidden] = set(again.forbidden) - {0, 1}
    assert again.target_tokenizer.pieces([forbidden]) == theirs.names([5])
    card = (tmp_path / "ours" / "card.md").read_text()
    assert "Not taken over: repetition_penalty 1.2, bad_words_ids of several tokens, 1." in card
    assert again.score(TEXTS, TEXTS) == ours.score(TEXTS, TEXTS)


def test_every_command_and_request_takes_languages(models, tmp_path, capsys, monkeypatch):
    from starlette.testclient import TestClient

    from tests.interfaces.clients import service_of

    _, ours, directory = models("nllb")
    expected = ours.translate(TEXTS[:2], source_language="en", target_language="ko")
    (tmp_path / "a").write_text("\n".join(TEXTS[:2]))

    def said(*words):
        monkeypatch.setattr("sys.argv", ["transduct", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out.splitlines()

    pair = ("--from", "English", "--to", "ko")
    assert said("translate", directory, tmp_path / "a", *pair) == [each.text for each in expected]
    assert said("predict", directory, TEXTS[0], *pair) == [expected[0].text]
    scores = said("score", directory, "--source", tmp_path / "a", "--target", tmp_path / "a", *pair)
    there = ours.score(TEXTS[:2], TEXTS[:2], source_language="en", target_language="ko")
    assert list(map(float, scores)) == pytest.approx(there, abs=1e-4)
    assert any("kor_Hang Korean" in line for line in said("describe", directory))
    with TestClient(service_of(ours, "nllb", 10).application()) as client:
        asked = {"texts": TEXTS[:2], "from": "en", "to": "kor_Hang"}
        found = client.post("/translate", json=asked).json()["translations"]
        assert [each["text"] for each in found] == [each.text for each in expected]
        given = {"sources": TEXTS[:2], "targets": TEXTS[:2], "from": "en", "to": "ko"}
        assert client.post("/score", json=given).json()["scores"] == pytest.approx(there, abs=1e-4)
        refused = client.post("/translate", json=asked | {"to": "korr"})
        assert (
            "no model translates into 'korr'; the nearest is 'ko' (Korean), of "
            in refused.json()["error"]
        )
        assert refused.status_code == 400
        number = client.post("/translate", json=asked | {"to": 3}).json()["error"]
        assert number == "the request: 'to' must be text"


def test_a_model_of_many_languages_is_trained_further(models, tmp_path):
    _, ours, directory = models("nllb")
    (tmp_path / "a").write_text("\n".join(TEXTS))
    file = str(tmp_path / "a")
    data = {"train": [{"source": [file], "target": [file]}], "max_length": 64}
    data["valid"] = {"source": file, "target": file}
    config = json.loads((directory / "config.json").read_text())
    derived = ("source_size", "target_size", "max_length")
    model = {key: value for key, value in config["model"].items() if key not in derived}
    decoding = config["decoding"] | {"source_language": "en", "target_language": "ko"}
    recipe = Recipe(
        "translation",
        data,
        {"shared": True},
        {**model, "start_from": str(directory)},
        {"steps": 1, "batch_tokens": 400, "learning_rate": 1e-9, "warmup": 1},
        decoding,
    )
    train(recipe, tmp_path / "run", notify=str)
    again = transduct.load(tmp_path / "run")
    pair = {"source_language": "en", "target_language": "ko"}
    assert again.score(TEXTS, TEXTS) == pytest.approx(ours.score(TEXTS, TEXTS, **pair), abs=1e-3)
    records = [
        json.loads(line)
        for line in (tmp_path / "run" / "log.jsonl").read_text().split("\n")
        if line
    ]
    losses = [record["scores"]["loss"] for record in records if "scores" in record]
    tokens = sum(len(row) + 2 for row in ours.target_tokenizer.encode(TEXTS))
    assert losses[-1] < -2 * sum(ours.score(TEXTS, TEXTS, **pair)) / tokens


@torch.no_grad()
def likelihood(model, source, target):
    """The log-probability of a target by a model of theirs."""
    begin, end = model.config.decoder_start_token_id, model.config.eos_token_id
    logits = model(
        input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[begin, *target]])
    ).logits[0]
    rows = logits.double().log_softmax(-1)
    return float(sum(row[token] for row, token in zip(rows, [*target, end], strict=True)))


def with_bias(original, folder, bias, **settings):
    """Theirs with a bias for the unknown token and settings of its search, and ours of it."""
    path, _, [names], _ = original
    shutil.copytree(path, folder / "opus")
    edit(folder / "opus" / "generation_config.json", renormalize_logits=True, **settings)
    weights = load_file(path / "model.safetensors")
    weights["final_logits_bias"][0, names.index("<unk>")] = bias
    save_file(weights, folder / "opus" / "model.safetensors", {"format": "pt"})
    read(folder / "opus", folder / "ours")
    model = published.transformers().MarianMTModel.from_pretrained(folder / "opus")
    translator, tokenizer = transduct.load(folder / "ours"), published.tokenizer(path)
    assert same_translations(translator, model, tokenizer, renumbered(names), (3,)) > 0
    return model, translator, tokenizer, names


def test_padding_counts_for_nothing_where_they_say_so(original, tmp_path):
    """Theirs may write the unknown token, ours does not."""
    model, translator, tokenizer, names = with_bias(original, tmp_path, -30.0)
    counted = transduct.load(original[3]).score(WORDS, WORDS)
    with torch.no_grad():
        model.final_logits_bias[0, names.index("<pad>")] = float("-inf")
    sources, targets = (tokenizer(**{side: WORDS})["input_ids"] for side in ("text", "text_target"))
    expected = [likelihood(model, s, t[:-1]) for s, t in zip(sources, targets, strict=True)]
    assert translator.score(WORDS, WORDS) == pytest.approx(expected, abs=1e-4)
    assert counted != pytest.approx(expected, abs=1e-2)


def test_the_unknown_token_counts_for_nothing_where_they_forbid_it_too(original, tmp_path):
    forbidden = [original[2][0].index(name) for name in ("<pad>", "<unk>")]
    words = [[each] for each in forbidden]
    model, translator, tokenizer, names = with_bias(original, tmp_path, 3.0, bad_words_ids=words)
    with torch.no_grad():
        model.final_logits_bias[0, forbidden] = float("-inf")
    target = list(range(3, 9))
    theirs = [names.index(name) for name in translator.target_tokenizer.pieces(target)]
    expected = [likelihood(model, row, theirs) for row in tokenizer(WORDS)["input_ids"]]
    assert translator.score(WORDS, [target] * len(WORDS)) == pytest.approx(expected, abs=1e-4)


def test_it_goes_on_as_any_model_of_ours(original, tmp_path):
    ours = original[3]
    plain = transduct.load(ours)
    (tmp_path / "text").write_text("\n".join(WORDS))
    command(
        "convert", ours, tmp_path / "small", "--precision", "int8", "--shortlist", tmp_path / "text"
    )
    small = transduct.load(tmp_path / "small")
    assert small.score(WORDS, WORDS) == pytest.approx(plain.score(WORDS, WORDS), rel=0.02)
    assert len(small.translate(WORDS, shortlist=True)) == len(WORDS)
    narrow = transduct.load(ours).shortlist_of(tmp_path / "text")
    assert list(narrow) == ["shortlist.safetensors"]
    report = plain.evaluate((WORDS, [[text] for text in WORDS]))
    assert 0.0 <= report.scores["bleu"] <= 100.0
    ctranslate2.convert(ours, tmp_path / "ct2")
    library = pytest.importorskip("ctranslate2")
    # more would stay so
    engine = library.Translator(str(tmp_path / "ct2"), compute_type="float32", intra_threads=1)
    pieces = [plain.source_tokenizer.pieces(ids) for ids in plain.source_tokenizer.encode(WORDS)]
    found = engine.translate_batch(pieces, beam_size=1, max_decoding_length=12)
    for theirs, mine in zip(found, plain.translate(WORDS, beam=1), strict=True):
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
    assert after.score(WORDS, WORDS) == pytest.approx(before.score(WORDS, WORDS), abs=1e-3)
    sources, targets = zip(*generate("number_names", 8, "valid"))
    tokens = sum(len(row) + 1 for row in before.target_tokenizer.encode(targets))
    records = [
        json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    losses = [record["scores"]["loss"] for record in records if "scores" in record]
    assert losses[-1] == pytest.approx(-sum(before.score(sources, targets)) / tokens, abs=1e-4)
    with refusal(r"its output has a bias, this model's has none; set model.output_bias=true"):
        train(further(output_bias=False), tmp_path / "other", notify=str)
    with refusal("Hugging Face's; make a model of ours of it: transduct convert "):
        train(further(start_from=str(original[0])), tmp_path / "other", notify=str)
    # its tokenizers are still SentencePiece's
    huggingface.convert(tmp_path / "run" / "model", tmp_path / "back")
    assert (tmp_path / "back" / "source.spm").exists()


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


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_start_token_id": 0},
        {"decoder_start_token_id": 7},
        {"forced_bos_token_id": 9},
        {"scale_embedding": False},
    ],
    ids=str,
)
def test_switches_of_marian_s_relatives_are_obeyed(tmp_path, changes):
    path = tmp_path / "opus"
    model, [names] = published.folder(path, **changes)
    model.generation_config.forced_bos_token_id = changes.get("forced_bos_token_id")
    model.generation_config.save_pretrained(path)
    read(path, tmp_path / "ours")
    ours, tokenizer = transduct.load(tmp_path / "ours"), published.tokenizer(path)
    words = WORDS[::3]
    found = ours.translate(words, beam=1, max_length=20)
    begun = 1 + ("forced_bos_token_id" in changes)
    for text, mine in zip(words, found, strict=True):
        given = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        row = model.generate(
            **given,
            num_beams=1,
            max_length=20 + begun,
            bad_words_ids=[[names.index("<unk>")], [names.index("<pad>")]],
        )[0].tolist()[begun:]
        row = row[: row.index(0)] if 0 in row else row
        mine = [name.strip() for name in ours.target_tokenizer.pieces(mine.tokens)]
        assert mine == [names[token] for token in row]


def test_the_language_of_a_marian_model_may_be_an_option(original):
    ours = transduct.load(original[3])
    texts, options = WORDS, {"max_length": 12}
    expected = ours.translate([f">>fra<< {text}" for text in texts], **options)
    assert ours.translate(texts, target_language="French", **options) == expected
    assert ours.translate(texts, **options) != expected


HUGE = 10**12
CONFIGS = [
    ({"model_type": "fsmt"}, "model_type is 'fsmt'; the nearest is 'marian', from which it differs "
     "by vocabularies of its own kind; known are: marian, bart"),
    ({"decoder_ffn_dim": 64}, "encoder_ffn_dim 32 and decoder_ffn_dim 64; our"),
    ({"decoder_attention_heads": 4}, "encoder_attention_heads 2 and decoder_attention_heads 4;"),
    ({"activation_function": "tanh"}, "activation_function 'tanh'; our"),
    ({"static_position_embeddings": False}, "static_position_embeddings False; our"),
    *[({key: True}, f"{key} True; our")
      for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm")],
    ({"d_model": 15}, "an odd d_model, 15; our"),
    ({"num_beams": 0}, "beam is 0, must be from 1 to 1,000"),
    ({"no_repeat_ngram_size": -1}, "no_repeat is -1, must be at least 0"),
    ({"length_penalty": 21.0}, "length_penalty is 21.0, must be from -20 to 20"),
    ({"vocab_size": HUGE}, r"vocab.json: \d+ tokens, config.json says 1000000000000"),
    ({"encoder_layers": 999}, "lacks the weights of layers; config.json is of another model"),
    ({"encoder_ffn_dim": HUGE, "decoder_ffn_dim": HUGE}, "d_ff is 1000000000000, must be from"),
    ({"d_model": None}, "config.json: missing key 'd_model'"),
    ({"d_model": "16"}, "config.json: d_model is the text '16'"),
    ({"vocab_size": 9}, r"\d+ tokens, config.json says 9; expected each id below that once"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), CONFIGS, ids=str)
def test_what_ours_cannot_say_is_refused(original, tmp_path, changes, message):
    shutil.copytree(original[0], tmp_path / "opus")
    edit(tmp_path / "opus" / "config.json", **changes)
    if "num_beams" in changes:
        (tmp_path / "opus" / "generation_config.json").unlink()
    refused(tmp_path, message)


def refused(tmp_path, message):
    with refusal(message):
        read(tmp_path / "opus", tmp_path / "out")
    assert not (tmp_path / "out").exists()


WEIGHTS, POINTS = "model.safetensors", "a pointer of Git LFS, not "


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "not valid JSON .*; expected a model's configuration"),
        ("config.json", b"[" * 100_000, "not valid JSON .*; expected a model's configuration"),
        ("config.json", b"[]", "holds no JSON object; expected a model's configuration"),
        ("config.json", None, "cannot be read .*; expected a model's configuration"),
        ("vocab.json", None, "cannot be read .*; expected the id of each token"),
        ("source.spm", None, "cannot be read .*; expected a SentencePiece model"),
        ("target.spm", b"\x0a\x7f", "not a complete SentencePiece model .*; copy it again"),
        ("target.spm", b"", "holds no pieces; expected a SentencePiece model"),
        (WEIGHTS, b"abc", "not a whole safetensors file"),
        (WEIGHTS, None, "it holds no model.safetensors and no pytorch_model.bin; copy all"),
        (WEIGHTS, storage.POINTER, POINTS + "a safetensors file; fetch the files"),
        ("source.spm", storage.POINTER, POINTS + "a SentencePiece model; fetch the files"),
        ("vocab.json", storage.POINTER, POINTS + "the id of each token; fetch the files"),
    ],
)
def test_files_that_are_damaged_or_missing_are_named(original, tmp_path, name, content, message):
    shutil.copytree(original[0], tmp_path / "opus")
    (tmp_path / "opus" / name).unlink()
    if content is not None:
        (tmp_path / "opus" / name).write_bytes(content)
    refused(
        tmp_path, ("half a model" if content is None and name == WEIGHTS else name) + ".*" + message
    )


def test_nothing_is_unpickled(original, tmp_path, pickles_here):
    folder = shutil.copytree(original[0], tmp_path / "opus")
    last = WEIGHTS
    for name, message in (
        ("pytorch_model.bin", "(asks for more than tensors|a damaged pickle) .*; take"),
        ("pytorch_model.bin.index.json", "not valid JSON"),
        ("tf_model.h5", " here; expected model.safetensors: take it, or pytorch_model.bin, from"),
    ):
        last = (folder / last).rename(folder / name).name
        refused(tmp_path, f"{name}:? ?{message}")
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, r"model.safetensors.index.json: has no weight_map; copy it again")


def test_search_settings_of_marian_are_taken_over(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    path = tmp_path / "opus" / "generation_config.json"
    edit(path, bad_words_ids=[[7], [8, 9]], num_beams=None, length_penalty=0.5, min_length=3)
    # the other file says more
    edit(tmp_path / "opus" / "config.json", length_penalty=2.0, max_length=30)
    read(tmp_path / "opus", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    rules = {"length_rule": "power", "stopping": "estimate", "at_limit": "free"}
    assert found["decoding"] == rules | {"beam": 1, "length_penalty": 0.5, "max_length": 29}
    [[names], ours] = original[2], transduct.load(tmp_path / "out")
    assert ours.target_tokenizer.pieces(found["forbidden"]) == [names[7]]
    lacking = "Not taken over: min_length 3, bad_words_ids of several tokens, 1.\n"
    assert lacking in (tmp_path / "out" / "card.md").read_text()
    with refusal("out: exists already; choose another name"):
        read(tmp_path / "opus", tmp_path / "out")


def test_sinusoids_are_left_out_and_other_positions_refused(original, tmp_path):
    shutil.copytree(original[0], tmp_path / "opus")
    weights = load_file(tmp_path / "opus" / "model.safetensors")
    table = sinusoidal_concatenated(torch.arange(published.LENGTH), 16)
    name = "model.encoder.embed_positions.weight"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rows = {name: table.to(dtype)}
        save_file(weights | rows, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
        read(tmp_path / "opus", tmp_path / f"{dtype}")
    for wrong in (table + 0.001 * torch.eye(published.LENGTH, 16), table[:8].clone()):
        save_file(
            weights | {name: wrong}, tmp_path / "opus" / "model.safetensors", {"format": "pt"}
        )
        refused(tmp_path, f"'{name}' .* holds no sinusoids; our Transformer does not support it")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("final_logits_bias", r"weight 'final_logits_bias' is \(1, \d+\), config.json says \(1,"),
        ("lm_head.weight", r"model.shared.weight and lm_head.weight differ, config.json says that"),
        ("model.shared.weight", "lacks weight 'model.shared.weight'; config.json is of another"),
    ],
)
def test_tables_that_contradict_the_configuration_are_refused(original, tmp_path, name, message):
    shutil.copytree(original[0], tmp_path / "opus")
    weights = load_file(tmp_path / "opus" / "model.safetensors")
    weights["final_logits_bias"] = weights["final_logits_bias"][:, 1:].clone()
    if name == "lm_head.weight":
        weights[name] = weights["model.shared.weight"] + 1.0
    elif name == "model.shared.weight":
        del weights[name]
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    refused(tmp_path, message)
