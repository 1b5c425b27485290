"""docs/migrating.md: its recipes run, one after the other, its programs too, and every key that it
names exists."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import transduct
from tests.docs.test_pages import VERBS
from tests.docs.test_using import call
from tests.interop import published
from transduct.config import Recipe, load_recipe, parse_override
from transduct.data.samples import generate
from transduct.interop import ctranslate2
from transduct.interop import published as reader
from transduct.tasks.base import task_class
from transduct.training.log import ignore

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line) for kind, text in BLOCKS if not kind for line in text.splitlines()]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
OVERRIDES = re.findall(r"(?:training|model|decoding|tokenizer)\.(?!start_from)\w+=[\w.-]+", PAGE)
TINY = ["model.d_model=16", "model.num_heads=2", "model.encoder_layers=1", "model.decoder_layers=1"]
FILES = {
    "train": (60, "train"),
    "law": (20, "train"),
    "mono": (20, "train"),
    "dev": (9, "valid"),
    "test": (9, "test"),
}


@pytest.fixture
def folder(run, monkeypatch):
    """Where the page's recipes run: a finished run, and texts."""
    place = run.parent / "place"
    (place / "runs").mkdir(parents=True)
    shutil.move(run, place / "runs" / "de-en")
    for name, given in FILES.items():
        for side, texts in zip(("de", "en"), zip(*generate("reverse", *given))):
            (place / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))
    (place / "mono.de").unlink()
    monkeypatch.chdir(place)
    return place


def test_its_recipes_run(folder, monkeypatch, capfd):
    pytest.importorskip("ctranslate2")
    for words in COMMANDS:
        words, out = (words[:-2], words[-1]) if ">" in words else (words, None)
        if words[1] == "train":
            fewer = [
                "training.steps=60" if "runs/en-de" in words else "training.steps=2",
                "data.root=.",
            ]
            words = [*words, *fewer, *(() if "de-en/" in " ".join(words) else TINY)]
        printed = call(words, monkeypatch, capfd)
        if out is not None:
            Path(out).write_text("".join(f"{line}\n" for line in printed))
    assert len(Path("mono.de").read_text().splitlines()) == 20
    trained = load_recipe("runs/de-en.2/recipe.yaml").data["train"]
    assert [(corpus["source"], corpus["weight"]) for corpus in trained] == [
        ("train.de", 2),
        ("mono.de", 1),
    ]
    assert load_recipe("runs/law/recipe.yaml").model["start_from"].endswith("runs/de-en/model")
    exec(PROGRAMS[0], {})
    assert len(capfd.readouterr().out.splitlines()) == 2
    ours = transduct.load("runs/de-en")
    for text in ("a b c d", "a <s> b </s> c"):  # special tokens in a text are text
        program_of(text, beam=1)
        assert capfd.readouterr().out.splitlines() == ours.predict([text], beam=1)


def program_of(text, tokens="tokens", **options):
    """Run the program for CTranslate2, for other tokens; gives back what it defines."""
    defined = {}
    program = PROGRAMS[1].replace('"int8"', '"float32", intra_threads=1')  # more would stay so
    program = program.replace(".tokens\n", f".tokens\n    tokens = {tokens}\n")
    given = ", ".join([repr(text), *(f"{name}={value}" for name, value in options.items())])
    exec(program.replace('"Ein Haus."', given), defined)
    return defined


@pytest.mark.parametrize(
    "decoding", [{}, {"length_penalty": 0.0}, {"length_rule": "power", "expansion": 1.0}], ids=str
)
def test_the_program_for_ctranslate2_translates_as_ours(run, decoding, monkeypatch):
    pytest.importorskip("ctranslate2")
    monkeypatch.chdir(run.parent)
    config = json.loads(Path("run/model/config.json").read_text())
    config["decoding"] = {**config["decoding"], **decoding}
    Path("run/model/config.json").write_text(json.dumps(config))
    ctranslate2.convert(Path("run/model"), Path("de-en.ct2"))
    ours, translate = transduct.load("run"), program_of("a b")["translate"]
    texts = [source for source, _ in generate("reverse", 60, "test")]
    found = {}
    for beam in (1, 2, 5):
        found[beam] = [each.text for each in ours.translate(texts, beam=beam)]
        assert [translate(text, beam) for text in texts] == found[beam]
    assert found[1] != found[5], "a weak model, which the search makes better"


def test_its_program_for_ctranslate2_takes_a_marian_model_too(tmp_path, monkeypatch, capfd):
    pytest.importorskip("ctranslate2")
    published.folder(tmp_path / "opus")
    reader.read(tmp_path / "opus", tmp_path / "ours")
    ctranslate2.convert(tmp_path / "ours", tmp_path / "de-en.ct2")
    monkeypatch.chdir(tmp_path)
    ours, written = transduct.load("ours"), []
    for text in ("one", "two hundred", "forty three", "nine thousand eleven"):
        [expected] = ours.translate([f">>fra<< {text}"], beam=1)
        program_of(text, '[">>fra<<", *tokens]', beam=1)
        assert capfd.readouterr().out.strip() == expected.text.strip()
        written += ours.target_tokenizer.pieces(expected.tokens)
    known = Tokenizer.from_file("de-en.ct2/tokenizer.target.json")
    assert any(known.token_to_id(piece) is None for piece in written), (
        "pieces that target.spm lacks"
    )


def test_its_keys_exist(tmp_path):
    assert len(OVERRIDES) > 15
    recipe = load_recipe(Path(__file__).parents[2] / "recipes" / "multi30k_en_de.yaml", OVERRIDES)
    task_class(recipe.task)(recipe, tmp_path, ignore)


def test_what_it_calls_a_default_is_one(tmp_path):
    data = {"train": [{"generate": "reverse", "count": 9}]}
    filled = task_class("translation")(
        Recipe("translation", data, model={"size": "base"}), tmp_path, ignore
    )
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "default |" in line]
    said = [
        override
        for row in rows
        for override in OVERRIDES
        if f"{override}`" in row or f"{override} " in row
    ]
    assert len(said) >= 6
    for override in said:
        [(section, changed)] = parse_override(override).items()
        assert getattr(filled.recipe, section).items() >= changed.items()


def test_the_options_it_names_exist():
    known = {
        option for command in VERBS.values() for each in command.params for option in each.opts
    }
    ours = [line.split(" | ")[2] for line in PAGE.splitlines() if line.startswith("| ")]
    options = [option for cell in ours for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", cell)]
    assert len(options) > 15
    assert {*options} <= known
