"""Miniature recipes over generated text, for tests that train."""

from typing import Any

from transduct.config import Recipe, merge


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
