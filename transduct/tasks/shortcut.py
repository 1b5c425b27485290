"""A recipe for two aligned text files or tables of pairs, from the amount of text and, to go on
with a model, from that model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transduct.data.files import Refused, require_file
from transduct.data.sources import TextSource
from transduct.data.text import read_pairs
from transduct.data.tokenizer import TOKENIZER
from transduct.devices import fast_precision, pick_device
from transduct.errors import require
from transduct.predictors.base import Notify, configuration, from_home, inside
from transduct.predictors.translation import DERIVED
from transduct.records import record
from transduct.storage import CONFIG

# (size, steps, dropout, subwords) for at most this many pairs; None for any number.
SHORTCUT_SIZES: list[tuple[int | None, tuple[str, int, float, int]]] = [
    (5_000, ("tiny", 2_000, 0.3, 2_000)),
    (100_000, ("tiny", 8_000, 0.2, 8_000)),
    (1_000_000, ("small", 30_000, 0.1, 16_000)),
    (None, ("base", 100_000, 0.1, 32_000)),
]


def file_recipe(
    files: Mapping[str, Any], notify: Notify, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """A recipe for two aligned files, lists of files, or tables (`pairs`, `columns`).

    Args:
        asked: sections of the recipe as the command line overrides them. The other values follow
            from the family, the size, the steps, the device and the model to start from that it
            asks for.
    """
    source, target = files.get("source"), files.get("target")
    valid_source, valid_target = files.get("valid_source"), files.get("valid_target")
    pairs_in, whole = files.get("pairs"), bool(source and target) and not files.get("pairs")
    require(
        (pairs_in or whole) and bool(valid_source) == bool(valid_target),
        "files come in pairs; give --source with --target, and --valid-source with --valid-target",
    )
    corpus = {"source": source, "target": target}
    if pairs_in:
        named = {"columns": files["columns"]} if files.get("columns") else {}
        corpus = {"pairs": pairs_in, **named}
    train = record(TextSource, corpus, "", "the files")
    for name in train.files():
        require_file(Path(name))
    data = asked.get("data", {})
    refused = Refused("skip" if data.get("broken") == "skip" else "stop")
    pairs = sum(len(chunk) for chunk in read_pairs(train, Path(), (), refused))
    validated, held_out = bool(valid_source or data.get("valid")), data.get("held_out")
    if not isinstance(held_out, int):
        held_out = 0 if validated else min(1000, pairs // 10)
    start = from_home(asked.get("model", {}).get("start_from"))
    begun = _translation_model(inside(start)) if isinstance(start, str) else None
    require(
        begun is None or asked["model"].get("size") is None,
        "model.size is for a new model; leave it or model.start_from out",
    )
    recipe, chosen = (
        _new(pairs, asked) if begun is None else _further(pairs, asked, inside(start), begun)
    )
    training = recipe["training"]
    asked_training = asked.get("training", {})
    precision = fast_precision(pick_device(str(asked_training.get("device", "auto"))))
    notify(
        f"{pairs:,} pairs; defaults for that many: {chosen}, {training['steps']:,} steps, "
        f"{asked_training.get('precision', precision)}; {held_out:,} pairs held out"
    )
    training |= {
        "precision": precision,
        "warmup": max(1, training["steps"] // 10),
        "validate_every": max(1, training["steps"] // 10),
        "checkpoint_every": max(1, training["steps"] // 20),
        "average": 5,
    }
    # after many passes over little text the last checkpoint is rarely the best
    if held_out or validated:
        training["best"] = "chrf"
    recipe["data"] |= {"train": [corpus], "held_out": held_out}
    if valid_source:
        recipe["data"]["valid"] = {"source": valid_source, "target": valid_target}
    return {"task": "translation", **recipe}


def _new(pairs: int, asked: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    section = asked.get("model", {})
    size, steps, dropout, vocabulary = _by_amount(pairs)
    model = {"family": section.get("family", "transformer"), "size": size, "dropout": dropout}
    # has a dropout and rate of its own
    if isinstance(asked_size := section.get("size"), str) and asked_size != size:
        size = asked_size
        dropouts = {name: {"dropout": value} for _, (name, _, value, _) in SHORTCUT_SIZES}
        model = {"family": model["family"], "size": size, **dropouts.get(size, {})}
    if model["family"] == "transformer":
        model["positions"] = "rotary"
    sections: dict[str, Any] = {
        "data": {},
        "tokenizer": {"kind": "bpe", "size": vocabulary, "shared": True},
        "model": model,
        "training": {
            "steps": _steps(asked, steps),
            "learning_rate": 0.002 if size == "tiny" else 0.0007,
        },
    }
    return sections, f"model size {size}, {vocabulary:,} subwords"


def _further(
    pairs: int, asked: Mapping[str, Any], start: Path, config: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The sections to train a translation model further, and a description: a fifth of the steps
    that a new model of as much text would take, at a small rate."""
    model = config["model"]
    data = {
        name: config[name]
        for name in ("replace", "backwards", "metrics", "bleu_tokenize")
        if name in config
    }
    if "max_length" in model:
        data["max_length"] = model["max_length"]
    sections = {
        "data": data,
        "tokenizer": {"shared": (start / TOKENIZER).exists()},
        "model": {
            "family": config.get("family", "transformer"),
            **{name: value for name, value in model.items() if name not in DERIVED},
        },
        "training": {"steps": _steps(asked, _by_amount(pairs)[1] // 5), "learning_rate": 0.0001},
        "decoding": {**config.get("decoding", {}), "shortlist": False, "expansion": 0.0},
    }
    return sections, f"the model and the vocabulary of {start}"


def _translation_model(start: Path) -> dict[str, Any] | None:
    """The configuration of the translation model in a directory; None if there is none, which is
    refused later."""
    if not (start / CONFIG).exists():
        return None
    config = configuration(start)
    return (
        config
        if config["task"] == "translation" and isinstance(config.get("model"), dict)
        else None
    )


def _by_amount(pairs: int) -> tuple[str, int, float, int]:
    return next(choice for most, choice in SHORTCUT_SIZES if most is None or pairs <= most)


def _steps(asked: Mapping[str, Any], usual: int) -> int:
    steps = asked.get("training", {}).get("steps")
    return steps if isinstance(steps, int) else usual
