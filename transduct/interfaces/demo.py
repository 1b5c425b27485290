"""`transduct demo`: train the built-in example and show it work."""

import sys
from pathlib import Path

from transduct.config import load_recipe
from transduct.drawing.plots import heatmap, save, terminal
from transduct.errors import TrainingFailed
from transduct.interfaces.progress import Watcher
from transduct.predictors.base import load
from transduct.runs.evaluate import evaluate
from transduct.runs.train import train

RECIPE = Path(__file__).with_name("demo.yaml")
SHOWN = (
    "three hundred twenty-one thousand and five",
    "nineteen thousand and eighty-four",
    "ten thousand",
    "two hundred million and one",
    "nine hundred eighty-seven million six hundred fifty-four thousand three hundred twenty-one",
)


def run(directory: Path) -> None:
    """Train in `directory` unless the run is finished; then translate, draw an alignment and score
    unseen numbers."""
    recipe = load_recipe(RECIPE)
    with Watcher() as watcher:
        watcher.notify("Learning to turn English number names into Korean ones ...")
        try:
            model = train(recipe, directory, resume=True, notify=watcher.notify, report=watcher)
        except TrainingFailed as error:
            error.resume = "the same command"
            raise
    translator = load(model)
    print("\nTranslations:")
    for text, translation in zip(SHOWN, translator.translate(SHOWN), strict=True):
        print(f"  {text}\n    -> {translation.text}")
    rows, columns, weights = translator.attention(SHOWN[0]).alignment()
    picture = directory / "alignment.svg"
    save(
        heatmap(weights, rows, columns, "where the decoder looks (rows) in the source (columns)"),
        picture,
    )
    print(f"\nWhere the decoder looked for each Korean token ({picture}):\n")
    print(terminal(weights, rows, columns))
    print(f"""
Next (where the program is not found, first type: . .venv/bin/activate):
  try it on numbers of your own:
    transduct translate {model}
  see every head of every layer:
    echo "seventy-seven" | transduct translate {model} --attention heads.svg
  the scores on the unseen numbers:
    transduct evaluate {model} --json
  train on your own files:
    transduct train --source train.de --target train.en --out runs/de-en
""")
    report = evaluate(model)
    sys.stdout.flush()
    print(f"exact match: {report.scores['exact_match']:.1f} %")
