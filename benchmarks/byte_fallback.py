"""What a vocabulary that holds the 256 bytes costs or gains: the same recipes without them and with
them, with several seeds.

    python benchmarks/byte_fallback.py DATA --out DIR [--recipes multi30k_en_de,tatoeba_en_ko]
    [--seeds 1,2,3] [--profile cpu] [--more 256] [--miniature] [a.b=c ..]

DATA holds a folder for each recipe's corpus, such as DATA/multi30k. Prints chrF and BLEU of each
run on the recipe's test set, then the mean of each score without and with the bytes, and the
difference of runs of one seed with its 95 % interval (Student's t). With --more, vocabularies with
bytes are larger by so many tokens. Killed runs go on where they were. --miniature is for tests: all
is small.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from transduct.config import load_recipe, merge, parse_override
from transduct.data import vocabulary
from transduct.runs.evaluate import evaluate
from transduct.runs.train import train

RECIPES = Path(__file__).parents[1] / "recipes"
FOLDERS = {"multi30k_en_de": "multi30k", "tatoeba_en_ko": "tatoeba_en_ko"}
SCORES = ("chrf", "bleu")
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 %, by freedom
MINIATURE: dict[str, Any] = {
    "data": {"valid": None},
    "tokenizer": {"size": 400},
    "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 16},
    "training": {
        "steps": 2,
        "validate_every": 0,
        "checkpoint_every": 2,
        "average": 1,
        "best": None,
    },
    "decoding": {"beam": 1},
}


@contextmanager
def vocabularies(with_bytes: bool) -> Iterator[None]:
    """Vocabularies that are learnt within this hold the bytes if their size allows, or never."""
    log, least = logging.getLogger("transduct"), vocabulary.COVERING
    level = log.level
    if not with_bytes:
        vocabulary.COVERING = sys.maxsize
        log.setLevel(logging.ERROR)  # it would warn of what is asked for
    try:
        yield
    finally:
        vocabulary.COVERING = least
        log.setLevel(level)


def compared(without: Sequence[float], with_bytes: Sequence[float]) -> str:
    """The means of both, and their difference with its interval where there are several pairs."""
    gains = [after - before for before, after in zip(without, with_bytes, strict=True)]
    said = f"{fmean(without):6.2f} {fmean(with_bytes):6.2f}  difference {fmean(gains):+.2f}"
    if len(gains) < 2:
        return said
    around = STUDENT[len(gains) - 2] * stdev(gains) / len(gains) ** 0.5
    return f"{said} [{fmean(gains) - around:+.2f}, {fmean(gains) + around:+.2f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate all runs, and print their scores and how they compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("overrides", nargs="*", help="for every run, such as training.steps=500")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default=",".join(FOLDERS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--more", type=int, default=0)
    parser.add_argument("--miniature", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    asked: dict[str, Any] = MINIATURE if given.miniature else {}
    for word in given.overrides:
        asked = merge(asked, parse_override(word))
    for name in given.recipes.split(","):
        recipe = load_recipe(RECIPES / f"{name}.yaml", profile=given.profile)
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for seed in map(int, given.seeds.split(",")):
            root = {"data": {"root": str(given.data / FOLDERS[name])}, "training": {"seed": seed}}
            own = merge(asked, root)
            parts = {part: merge(getattr(recipe, part), changes) for part, changes in own.items()}
            for with_bytes, scores in found.items():
                kind = f"with+{given.more}" if given.more else "with"
                run = given.out / f"{name}.{kind if with_bytes else 'without'}.{seed}"
                sized = dict(parts.get("tokenizer", recipe.tokenizer))
                sized["size"] += given.more * with_bytes
                with vocabularies(with_bytes):
                    made = replace(recipe, **{**parts, "tokenizer": sized})
                    train(made, run, resume=True, notify=str)
                scores.append(evaluate(run).scores)
                shown = "  ".join(f"{score} {scores[-1][score]:.2f}" for score in SCORES)
                print(f"{run.name:32} {shown}", flush=True)
        for score in SCORES:
            both = ([each[score] for each in scores] for scores in found.values())
            print(f"{name}, {score}: without and with {compared(*both)}", flush=True)


if __name__ == "__main__":
    main()
