"""The GPU's training benchmark: its work, its arithmetic, and its miniature on a CPU."""

import json
import math
import sys

import gpu_training as script
import pytest
from gpu_training import MINIATURE, WORKS, Work, arithmetic, batches_of, sides_of, table

from transduct.models.transformer import Config, Transformer
from transduct_bench.rows import NEWS


def test_batches_are_full_and_of_neighbouring_lengths():
    work = Work("news", "base", 500, NEWS, 2_000, 5)
    batches = batches_of(work)
    assert len(batches) == 5
    for sources, targets in batches:
        assert 1_800 < sum(len(target) + 1 for target in targets) <= 2_000
        assert sum(len(source) + 1 for source in sources) <= 2_000
        assert max(map(len, targets)) <= 1.6 * min(map(len, targets)) + 2


def test_the_arithmetic_is_six_operations_a_weight_and_what_attention_adds():
    [work] = MINIATURE
    model = Transformer(Config(work.vocabulary, work.vocabulary, **script.SIZES[work.size]))
    matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    short = [([[5] * 9] * 3, [[5] * 9] * 3)]  # as many source tokens as target tokens
    assert 6 * matrices < arithmetic(work, short) < 1.1 * 6 * matrices


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_every_side_is_given_the_same(work):
    sides = sides_of(work, [], "cuda", True)
    labels = {side.label for side in sides}
    assert {
        "ours, captured",
        "ours, compiled and captured",
        "Hugging Face Marian, compiled",
    } <= labels
    assert all(side.arguments["precision"] == "bfloat16" for side in sides)
    assert len(sides) == {"base": 7, "big": 5, "tiny": 5}[work.size]
    small = [side.label for side in sides_of(work, [], "cuda", True, memory=80 * 2**30)]
    assert len(small) == {"base": 3, "big": 2, "tiny": 5}[work.size]


def test_a_table_says_how_many_times_the_best_peer():
    row = {
        "model": "base",
        "side": "ours",
        "tokens_per_second": 700_000,
        "ratio": 2.154,
        "mfu": 0.331,
    }
    row |= {"milliseconds": 36.61, "memory_gib": 5.5}
    found = table([row, row | {"ratio": None}]).splitlines()
    assert found[2] == "| base | ours | 700,000 | 2.15 | 33.1 % | 36.6 | 5.50 |"
    assert found[3] == "| base | ours | 700,000 | - | 33.1 % | 36.6 | 5.50 |"


@pytest.mark.slow
def test_the_miniature_measures_every_side_and_writes_it_down(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys, "argv", ["gpu_training.py", "--out", str(tmp_path), "--miniature"])
    script.main()
    found = json.loads((tmp_path / "training.json").read_text())
    assert [row["side"] for row in found["rows"]] == [
        "ours, plain", "ours, captured", "Hugging Face Marian",
    ]  # fmt: skip
    assert min(row["tokens_per_second"] for row in found["rows"]) > 0
    assert (tmp_path / "training.md").read_text() in capsys.readouterr().out
    assert found["about"]["device"] == "cpu"
    assert found["about"]["command"].startswith("python gpu_training.py --out ")
    assert found["left_out"] == []


def test_a_side_that_fails_leaves_the_others_measured(monkeypatch):
    [work], left_out = MINIATURE, []

    def measured(sides, rounds, together, failed, patience):
        failed |= {
            side.label: "not installed" for side in sides if not side.label.startswith("ours")
        }
        return [math.nan if side.label in failed else 100.0 for side in sides], [1.0] * len(sides)

    monkeypatch.setattr(script, "measured", measured)
    rows = script.rows_of(work, "cpu", 1, False, left_out)
    assert {row["side"] for row in rows} == {"ours, plain", "ours, captured"}
    assert {(row["tokens_per_second"], row["ratio"]) for row in rows} == {(100, None)}
    assert left_out == [f"{work.name}, Hugging Face Marian (not installed)"]


def test_what_is_not_measured_is_written_down(tmp_path, monkeypatch):
    def rows_of(work, device, rounds, compilers, left_out, patience):
        if work.size == "big":
            left_out.append("big, ours (out of memory)")
        return []

    monkeypatch.setattr(script, "rows_of", rows_of)
    monkeypatch.setattr(script, "device_name", str)
    monkeypatch.setattr(script, "write_kernels", str)
    monkeypatch.setattr(sys, "argv", ["gpu_training.py", "--out", str(tmp_path)])
    script.main()
    assert json.loads((tmp_path / "training.json").read_text())["left_out"] == [
        "big, ours (out of memory)"
    ]
    assert "| big, ours (out of memory) | not measured |" in (tmp_path / "training.md").read_text()
    monkeypatch.setattr(sys, "argv", ["gpu_training.py", "--out", str(tmp_path), "--minutes", "0"])
    script.main()
    assert json.loads((tmp_path / "training.json").read_text())["left_out"] == [
        work.name for work in WORKS
    ]


def test_parts_of_a_layer_are_timed_by_both_ways():
    seen = []

    def clock(passes):
        seen.append([tuple(gradient.shape) for gradient in passes()])
        return 0.25

    lines = script.kernels("cpu", 5, clock).splitlines()
    assert lines[2:] == [
        f"| {name} | 0.250 | 0.250 |"
        for name in ("dropout, residual, norm", "feed-forward network", "lookup")
    ]
    assert seen[::2] == seen[1::2]
    assert seen[0] == [(5, 512), (5, 512), (512,), (512,)]
