"""Miniature recipes over generated text, for tests that train."""

import random
from pathlib import Path
from typing import Any

from transduct.config import Recipe, merge
from transduct.runs.train import train

LETTERS = "abcdefghijklmnop"


def tiny_recipe(**sections: dict[str, Any]) -> Recipe:
    """A translation recipe that trains in a second or two; `sections` are laid over it."""
    tree = {
        "task": "translation",
        "data": {
            "train": [{"generate": "reverse", "count": 120}],
            "valid": {"generate": "reverse", "part": "valid", "count": 8},
            "test": {"generate": "reverse", "part": "test", "count": 8},
            "max_length": 40,
            "workers": 0,
        },
        "tokenizer": {"kind": "bpe", "size": 60},
        "model": {
            "d_model": 16,
            "num_heads": 2,
            "d_ff": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.1,
        },
        "training": {
            "steps": 14,
            "batch_tokens": 200,
            "warmup": 4,
            "learning_rate": 0.01,
            "log_every": 1,
            "validate_every": 7,
            "checkpoint_every": 3,
            "average": 2,
        },
        "decoding": {"beam": 2},
    }
    return Recipe(
        **{
            key: merge(tree[key], sections.get(key, {}))
            if isinstance(tree[key], dict)
            else tree[key]
            for key in tree
        }
    )


def letters(count: int, seed: int = 0) -> list[str]:
    """Sentences of letters, none of them twice in one."""
    random_ = random.Random(seed)
    return [" ".join(random_.sample(LETTERS, random_.randint(3, 7))) for _ in range(count)]


def train_capitals(folder: Path, source: str = "small", target: str = "large") -> Path:
    """A run of a model that has learned to write letters as capitals, or the other way round, so
    that no word is in both texts."""
    for name, lines in (("train", letters(600)), ("valid", letters(8, 1))):
        (folder / f"{name}.small").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.large").write_text("\n".join(lines).upper() + "\n")
    recipe = tiny_recipe(
        tokenizer={"kind": "word"},
        model={"d_model": 32, "dropout": 0.0},
        training={"steps": 200, "batch_tokens": 400},
    )
    sides = {"source": source, "target": target}
    files = {side: [str(folder / f"train.{name}")] for side, name in sides.items()}
    tried = {side: str(folder / f"valid.{name}") for side, name in sides.items()}
    recipe.data.update({"train": [files], "valid": tried, "test": tried})
    train(recipe, folder / f"run_{source}", notify=str)
    return folder / f"run_{source}"
