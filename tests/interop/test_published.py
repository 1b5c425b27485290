"""Models of each published architecture compute here what they compute there, and what is not whole
is refused in one line with nothing written."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import transduct
from tests.interop import tiny
from transduct.errors import TransductError
from transduct.inference import engine
from transduct.interop import int8
from transduct.interop.huggingface import read

TEXTS = tiny.TEXTS[:10]
CHECKED = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind == "mt5" else []) for kind in tiny.KINDS
]


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
    frame = ours.frame(ours.decoding if not theirs.languages else _said(ours, theirs))
    memory, segments = engine.encode(
        ours.model, [frame.source(ids) for ids in ours.encode(texts)], torch.device("cpu")
    )
    own = ours.target_tokenizer.encode(texts)
    rows, of_rows = engine.flat([[*frame.first, *ids] for ids in own], torch.device("cpu"))
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
    with pytest.raises(TransductError, match="needs the language to translate to: give --to"):
        ours.translate(text, source_language="en", target_language="")
    with pytest.raises(TransductError, match=r"unknown language 'koreann'; the nearest is 'kor_"):
        ours.translate(text, source_language="en", target_language="koreann")
    by_code = ours.translate(text, source_language="eng", target_language="de")
    assert by_code == ours.translate(text, source_language="English", target_language="deu_Latn")
    assert by_code != ours.translate(text, source_language="en", target_language="ko")
    weights = ours.attention("one", "two", source_language="en", target_language="ko")
    assert weights.target[1] == "kor_Hang"
    with pytest.raises(TransductError, match="a score has no option 'beam'; leave it out"):
        ours.score(text, text, beam=3)


def test_a_model_of_one_pair_has_no_languages(models):
    _, ours, _ = models("t5")
    with pytest.raises(TransductError, match="this model has one pair of languages, and"):
        ours.translate(["one"], target_language="ko")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: edit(f, d_ff=48), "says (48, 32); config.json is of another model"),
        (lambda f: edit(f, num_layers=3), "lacks the weight that is our 'encoder.2."),
        (lambda f: edit(f, num_layers=1), "has an unknown weight '"),
        (lambda f: edit(f, model_type="longt5"), "the nearest is 't5', from which it differs by"),
        (lambda f: edit(f, model_type="t6"), "model_type is 't6'; the nearest is 't5'"),
        (lambda f: edit(f, vocab_size=100), "it is of another model: copy both files again"),
        (lambda f: edit(f, vocab_size=5000), "of which it names "),
        (lambda f: edit(f, feed_forward_proj="gated-tanh"), "feed_forward_proj 'gated-tanh'; our"),
        (lambda f: edit(f, eos_token_id=9999), "expected ids below that"),
        (lambda f: edit(f, decoder_start_token_id=None), "names no decoder_start_token_id; add"),
        (lambda f: (f / "model.safetensors").unlink(), "half a model, it holds no model.safetens"),
        (lambda f: (f / "tokenizer.json").unlink(), "half a model, it holds no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer ("),
        (lambda f: cut(f / "model.safetensors", 0.5), "not a whole safetensors file ("),
        (lambda f: lie(f / "model.safetensors"), "not a whole safetensors file ("),
        (lambda f: changed(f, lambda w: w.pop("encoder.final_layer_norm.weight")), "lacks the w"),
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
    with pytest.raises(TransductError, match=re.escape(message)) as error:
        read(folder, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def edit(folder, **changes):
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

    from transduct.interfaces.cli import main
    from transduct.serving.service import Service

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
    with TestClient(Service(ours, "nllb", 10).application()) as client:
        asked = {"texts": TEXTS[:2], "from": "en", "to": "kor_Hang"}
        found = client.post("/translate", json=asked).json()["translations"]
        assert [each["text"] for each in found] == [each.text for each in expected]
        given = {"sources": TEXTS[:2], "targets": TEXTS[:2], "from": "en", "to": "ko"}
        assert client.post("/score", json=given).json()["scores"] == pytest.approx(there, abs=1e-4)
        wrong = client.post("/translate", json=asked | {"to": "korr"}).json()["error"]
        assert "unknown language 'korr'; the nearest is 'kor_Hang'" in wrong
        number = client.post("/translate", json=asked | {"to": 3}).json()["error"]
        assert "target_language is 3, expected a code or name of a language" in number


def test_a_model_of_many_languages_is_trained_further(models, tmp_path):
    from transduct.config import Recipe
    from transduct.runs.train import train

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
