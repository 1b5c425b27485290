"""docs/recipes.md names every key as the code has it, and its example is a recipe that trains.

`python -m tests.docs.reference` writes its tables anew.
"""

import gzip
import json
import lzma
import re
import shlex
from dataclasses import dataclass, fields
from typing import Literal

import pyarrow as pa
import pytest
import yaml
from pyarrow.parquet import write_table

from tests.docs import reference
from transduct.config import Recipe, dump, load_recipe, merge, stages_of
from transduct.data.samples import generate
from transduct.runs import evaluate, train
from transduct.tasks.base import task_class

BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(reference.PAGE.read_text(encoding="utf-8"))
EXAMPLE, *FURTHER = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
COMMANDS = [line for kind, text in BLOCKS if not kind for line in text.splitlines()]


def test_the_page_is_what_the_code_gives():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_link_leads_to_a_heading():
    text = reference.PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links
    assert links <= anchors
    assert len(anchors) == len(headings)


@dataclass(frozen=True)
class Planted:
    """A record of our own.

    Attributes:
        steps, rest: how many.
        norm: over
            two lines.
    """

    steps: int
    norm: Literal["none"] | Literal["pre", "post"] = "pre"
    rest: float | None = None


def test_a_row_has_the_type_the_default_and_what_the_docstring_says():
    assert reference.table(Planted).splitlines()[2:] == [
        "| `steps` | whole number | must be given | how many |",
        "| `norm` | `none`, `pre`, `post` | `pre` | over two lines |",
        "| `rest` | number | not given | how many |",
    ]


@dataclass(frozen=True)
class Long:
    """A record whose key takes two sentences.

    Attributes:
        layers: how many (He et al. 2016). More are slower.
    """

    layers: int = 2


def test_what_needs_more_than_a_sentence_stands_below_the_table():
    assert reference.table(Long).splitlines()[2:] == [
        "| `layers` | whole number | `2` | how many (He et al. 2016) |",
        "",
        "* `layers`: More are slower.",
    ]


def test_a_key_without_a_description_is_refused():
    @dataclass(frozen=True)
    class Silent(Planted):
        """Adds a key."""

        unsaid: int = 0

    with pytest.raises(KeyError, match="no entry under Attributes for unsaid"):
        reference.meanings_of(Silent)


def test_every_section_of_every_task_is_found():
    """A task whose file says it otherwise would be missing from the page."""
    made = {task: reference.records_of(task) for task in reference.TASKS}
    for task, records in made.items():
        recipe = task_class(task)(Recipe(task, **sections_of(task)), reference.PAGE, print).recipe
        for section in reference.SECTIONS:
            keys = (
                {field.name for field in fields(records[section])} if section in records else set()
            )
            assert set(getattr(recipe, section)) == keys, (task, section)


def sections_of(task):
    """The least that a recipe of a task must say."""
    source = {
        "images": {"images": "a"},
        "boxes": {"images": "a", "boxes": "b"},
        "sounds": {"sounds": "a", "texts": "b"},
        "text": {"text": "a"},
        "pairs": {"pairs": "a.tsv"},
    }
    kinds = {
        "image_classification": "images", "image_codes": "images", "text_to_image": "images",
        "object_detection": "boxes", "speech_recognition": "sounds",
        "language_modeling": "text", "masked_language_modeling": "text",
    }  # fmt: skip
    data = {"train": [source[kinds.get(task, "pairs")]]}
    return {"data": {**data, "kind": "sequence"} if task == "text_classification" else data}


def test_common_descriptions_serve_several_records():
    def records():
        for section in reference.SECTIONS:
            for cls in reference.users(section):
                yield from (cls, *reference.records_inside(cls))
        for task in reference.TASKS:
            yield from (family.config for family in reference.task_class(task).families.values())

    found = [{field.name for field in fields(cls)} for cls in set(records())]
    for name in reference.COMMON:
        assert sum(name in names for names in found) > 1, name


def write(path, text):
    """A file, compressed as its ending says."""
    pack = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": lambda held: pa.compress(held, "zstd", asbytes=True),
    }
    path.write_bytes(pack.get(path.suffix, bytes)(text.encode()))


@pytest.fixture
def corpora(tmp_path):
    """A folder with the files that the example names, of ten pairs or more each."""
    pairs = iter(generate("reverse", 200))

    def lines(count, form="{}\t{}"):
        return "".join(form.format(*next(pairs)) + "\n" for _ in range(count))

    for name, ending in (("news", ".gz"), ("talks", ".xz")):
        write(tmp_path / f"{name}.de{ending}", lines(20, "{0}"))
        write(tmp_path / f"{name}.en{ending}", lines(20, "{1}"))
    write(tmp_path / "subtitles.tsv.gz", lines(20))
    write(tmp_path / "glossary.tsv", "german\tenglish\n" + lines(20))
    objects = [{"translation": dict(zip(("de", "en"), next(pairs)))} for _ in range(20)]
    write(tmp_path / "web.jsonl.zst", "".join(json.dumps(each) + "\n" for each in objects))
    for number in (1, 2):
        columns = dict(zip(("de", "en"), zip(*(next(pairs) for _ in range(10)))))
        write_table(pa.table(columns), tmp_path / f"law.{number}.parquet")
    write(tmp_path / "dev.de", lines(4, "{0}"))
    write(tmp_path / "dev.en", lines(4, "{1}"))
    write(tmp_path / "test.tsv", lines(4, "{0}\t{1}\t{1}"))
    return tmp_path


def short(recipe):
    """Overrides after which a recipe trains in seconds."""
    tiny = [
        "model.d_model=16",
        "model.num_heads=2",
        "model.d_ff=16",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
    ]
    each = [
        "training.steps=3",
        "training.warmup=1",
        "training.checkpoint_every=2",
        "training.validate_every=0",
    ]
    staged = [f"stages.{i}.{one}" for i, _ in enumerate(recipe.get("stages", [])) for one in each]
    return [*each, *tiny, *staged, "tokenizer.size=90", "data.workers=0"]


@pytest.mark.parametrize("over", [{}, *FURTHER], ids=["alone", "stages", "ensemble"])
def test_the_example_trains_alone_and_with_what_is_laid_over_it(corpora, over):
    recipe = merge(EXAMPLE, over)
    path = corpora / "mine.yaml"
    path.write_text(dump(recipe), encoding="utf-8")
    loaded = load_recipe(path, [f"data.root={corpora}", *short(recipe)], "quick")
    model = train.train(loaded, corpora / "run", notify=str)
    assert evaluate.evaluate(model).details["sentences"] == 4
    if not over:
        manifest = json.loads((corpora / "run" / "corpus" / "manifest.json").read_text())
        assert [weight for _, _, weight in manifest["weights"]] == [1.0, 0.5, 5.0, 1.0, 1.0]
        assert manifest["rows"] + sum(manifest["dropped"].values()) == 120
    if over.get("ensemble"):
        assert {path.name for path in model.iterdir() if path.is_dir()} == {"1", "2"}


def test_the_overrides_of_the_page_are_keys(corpora, monkeypatch):
    monkeypatch.chdir(corpora)
    (corpora / "mine.yaml").write_text(dump(EXAMPLE), encoding="utf-8")
    (corpora / "staged.yaml").write_text(dump(merge(EXAMPLE, FURTHER[0])), encoding="utf-8")
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        program, verb, path, *words = shlex.split(command)
        assert (program, verb) == ("transduct", "train")
        profile = words.pop(words.index("--profile") + 1) if "--profile" in words else None
        overrides = [word for word in words if word != "--profile"]
        assert all("=" in override for override in overrides)
        for stage in stages_of(load_recipe(corpora / path, overrides, profile)):
            task_class(stage.task)(stage, corpora / "run", print)
