"""The benchmark: what is measured, of whom, with which calls. Those from end to end start
processes: few of them."""

import json
import platform
import re
import sys
from dataclasses import replace

import pytest

import transduct
from tests.forked import apart
from tests.refusals import refusal
from transduct import devices
from transduct.kernels import cpu
from transduct_bench import ours, rows, timing
from transduct_bench.rows import CAPTIONS, LONGER, NEWS, Sizes, about, decoding_rows, drawn

TINY = Sizes("tiny", 300, 24, 1, "cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "SHORTEST", 0.02)


def measured(what, against, only, given=None, sizes=TINY, rounds=1):
    return list(rows.run(what, against, sizes, rounds, only, given))


def assert_row(row, name):
    assert row["name"] == name
    assert row["ours"] > 0.0
    assert row["peer"] > 0.0
    assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
    assert row["memory_mb"] > 100
    assert row["processor"] == about()["machine"]
    assert row["kernels"] == {kernel.name: kernel.used for kernel in cpu.report()}
    assert row["peer_memory_mb"] > 20


# from end to end


def test_decoding_beside_ctranslate2(capsys):
    pytest.importorskip("ctranslate2")
    [row] = measured("decode", "ctranslate2", "greedy, int8, captions")
    assert_row(row, "greedy, int8, captions, batches of 128")
    assert row["peer_setting"] == "1 workers, 1 threads"
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        "measuring: greedy, int8, captions, batches of 128\n",
    )


@pytest.mark.parametrize("what", ["decode", "train"])
def test_bfloat16_is_left_out_where_the_processor_has_no_instruction_for_it(
    monkeypatch, capsys, what
):
    monkeypatch.setattr(devices, "has_bfloat16", lambda device: False)
    assert measured(what, None, "bfloat16") == []
    errors = capsys.readouterr().err
    assert re.fullmatch(
        "left out: .*bfloat16.*: this processor has no instruction for bfloat16\n", errors
    )


@pytest.mark.slow
def test_training_beside_torch():
    [row] = measured("train", "torch", "float32", sizes=replace(TINY, device="auto"))
    assert_row(row, "training, tiny, float32, batches of 4096 tokens")
    assert row["peer_setting"] == "torch"


@pytest.mark.slow
def test_the_program_writes_json():
    pytest.importorskip("transformers")
    words = (
        "bench decode --against transformers --size tiny --vocabulary 300 --sentences 24 "
        "--rounds 1 --threads 1 --json --only"
    )
    with apart(*words.split(), "float32, captions") as process:
        code, out, error = process.ended()
    assert code == 0, error
    found = json.loads(out)
    [row] = found["rows"]
    assert_row(row, "greedy, float32, captions, batches of 128")
    assert found["about"]["transduct"] == transduct.__version__


# calls


@pytest.mark.parametrize(
    "what, against, changes, only, message",
    [
        ("sing", None, {}, "", "unknown benchmark 'sing'; known are: decode, train"),
        ("decode", "torch", {}, "", "no 'torch' to decode against; known are: ctranslate2, tra"),
        ("train", "ctranslate2", {}, "", "no 'ctranslate2' to train against; known are: transf"),
        ("train", None, {}, "float64", "nothing is called 'float64'; there are: training, tiny"),
        ("train", None, {"size": "huge"}, "", "unknown size 'huge'; known are: tiny, small, ba"),
        ("train", None, {"vocabulary": 3}, "", "vocabulary is 3, must be from 4 to 16777216"),
        ("decode", None, {"vocabulary": 1 << 60}, "", f"vocabulary is {1 << 60}, must be from 4"),
        ("train", None, {"sentences": 0}, "", "sentences is 0, must be from 1 to 16777216"),
        ("decode", None, {"device": "gpu"}, "", "unknown device 'gpu'; known are: auto, cpu"),
        ("decode", None, {"threads": -1}, "", "threads is -1, must be from 1 to 16777216"),
    ],
)
def test_impossible_calls_are_refused(what, against, changes, only, message):
    with refusal(re.escape(message)):
        measured(what, against, only, sizes=replace(TINY, **changes))


def test_no_rounds_are_refused():
    with refusal("rounds is 0, must be from 1 to 16777216"):
        measured("decode", None, "", rounds=0)


@pytest.mark.parametrize(
    "words, said",
    [
        ("decode --model m", "--model and --text belong together; give both or neither"),
        ("decode --text t", "--model and --text belong together; give both or neither"),
        ("train --model m --text t", "--model and --text are for decoding; leave them out"),
        ("decode --model m --text t --size tiny", "--size and --vocabulary describe random wei"),
        ("decode --model m --text t --vocabulary 9", "--size and --vocabulary describe random"),
    ],
)
def test_a_model_and_a_text_are_for_decoding_alone(words, said, monkeypatch, capsys):
    from transduct.interfaces import cli

    monkeypatch.setattr(sys, "argv", ["transduct", "bench", *words.split()])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"transduct: {said}")


def test_a_peer_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with refusal(re.escape("ctranslate2 is not installed; run: pip install 'transduct[ct")):
        measured("decode", "ctranslate2", "")


# what is measured


@pytest.mark.parametrize(
    "against, device, rows",
    [
        (None, "cpu", 7),
        ("ctranslate2", "cpu", 6),  # which has no bfloat16 on a CPU
        ("ctranslate2", "cuda:1", 4),  # each also captured
        ("transformers", "cpu", 2),  # which has no int8
        ("transformers", "cuda", 4),  # each also captured
        (None, "cuda:1", 4),
    ],
)
def test_rows_are_those_that_both_sides_can_do(tmp_path, against, device, rows):
    if against == "ctranslate2":
        pytest.importorskip("ctranslate2")
    found = decoding_rows(Sizes("tiny", 300, 24, 2, device), against, tmp_path, None)
    assert len(found) == len({row.name for row in found}) == rows
    for row in found:
        assert bool(row.peers) == (against is not None)
        assert ("int8" in row.name) == row.ours.arguments["model"].endswith("int8")
        for peer in row.peers:
            shared = peer.arguments.keys() & row.ours.arguments.keys() - {"model"}
            assert {"sources", "lengths", "beam", "precision", "device"} <= shared
            # it shares them out
            same = shared - {"threads"} if against == "ctranslate2" else shared | {"threads"}
            assert all(peer.arguments[name] == row.ours.arguments[name] for name in same)
        assert row.ours.arguments["threads"] == 2
        assert row.ours.function is ours.decoding


def test_ctranslate2_shares_its_threads_out_in_every_way(tmp_path):
    pytest.importorskip("ctranslate2")
    rows = decoding_rows(Sizes("tiny", 300, 24, 4, "cpu"), "ctranslate2", tmp_path, None)
    many, one = (
        [(peer.arguments["workers"], peer.arguments["threads"]) for peer in row.peers]
        for row in rows[::5]
    )
    assert many == [(1, 4), (4, 1)]
    assert one == [(1, 4), (4, 1), (1, 1)]


def test_a_model_and_a_text_take_the_place_of_drawn_ones(trained_run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c d\n\na b\nb c d\n")
    rows = decoding_rows(TINY, None, tmp_path / "models", (str(trained_run), text))
    assert rows[0].name == "greedy, int8, a text, batches of 128"
    assert not [row for row in rows if "captions" in row.name or "news" in row.name]
    assert {row.ours.arguments["lengths"] for row in rows} == {None}
    counts = [len(row.ours.arguments["sources"]) for row in rows]
    assert counts == [1 if "one sentence" in row.name else 3 for row in rows]
    sizes = [len(ids) for ids in rows[0].ours.arguments["sources"]]
    assert sizes == sorted(sizes)


def test_transformers_does_not_take_our_models(trained_run, tmp_path):
    with refusal("transformers does not take our models; compare with ctranslate2, or"):
        measured("decode", "transformers", "", (str(trained_run), tmp_path / "text.txt"))


def test_training_is_of_batches_of_one_size_on_both_sides():
    made = rows.training_rows(Sizes("tiny", 300, 3000, 1, "cpu"), "torch")
    assert [row.name.split(", ")[2] for row in made] == ["float32", "bfloat16"]
    [batches] = {
        id(side.arguments["batches"]): side.arguments["batches"]
        for row in made
        for side in (row.ours, *row.peers)
    }.values()
    assert len(batches) == 3
    for sources, targets in batches:
        assert len(sources) == len(targets)
        tokens, padded = (
            f([len(target) + 1 for target in targets]) for f in (sum, lambda x: max(x) * len(x))
        )
        assert 0.9 * 4096 < tokens <= 4096
        assert padded < 1.1 * tokens, "a side that pads is given sentences of like length"
    assert all(
        row.ours.arguments["threads"] == row.peers[0].arguments["threads"] == 1 for row in made
    )
    assert [row.peers for row in rows.training_rows(TINY, None)] == [[], []]
    on_gpu = rows.training_rows(Sizes("tiny", 300, 300, 1, "cuda"), None)
    assert [row.name.split(", ")[4:] for row in on_gpu] == [[], ["captured"], ["compiled"]] * 2
    assert [row.ours.arguments.get("compiled", False) for row in on_gpu] == [False, False, True] * 2


@pytest.mark.parametrize("kind", [CAPTIONS, NEWS], ids=["captions", "news"])
def test_drawn_sentences_are_sorted_and_alike_in_a_batch(kind):
    sources, lengths = drawn(kind, 100, 300, 32)
    sizes = [len(source) for source in sources]
    assert sizes == sorted(sizes)
    assert kind[2] <= sizes[0] < sizes[-1] <= kind[3]
    assert {token for source in sources for token in source} <= set(range(3, 300))
    for start in range(0, 100, 32):
        [length] = set(lengths[start : start + 32])
        mean = sum(sizes[start : start + 32]) / len(sizes[start : start + 32])
        assert length == round(LONGER * mean) + 1
    assert drawn(kind, 100, 300, 32) == (sources, lengths), "the same for whoever asks"


def test_one_sentence_is_the_median_one():
    [source], [length] = drawn(CAPTIONS, 1, 300, 1)
    assert len(source) == 14
    assert length == 17


# the machine


def test_the_machine_and_the_versions_are_told():
    found = about()
    assert {"machine", "cores", "python", "transduct", "torch"} <= found.keys()
    assert found["python"] == platform.python_version()
    assert json.dumps(found)


def test_what_is_not_installed_has_no_version(monkeypatch):
    def version(package):
        if package == "ctranslate2":
            raise rows.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(rows, "version", version)
    found = about()
    assert found["torch"] == "1.0"
    assert "ctranslate2" not in found
