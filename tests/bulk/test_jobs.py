"""A job gives the same bytes whoever does it, however often it is stopped, and knows its folder."""

import json
import os
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import transduct
from tests.bulk.conftest import TEXTS, files_in
from tests.forked import Forked
from tests.refusals import refusal
from transduct.bulk import jobs, shards
from transduct.bulk.jobs import STATE, Call, evaluated, run, state_of
from transduct.formats.documents import Document


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SIZE", 300)
        yield


def call(model, verb="translate", **changes):
    return Call(verb, model, device="cpu", **{"options": {"beam": 1}, **changes})


def results(folder):
    """The files of a job by name, but its state."""
    names = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in names
        if STATE not in path.relative_to(folder).parts
    }


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def last(steps):
    *_, found = steps
    return found


@pytest.fixture(scope="module")
def done(small, model, tmp_path_factory):
    """What a job makes of the files."""
    folder = tmp_path_factory.mktemp("done")
    last(run(call(model), [str(files_in(folder / "in"))], folder / "out"))
    return results(folder / "out")


def test_answers_are_those_of_translate(model, done):
    answers = [each.text for each in transduct.load(model, "cpu").translate(TEXTS, beam=1)]
    assert done["a.txt"].decode().splitlines() == answers
    rows = map(json.loads, done["c.jsonl"].splitlines())
    assert [(row["id"], row["text"], row["translation"]) for row in rows] == [
        (number, text, answer)
        for number, (text, answer) in enumerate(zip(TEXTS, answers, strict=True))
    ]
    assert len(set(answers)) > 6


def test_documents_come_back_whole_with_their_styles(model, tmp_path):
    documents = Path(__file__).parents[1] / "formats" / "files"
    (tmp_path / "in").mkdir()
    for name in ("word.docx", "page.html", "notes.md"):
        shutil.copy(documents / name, tmp_path / "in")
    last(run(call(model), [str(tmp_path / "in")], tmp_path / "out"))
    loaded = transduct.load(model, "cpu")
    for name, content in results(tmp_path / "out").items():
        document = Document(Path(name).suffix, name, (documents / name).read_bytes())
        made = loaded.translate_marked(document.segments, beam=1)
        assert content == document.translated(made), name
    assert len(results(tmp_path / "out")) == 3


RAY = pytest.param({"ray": "local", "workers": 2}, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [{"workers": 2}, {"part": True}, RAY])
def test_bytes_do_not_depend_on_who_works(how, model, files, done, tmp_path):
    parts = [(2, 2), (1, 2)] if how.get("part") else [None]
    for part in parts:
        last(run(call(model), [str(files)], tmp_path / "other", **{**how, "part": part}))
    assert results(tmp_path / "other") == done


def test_a_job_that_stops_goes_on_and_does_nothing_twice(model, files, done, tmp_path):
    out = tmp_path / "other"
    steps = run(call(model), [str(files)], out)
    assert next(steps).shards == 0
    while next(steps).shards < 5:
        pass
    steps.close()
    assert results(out) != done
    first = next(run(call(model), [str(files)], out))
    rest = last(run(call(model), [str(files)], out))
    assert first.of == rest.of == rest.shards > 0
    assert results(out) == done
    assert last(run(call(model), [str(files)], out)).of == 0
    left = [path.name for path in out.rglob("*") if STATE in path.parts and path.is_file()]
    assert set(left) == {"job.json", "input.json", "done.json"}


def test_a_driver_that_is_killed_goes_on(model, files, done, tmp_path):
    out = tmp_path / "other"

    def driver():
        for step in run(call(model), [str(files)], out):
            if step.shards == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    with Forked(driver) as process:
        assert process.wait() == -signal.SIGKILL
    last(run(call(model), [str(files)], out))
    assert results(out) == done


def test_a_disk_that_goes_away_is_named_with_the_file_and_the_job_goes_on(
    model, files, done, tmp_path
):
    out, away = tmp_path / "out", tmp_path / "away"
    with refusal(
        r"^[a-z./]+: .*out/\.transduct/.*: cannot be written \(No such .*then run again, or"
    ):
        for step in run(call(model), [str(files)], out):
            if step.shards == 2:
                out.rename(away)
    away.rename(out)
    last(run(call(model), [str(files)], out))
    assert results(out) == done


def test_a_part_that_is_lost_is_seen(model, files, done, tmp_path):
    """A control: a file is not joined of fewer parts than it has."""
    out = tmp_path / "other"
    steps = run(call(model), [str(files)], out)
    while next(steps).shards < 1:
        pass
    steps.close()
    state = state_of(out, "a.txt")
    os.remove(sorted(state.glob("0*"))[0])
    last(run(call(model), [str(files)], out))
    assert results(out) == done


def test_a_file_that_has_changed_or_whose_result_is_gone_is_done_again(
    model, files, done, tmp_path
):
    last(run(call(model), [str(files)], tmp_path / "out"))
    (files / "a.txt").write_text("a b\nc d\n")
    assert last(run(call(model), [str(files)], tmp_path / "out")).rows == 2
    again = results(tmp_path / "out")
    assert again.pop("a.txt").count(b"\n") == 2
    assert again == {name: content for name, content in done.items() if name != "a.txt"}
    os.remove(tmp_path / "out" / "c.jsonl")
    last(run(call(model), [str(files)], tmp_path / "out"))
    assert results(tmp_path / "out").pop("c.jsonl") == done["c.jsonl"], "it was gone"


def test_a_file_that_changes_during_a_job_is_refused_and_done_again(model, files, tmp_path):
    inputs, out = [str(files / "a.txt")], tmp_path / "other"
    steps = run(call(model), inputs, out)
    next(steps)
    (files / "a.txt").write_text("a b\nc d\n" * 100)
    with refusal("a.txt: has changed since the job began; run it again"):
        last(steps)
    assert results(out) == {}
    assert last(run(call(model), inputs, out)).rows == 200
    assert results(out)["a.txt"].count(b"\n") == 200


def test_a_kill_while_old_parts_are_removed_mixes_no_contents(model, files, tmp_path, monkeypatch):
    inputs, out = [str(files / "a.txt")], tmp_path / "other"
    steps = run(call(model), inputs, out)
    while next(steps).shards < 2:
        pass
    steps.close()
    old = (files / "a.txt").read_text()
    (files / "a.txt").write_text(old.upper())
    remove = Path.unlink

    def killed(path, missing_ok=False):
        remove(path, missing_ok)
        raise KeyboardInterrupt

    steps = run(call(model), inputs, out)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
    last(run(call(model), inputs, out))
    last(run(call(model), inputs, tmp_path / "fresh"))
    assert results(out) == results(tmp_path / "fresh")


def test_a_name_that_is_not_utf8_is_done(model, tmp_path):
    file = os.fsencode(tmp_path) + b"/\xff.txt"
    try:
        Path(os.fsdecode(file)).write_text("a\n")
    except OSError:  # macOS and Windows have no such names
        return
    last(run(call(model), [os.fsdecode(file)], tmp_path / "out"))
    assert [*results(tmp_path / "out")] == [os.fsdecode(b"\xff.txt")]


@pytest.mark.parametrize("name", ["x.jsonl", "x.tsv", "x.parquet"])
def test_a_column_of_the_input_is_not_overwritten(name, model, tmp_path):
    row = {"text": "w1", "translation": "mine"}
    if name == "x.parquet":
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    else:
        line = json.dumps(row) if name == "x.jsonl" else "text\ttranslation\nw1\tmine"
        (tmp_path / name).write_text(f"{line}\n")
    with refusal(f"{name}: has a column 'translation' already; rename it"):
        last(run(call(model), [str(tmp_path / name)], tmp_path / "out"))


def test_the_folder_of_another_job_is_refused(model, files, tmp_path):
    out = tmp_path / "out"
    inputs = [str(files / "c.jsonl")]
    last(run(call(model), inputs, out))
    with refusal("holds the results of another job, with another options; give another --out"):
        last(run(call(model, options={"beam": 2}), inputs, out))
    with refusal("another verb"):
        last(run(call(model, "predict"), inputs, out))
    other = tmp_path / "model"
    shutil.copytree(model, other)
    (other / "card.md").write_text("another\n")
    with refusal("another model"):
        last(run(call(str(other)), inputs, out))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with refusal("is not empty and holds no job; give a new folder as --out"):
        last(run(call(model), inputs, tmp_path / "full"))
    for inside in (files, files / "out"):
        with refusal("inputs and results stand in one folder; give another --out"):
            last(run(call(model), [str(files)], inside))
    (tmp_path / "file").touch()
    with refusal("cannot be written"):
        last(run(call(model), inputs, tmp_path / "file" / "out"))
    with refusal("file: this is a file; --out names a folder"):
        last(run(call(model), inputs, tmp_path / "file"))


@pytest.mark.parametrize("verb", ["translate", "predict"])
def test_a_wrong_option_is_of_no_row_and_claims_no_folder(verb, model, files, tmp_path):
    wrong = call(model, verb, options={"beem": 2}, skip_errors=True)
    with refusal("^options: unknown key .decoding.beem.; did you mean"):
        last(run(wrong, [str(files / "d.tsv")], tmp_path / "out"))
    right = call(model, verb, options={})
    assert last(run(right, [str(files / "d.tsv")], tmp_path / "out")).rows == len(TEXTS)


@pytest.mark.parametrize(
    ("wrong", "found"), [({"text": None}, "NoneType"), ({"id": 3}, "nothing"), ({}, "nothing")]
)
def test_rows_that_are_wrong_are_named_or_left_empty(wrong, found, model, tmp_path):
    rows = [{"text": "a b"}, wrong, {"text": "c"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = [str(tmp_path / "x.jsonl")]
    problem = f"x.jsonl:2: found {found} in column 'text', expected text; fix the row"
    with refusal(f"{problem}; or leave"):
        last(run(call(model), inputs, tmp_path / "out"))
    done = last(run(call(model, skip_errors=True), inputs, tmp_path / "skipped"))
    assert (done.rows, done.failed) == (3, 1)
    assert done.error == problem
    again = last(run(call(model, skip_errors=True), inputs, tmp_path / "skipped"))
    assert (again.rows, again.failed, again.error) == (0, 1, "")
    out = read(tmp_path / "skipped" / "x.jsonl")
    assert [bool(row.pop("translation")) for row in out] == [True, False, True]
    assert out == rows


def test_alternatives_scores_and_predictions_are_columns(model, files, tmp_path):
    inputs = [str(files / "f.parquet")]
    last(run(call(model, n_best=2, scores=True, options={"beam": 2}), inputs, tmp_path / "a"))
    rows = pq.read_table(tmp_path / "a" / "f.parquet").to_pylist()
    assert next(each["text"] for each in rows[0]["alternatives"]) == rows[0]["translation"]
    assert rows[0]["score"] < 0
    last(run(call(model, "predict"), inputs, tmp_path / "b"))
    assert pq.read_table(tmp_path / "b" / "f.parquet").column_names == ["id", "text", "prediction"]


def test_evaluate_gives_the_report_of_one_process(model, tmp_path):
    rows = [{"de": text, "en": text[::-1]} for text in TEXTS]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs, out = [str(tmp_path / "x.jsonl")], tmp_path / "out"
    asked = call(model, "evaluate", columns=("de", "en"))
    with refusal("1 files are not done; run the other parts"):
        evaluated(asked, inputs, out)
    last(run(asked, inputs, out))
    alone = transduct.load(model, "cpu").evaluate((TEXTS, [[text[::-1]] for text in TEXTS]), beam=1)
    assert evaluated(asked, inputs, out).as_json() == alone.as_json()
    last(run(call(model, "score", columns=("de", "en"), options={}), inputs, tmp_path / "scored"))
    first = read(tmp_path / "scored" / "x.jsonl")[0]
    expected = transduct.load(model, "cpu").score(TEXTS[:1], [TEXTS[0][::-1]])
    assert first["score"] == pytest.approx(expected[0], abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"n_best": 2}, {}, "a.txt: a line has one translation; leave --n-best out, or give a"),
        ({"verb": "score", "columns": ("a", "b")}, {}, "a.txt: has no columns; give pairs in"),
        ({"input": "x.srt", "scores": True}, {}, "x.srt: a document is only translated, and comes"),
        ({"input": "x.html", "verb": "predict"}, {}, "x.html: a document is only translated"),
        ({}, {"part": (3, 2)}, "--part is wrong; give such as 3/64, the third of 64 parts"),
        ({}, {"workers": 0}, "--workers is 0, must be at least 1"),
    ],
)
def test_a_call_that_cannot_be_is_refused(changes, more, message, model, files, tmp_path):
    (files / "x.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nw1\n")
    (files / "x.html").write_text("<!doctype html><p>w1")
    name = changes.get("input", "a.txt")
    asked = {key: value for key, value in changes.items() if key != "input"}
    with refusal(message):
        last(run(call(model, **asked), [str(files / name)], tmp_path / "out", **more))
    assert not (tmp_path / "out").exists()


def test_columns_are_as_many_as_the_verb_reads(model):
    with refusal("score reads two columns; write --column source,target"):
        call(model, "score")
    with refusal("translate reads one column; write --column text"):
        call(model, columns=("a", "b"))


def test_more_workers_than_shards_are_no_error(model, tmp_path):
    (tmp_path / "x.txt").write_text("a\n")
    last(run(call(model), [str(tmp_path / "x.txt")], tmp_path / "out", workers=3))
    assert (tmp_path / "out" / "x.txt").read_text().count("\n") == 1
    (tmp_path / "empty.txt").write_text("")
    last(run(call(model), [str(tmp_path / "empty.txt")], tmp_path / "none"))
    assert (tmp_path / "none" / "empty.txt").read_text() == ""
    assert Path(jobs.state_of(tmp_path / "none", "empty.txt"), "done.json").exists()
