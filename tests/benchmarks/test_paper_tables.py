import json
import re
import shutil
from pathlib import Path

import paper_tables as tables
import pytest
import torch
import yaml
from paper_tables import main, markdown
from torch.utils.flop_counter import FlopCounterMode

from tests.helpers import SIZE, tiny, tokens_of
from tests.recipes import tiny_recipe
from tests.refusals import refusal
from transduct.data.samples import generate
from transduct.errors import TrainingFailed
from transduct.kernels import cpu
from transduct.runs.train import train
from transduct.storage import WEIGHTS, read_tensors
from transduct.training.log import ignore

PAGE = (Path(__file__).parents[2] / "docs" / "paper_tables.md").read_text(encoding="utf-8")


def rows_of(out):
    """The cells of each table in `table.md`, without heads."""
    found, before = [], ""
    for line in (out / "table.md").read_text().splitlines():
        if line.startswith("| ---"):
            found.append([])
        elif line.startswith("|") and before.startswith("|"):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])])
        before = line
    return found


def parameters_in(run):
    """How many numbers the weights of a run's model are."""
    return sum(weight.numel() for weight in read_tensors(run / "model" / WEIGHTS).values())


@pytest.fixture(scope="module")
def other_run(tmp_path_factory):
    """A run that has the test set of `trained_run` and has learnt nothing."""
    directory = tmp_path_factory.mktemp("other") / "untrained"
    train(tiny_recipe(training={"steps": 1}), directory, notify=ignore)
    return directory


def test_tables_are_readable():
    rows = [["a", 1234567, 1234.5, 0.123456, 9.5e17], [None, 0, -1.5, 26.03, "x|y"]]
    assert markdown(["name", "b", "c", "d", "e"], rows) == (
        "| name | b | c | d | e |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| a | 1,234,567 | 1,234 | 0.1235 | 9.5e+17 |\n"
        "|  | 0 | -1.5 | 26.03 | x\\|y |\n"
    )


@pytest.mark.parametrize("text", [tables.__doc__, PAGE], ids=["program", "page"])
def test_every_command_is_named_with_options_that_it_has(text, tmp_path, capsys):
    lines = re.findall(r"^python benchmarks/paper_tables.py (\w+)(.*)$", text, re.MULTILINE)
    assert {name for name, _ in lines} == {*tables.COMMANDS}
    for name, options in lines:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert {*re.findall(r"--\w+", options)} <= {
            *re.findall(r"--\w+", capsys.readouterr().out)
        }, name


@pytest.mark.slow
def test_complexity(tmp_path):
    tables.complexity(tmp_path, [4, 8], 16, "tiny", 0.0)
    formulas, operations, forward, training, memory, rates = rows_of(tmp_path)
    assert [row[:4] for row in formulas] == [
        ["self-attention", "O(n² d)", "O(1)", "O(1)"],
        ["recurrent", "O(n d²)", "O(n)", "O(n)"],
        ["convolutional", "O(k n d²)", "O(1)", "O(log_k n)"],
        ["restricted attention", "O(r n d)", "O(1)", "O(n / r)"],
    ]
    assert [[row[0] for row in part] for part in (operations, forward, training, memory)] == [
        ["4", "8"]
    ] * 4
    assert all(float(cell) > 0 for row in forward + training for cell in row[1:])
    assert [row[0] for row in rates] == [
        "Transformer",
        *(f"GRU, attention: {a}" for a in ("none", "general", "additive")),
    ]
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["layers"]) == 8
    assert len(results["training"]) == 4
    assert all(
        (tmp_path / name).read_text().startswith("<svg") for name in ("plot.svg", "memory.svg")
    )


def test_translation_without_a_run(tmp_path, capsys):
    assert main(["translation", "--out", str(tmp_path / "new")]) == 0
    [rows] = rows_of(tmp_path / "new")
    assert [row[:2] for row in rows if row[0].startswith("Transformer")] == [
        ["Transformer (base)", "27.3"],
        ["Transformer (big)", "28.4"],
    ]
    *_, base, big = rows
    assert base[:2] == ["transduct, Transformer (base)", "not run here"]
    assert big[:2] == ["transduct, Transformer (big)", "not run here"]
    assert capsys.readouterr().out.strip() == (tmp_path / "new" / "table.md").read_text().strip()
    drawn = re.findall(r"<title>(.*?):", (tmp_path / "new" / "plot.svg").read_text())
    assert drawn == [name for name, bleu, _, flops, *_ in tables.PUBLISHED if bleu and flops]


def test_our_sizes_are_the_paper_s_and_cost_less_than_its_machines_could_have_done():
    for size, published in zip(("base", "big"), tables.PUBLISHED[-2:], strict=True):
        parameters, flops = tables.our_size(size)
        assert parameters == pytest.approx(published[5], rel=0.05)
        assert 0.2 < flops / published[3] < 1.0


def test_runs_of_another_corpus_are_marked(tmp_path, trained_run):
    tables.translation(tmp_path, [trained_run])
    published, runs = rows_of(tmp_path)
    assert published[-2][1] == published[-1][1] == "not run here"
    assert runs[0][:2] == ["run", "reverse"]
    assert "tok:13a" in runs[0][3]
    assert "transduct" not in (tmp_path / "plot.svg").read_text()


@pytest.fixture
def newstest_run(tmp_path, trained_run):
    """A copy of `trained_run` whose test set is called newstest2014 and lies in the run."""
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    for side, texts in zip(
        ("en", "de"), zip(*generate("reverse", 8, "test"), strict=True), strict=True
    ):
        (run / f"newstest2014.{side}").write_text("".join(f"{text}\n" for text in texts))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"] |= {
        "root": str(run),
        "test": {"source": "newstest2014.en", "target": "newstest2014.de"},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return run


def test_a_run_of_newstest2014_takes_its_place(tmp_path, newstest_run, monkeypatch):
    held = yaml.safe_load((newstest_run / "recipe.yaml").read_text())
    monkeypatch.setitem(
        tables.SIZES, "base", {key: held["model"][key] for key in tables.SIZES["base"]}
    )
    tables.translation(tmp_path, [newstest_run])
    published, [[name, test, score, _]] = rows_of(tmp_path)
    assert (name, test) == ("run", "newstest2014.en")
    assert float(published[-2][1]) == pytest.approx(float(score), abs=0.01)
    assert published[-1][1] == "not run here"
    assert re.findall(r"<title>(transduct .*?):", (tmp_path / "plot.svg").read_text()) == [
        "transduct (base)"
    ]


@pytest.mark.parametrize("apart", ["languages", "layers"])
def test_runs_of_other_languages_or_sizes_are_marked(tmp_path, newstest_run, monkeypatch, apart):
    held = yaml.safe_load((newstest_run / "recipe.yaml").read_text())
    monkeypatch.setitem(
        tables.SIZES, "base", {key: held["model"][key] for key in tables.SIZES["base"]}
    )
    if apart == "languages":
        (newstest_run / "newstest2014.de").rename(newstest_run / "newstest2014.fr")
        held["data"]["test"]["target"] = "newstest2014.fr"
        (newstest_run / "recipe.yaml").write_text(yaml.safe_dump(held))
    else:
        tables.SIZES["base"]["d_ff"] += 1
    tables.translation(tmp_path, [newstest_run])
    published, runs = rows_of(tmp_path)
    assert published[-2][1] == published[-1][1] == "not run here"
    assert runs[0][:2] == ["run", "newstest2014.en"]


def test_a_test_set_that_has_moved(tmp_path, newstest_run):
    moved = tmp_path / "moved"
    moved.mkdir()
    for side in ("en", "de"):
        (newstest_run / f"newstest2014.{side}").rename(moved / f"newstest2014.{side}")
    words = ["lengths", str(newstest_run), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert main([*words, "--root", str(moved)]) == 0
    assert rows_of(tmp_path / "out")[0][-1][:2] == ["all", "8"]


def test_multiply_adds_are_those_that_torch_counts(monkeypatch):
    monkeypatch.setattr(cpu, "trainable", lambda *_: False)  # whose products torch does not count
    model, length = tiny(d_k=4), 7
    tokens, segments = tokens_of([length] * 3)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        memory = model.encode(tokens, segments)
        model.logits(model.decode(tokens, segments, memory, segments))
    assert counter.get_total_flops() == 2 * len(tokens) * tables.multiply_adds(model.config, length)
    assert model.config.target_size == SIZE


def test_variations_in_miniature(tmp_path, capsys, monkeypatch):
    recipe = vars(tiny_recipe(training={"steps": 30, "warmup": 10}))
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump({**recipe, "profiles": {"cpu": {}}}))
    monkeypatch.setitem(tables.variations.VARIATIONS, "heads", {"1": {"model": {"num_heads": 1}}})
    monkeypatch.setattr(tables.variations, "TURNS", 2)
    words = f"variations --recipe {path} --rows heads --steps 3 --seeds 1,2 --out {out}".split()
    assert main(words) == 0
    assert "4 of 4" in capsys.readouterr().err
    [[base, heads]] = rows_of(out)
    assert [base[:2], heads[:2]] == [["base", ""], ["heads", "1"]]
    assert base[2] == heads[2] == f"{parameters_in(out / 'runs' / 'base_1'):,}"
    for row in (base, heads):
        perplexity, spread = map(float, row[3].split(" ± "))
        assert perplexity > 1 < perplexity / spread
        assert float(row[6]) > 0
        assert row[7] == "2"
    assert (out / "plot.svg").read_text().count("<title>") == 4  # a point for each training
    held = (out / "results.jsonl").read_text()
    assert len(held.splitlines()) == 4
    assert main(words) == 2
    assert "paper_tables: " in capsys.readouterr().err
    (out / "table.md").unlink()
    assert main([*words, "--resume"]) == 0
    assert (out / "results.jsonl").read_text() == held
    assert rows_of(out) == [[base, heads]]


def test_trainings_that_diverged_are_counted(tmp_path, monkeypatch):
    result = tables.Result
    found = [
        result("base", "", 1, 10, 2.0, 8.0, 20.0),
        result("base", "", 2),
        result("width", "64", 1),
    ]
    monkeypatch.setattr(tables.variations, "run_variations", lambda *_: iter([[], found]))
    monkeypatch.setattr(
        tables.variations, "step_times", lambda *_: {("base", ""): 12.4, ("width", "64"): 7.0}
    )
    tables.table_of_variations(tmp_path, tiny_recipe(), {"width": {"64": {}}}, [1, 2], False)
    base = ["base", "", "10", "8.00", "20.00", "2.00", "12", "2, 1 diverged"]
    assert rows_of(tmp_path) == [[base, ["width", "64", "", "", "", "", "7", "1, 1 diverged"]]]


def test_bleu_by_length(tmp_path, trained_run, other_run):
    words = f"lengths {trained_run} {other_run} --labels ours,theirs --edges 5,8 --out {tmp_path}"
    assert main(words.split()) == 0
    *buckets, everything = rows_of(tmp_path)[0]
    sources = [source.split() for source, _ in generate("reverse", 8, "test")]
    expected = {
        f"{a + 1} to {b}": sum(a < len(s) <= b for s in sources)
        for a, b in ((0, 5), (5, 8), (8, 10))
    }
    assert {name: int(count) for name, count, *_ in buckets} == {
        name: n for name, n in expected.items() if n
    }
    assert everything[:2] == ["all", "8"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["bleu"]["ours"]["all"] > results["bleu"]["theirs"]["all"]
    expected = tables.evaluate.evaluate(trained_run).scores["bleu"]
    assert results["bleu"]["ours"]["all"] == pytest.approx(expected)
    assert "theirs" in (tmp_path / "plot.svg").read_text()


def test_runs_of_different_test_sets_are_not_compared(tmp_path, trained_run, other_run, capsys):
    run = tmp_path / "copy"
    shutil.copytree(other_run, run)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("part: test", "part: valid"))
    assert main(["lengths", str(trained_run), str(run), "--out", str(tmp_path / "out")]) == 2
    assert (
        f"{run}: its test set is not that of {trained_run}; give runs of one test set"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("labels", ["a", "a,a", "a,b,c"])
def test_each_run_has_a_label_of_its_own(tmp_path, labels):
    with refusal(r"found 2 runs, labelled a.*; give each a label of its own"):
        tables.by_length(tmp_path, [tmp_path, tmp_path], labels.split(","), None, [8])


def test_a_width_that_heads_cannot_share(tmp_path, capsys):
    assert main(["complexity", "--width", "200", "--out", str(tmp_path)]) == 2
    assert (
        "--width is 200, must be a multiple of 64, the width of a head" in capsys.readouterr().err
    )


def test_failures_have_their_exit_status(monkeypatch, tmp_path, capsys):
    def fails(*rest):
        raise TrainingFailed("stopped by a signal")

    monkeypatch.setattr(tables, "complexity", fails)
    assert main(["complexity", "--quick", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "paper_tables: stopped by a signal\n"
    with pytest.raises(SystemExit, match="2"):
        main(["variations", "--seeds", "one", "--out", str(tmp_path)])
