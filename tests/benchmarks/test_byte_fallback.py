"""Runs without the bytes and with them are compared, seed by seed."""

import gzip
import re

from benchmarks import byte_fallback
from transduct.config import load_recipe
from transduct.data.samples import generate
from transduct.data.tokenizer import Tokenizer


def test_runs_are_compared_and_differ_in_nothing_but_the_bytes(tmp_path, capsys):
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for name, part, count in (("train", "train", 40), ("test_2016_flickr", "test", 4)):
        for side, texts in zip(("en", "de"), zip(*generate("number_names", count, part))):
            (folder / f"{name}.{side}.gz").write_bytes(gzip.compress("\n".join(texts).encode()))
    told = [str(tmp_path / "data"), "training.steps=1", "--out", str(tmp_path / "runs")]
    byte_fallback.main([*told, "--recipes", "multi30k_en_de", "--seeds", "1,2", "--miniature"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4 + 2
    assert re.fullmatch(r"multi30k_en_de\.without\.1 +chrf [\d.]+  bleu [\d.]+", rows[0])
    assert re.search(r"chrf: without and with .* difference [+-][\d.]+ \[[+-].*\]$", rows[4])
    for name, holds in (("without", False), ("with", True)):
        path = tmp_path / "runs" / f"multi30k_en_de.{name}.2" / "model" / "tokenizer.json"
        assert bool(Tokenizer.load(path).bytes) == holds
    larger = ["--recipes", "multi30k_en_de", "--seeds", "2", "--miniature", "--more", "60"]
    byte_fallback.main([*told, *larger])
    begun = load_recipe(tmp_path / "runs" / "multi30k_en_de.with+60.2" / "recipe.yaml")
    assert begun.tokenizer["size"] == 460


def test_the_interval_is_students():
    said = byte_fallback.compared([10.0, 11.0, 12.0], [10.5, 11.0, 13.0])
    assert said == " 11.00  11.50  difference +0.50 [-0.74, +1.74]"
    assert byte_fallback.compared([1.0], [3.0]).endswith("difference +2.00")
