"""The command describe, from the words of the user to files and exit status."""

import json

from tests.interfaces import test_cli
from transduct.devices import processor
from transduct.interfaces import describe
from transduct.kernels import cpu

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


def test_an_ensemble_is_recognised(program, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"format": 1, "task": "translation", "family": "ensemble"}'
    )
    done = program("describe", tmp_path)
    assert done.code == 2
    assert "holds no model.safetensors, as an ensemble does" in done.err


def test_without_a_model_the_machine_and_its_kernels_are_described(program, monkeypatch):
    found = json.loads(program("describe", "--json").out)
    assert found["about"]["processor"] == processor()
    assert found["kernels"] == [json.loads(json.dumps(k._asdict())) for k in cpu.report()]
    lines = program("describe").out.decode()
    assert f"processor: {processor()}\n" in lines
    for kernel in cpu.report():
        assert f"{kernel.name}: {kernel.used or 'by PyTorch'}\n" in lines
    lacking = cpu.Kernel("int8 products", None, [], "this processor has no avx2")
    monkeypatch.setattr(describe, "report", lambda: [lacking])
    expected = "int8 products: by PyTorch\n    available: none\n    this processor has no avx2\n"
    assert program("describe").out.decode().endswith(expected)


def test_a_machine_is_not_drawn(program, tmp_path):
    test_cli.assert_refused(
        program("describe", "--out", tmp_path / "a.svg"), "--out draws a model; name one"
    )
