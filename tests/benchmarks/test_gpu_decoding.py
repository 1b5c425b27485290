"""The benchmark of decoding on a GPU runs in miniature on a CPU: every contender does exactly the
work asked for."""

import json
import sys

import gpu_decoding
import pytest

from transduct.errors import TransductError


def ran(monkeypatch, tmp_path, *words):
    monkeypatch.setattr(
        sys, "argv", ["gpu_decoding.py", "--out", str(tmp_path), "--miniature", *words]
    )
    gpu_decoding.main()
    return tmp_path


@pytest.mark.slow
def test_the_miniature_measures_every_contender(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    out = ran(monkeypatch, tmp_path)
    found = json.loads((out / "gpu_decoding.json").read_text())
    assert [(row["beam"], row["sentences"]) for row in found["rows"]] == [(1, 1), (1, 5), (3, 2)]
    for row in found["rows"]:
        assert min(row[name] for name in gpu_decoding.CONTENDERS) > 0
        assert row["ratio"] == pytest.approx(row["captured"] / row["transformers"], abs=0.01)
    assert found["not_measured"] == []
    for row in found["text"]:
        assert row["failed"] == {}
        assert set(row["same"].values()) == {row["sentences"]}, "the same weights say the same"
    text = (out / "gpu_decoding.md").read_text()
    assert "| greedy, batch 5 |" in text
    assert "| beam 3, batch 2 |" in text
    assert "not measured" not in text


def test_what_cannot_be_measured_is_named(monkeypatch, tmp_path):
    def absent(*given, **named):
        raise TransductError("transformers is not installed")

    monkeypatch.setattr(gpu_decoding, "transformers_decoding", absent)
    out = ran(monkeypatch, tmp_path, "--only", "beam", "--rounds", "1")
    [row] = json.loads((out / "gpu_decoding.json").read_text())["rows"]
    assert (row["beam"], row["ratio"]) == (3, None)
    assert "transformers" not in row
    assert "| not measured | not measured |" in (out / "gpu_decoding.md").read_text()
    assert "gpu_decoding.json" not in [
        path.name for path in ran(monkeypatch, tmp_path / "late", "--seconds", "-1").iterdir()
    ]


@pytest.mark.parametrize("turns", [0, 3])
def test_one_that_fails_leaves_the_others_measured(monkeypatch, tmp_path, turns):
    """Before its first turn or later: a GPU has many ways to fail."""
    decoding = gpu_decoding.decoding

    def failing(*given, captured, **named):
        run, left = decoding(*given, captured=captured, **named), [turns if captured else 99]

        def fails():
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("CUDA error: out of memory\nsee the log")
            return run()

        return fails

    monkeypatch.setattr(gpu_decoding, "decoding", failing)
    monkeypatch.setattr(gpu_decoding, "transformers_decoding", lambda *_, **__: lambda: 8)
    out = ran(monkeypatch, tmp_path, "--only", "beam", "--rounds", "2")
    [row] = json.loads((out / "gpu_decoding.json").read_text())["rows"]
    assert row["search"] > 0
    assert row["transformers"] > 0
    assert (row["ratio"], row["milliseconds_a_step"]) == (None, None)
    assert row["failed"] == {"captured": "RuntimeError: CUDA error: out of memory"}
    assert (
        "Failed: captured, beam 3, batch 2: RuntimeError" in (out / "gpu_decoding.md").read_text()
    )


def test_the_kernels_of_a_captured_search_are_listed(monkeypatch, tmp_path):
    out = ran(monkeypatch, tmp_path, "--profile", "--only", "beam")
    assert "aten::index_copy_" in (out / "profile_beam3_batch2.txt").read_text()
