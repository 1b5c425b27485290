"""The command describe, from the words of the user to files and exit status."""

import json

from tests.interfaces import test_cli

program = test_cli.program  # a fixture


def test_a_model_is_described_and_drawn(program, trained_run, tmp_path):
    done = program("describe", trained_run, "--out", tmp_path / "model.svg")
    assert done.code == 0
    assert "task: translation\nfamily: transformer\n" in done.out.decode()
    assert "encoder.*.self_attention.query" in done.out.decode()
    assert "encoder 1<" in (tmp_path / "model.svg").read_text()
    found = json.loads(program("describe", trained_run, "--json").out)
    assert found["about"]["d_model"] == 32
    total = sum(part["parameters"] for part in found["parts"])
    assert f"{total:,}" in done.out.decode()


def test_an_ensemble_is_told_from_a_model(program, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"format": 1, "task": "translation", "family": "ensemble"}'
    )
    done = program("describe", tmp_path)
    assert done.code == 2
    assert "holds no model.safetensors, as an ensemble does" in done.err
