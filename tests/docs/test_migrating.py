"""docs/migrating.md: its recipes run, one after the other, its programs too, and every key that it
names exists."""

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
        program = PROGRAMS[1].replace("Ein Haus.", text).replace("beam_size=5", "beam_size=1")
        exec(program.replace('"int8"', '"float32", intra_threads=1'), {})  # more would stay so
        assert capfd.readouterr().out.splitlines() == ours.predict([text], beam=1)


def test_its_program_searches_as_long_as_ours():
    assert "beam_size=5, patience=2, disable_unk=True" in PROGRAMS[1]


def test_its_program_for_ctranslate2_takes_a_marian_model_too(tmp_path, monkeypatch, capfd):
    pytest.importorskip("ctranslate2")
    published.folder(tmp_path / "opus")
    reader.read(tmp_path / "opus", tmp_path / "ours")
    ctranslate2.convert(tmp_path / "ours", tmp_path / "de-en.ct2")
    monkeypatch.chdir(tmp_path)
    ours, written = transduct.load("ours"), []
    settings = '"float32", intra_threads=1'
    for text in ("one", "two hundred", "forty three", "nine thousand eleven"):
        [expected] = ours.translate([f">>fra<< {text}"], beam=1)
        limit = f"beam_size=1, max_decoding_length={len(expected.tokens)}"
        program = (
            PROGRAMS[1]
            .replace("Ein Haus.", text)
            .replace("beam_size=5", limit)
            .replace('"int8"', settings)
        )
        exec(program.replace("[tokens]", '[[">>fra<<", *tokens]]'), {})
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
