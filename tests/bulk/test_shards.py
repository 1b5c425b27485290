"""Shards cover each row of a file once, and their parts make a file of the same format."""

import gzip
import io
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bulk.conftest import TEXTS
from tests.refusals import refusal
from transduct.bulk import shards
from transduct.bulk.shards import files_of, format_of, join, shards_of, texts_of


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(shards, "SIZE", 100)


def rows_of(folder):
    found = {}
    for shard in shards_of(files_of([str(folder)])):
        rows = format_of(shard.name).rows(shard)
        found.setdefault(shard.name, []).append((shard, rows))
    return found


def test_shards_hold_each_row_once_in_order(files, small):
    found = rows_of(files)
    assert list(found) == ["a.txt", "below/b.txt.gz", "c.jsonl", "d.tsv", "e.csv", "f.parquet"]
    for name, parts in found.items():
        texts = [text for shard, rows in parts for text in texts_of(shard, rows, "text")]
        assert texts == TEXTS, name
    counts = {name: len(parts) for name, parts in found.items()}
    assert counts["f.parquet"] == 3
    assert counts["a.txt"] > 2 < counts["c.jsonl"]
    assert counts["d.tsv"] > 2
    assert counts["e.csv"] == counts["below/b.txt.gz"] == 1


@pytest.mark.parametrize("name", ["a.txt", "below/b.txt.gz", "c.jsonl", "d.tsv", "e.csv"])
def test_rows_with_results_are_the_same_file_in_one_part_or_many(
    name, files, tmp_path, monkeypatch
):
    contents = []
    for size in (100, 1 << 20):
        monkeypatch.setattr(shards, "SIZE", size)
        parts = []
        for number, (shard, rows) in enumerate(rows_of(files)[name]):
            results = {"translation": texts_of(shard, rows, "text")}
            parts.append(tmp_path / f"part{number}")
            parts[-1].write_bytes(format_of(name).part(shard, rows, results))
        join(name, parts, tmp_path / "out" / name)
        contents.append((tmp_path / "out" / name).read_bytes())
    assert contents[0] == contents[1]
    again = rows_of(tmp_path / "out")
    (((shard, rows),),) = again.values()
    column = "translation" if format_of(name).columns else ""
    assert texts_of(shard, rows, column) == TEXTS


def test_parquet_keeps_its_columns_and_types(files, tmp_path):
    parts = []
    for number, (shard, rows) in enumerate(rows_of(files)["f.parquet"]):
        parts.append(tmp_path / f"part{number}")
        # a part without one score has the type of the others
        scores = [None if number == 0 else 0.5 for _ in rows]
        results = {"translation": ["x"] * len(rows), "score": scores}
        parts[-1].write_bytes(format_of("f.parquet").part(shard, rows, results))
    join("f.parquet", parts, tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.column_names == ["id", "text", "translation", "score"]
    assert table.column("id").to_pylist() == list(range(40))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"text": "a"}\n[1]\n', "x.jsonl:2: found no object of JSON; fix the line"),
        ("x.tsv", "text\tb\na\n", "x.tsv:2: found 1 cells, the first row has 2; fix the row"),
        ("x.tsv", "id\ttext\tid\n1\ta\t2\n", "x.tsv: has two columns 'id'; rename one"),
        ("x.csv", 'text\n"a', "x.csv: damaged .*; write it again"),
        ("x.csv", 'a;b\n"1\n2";3\n4\n', "x.csv:4: found 1 cells, the first row has 2; fix the row"),
        ("x.parquet", "no", "x.parquet: damaged .*; copy it again"),
        ("x.txt", b"a\n\xff\xfe\xfd\n", r"x.txt:2: .*UTF-8"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refusal(message):
        rows_of(tmp_path)


def test_an_object_keeps_its_spelling(tmp_path):
    line = r'{ "text":"a", "n":12345678901234567890.125, "e":1e999, "d":1,"d":2, "s":"\ud800"} '
    (tmp_path / "x.jsonl").write_text(line)
    ((shard, rows),) = rows_of(tmp_path)["x.jsonl"]
    part = format_of("x.jsonl").part(shard, rows, {"score": [0.5], "translation": ["나"]}).decode()
    assert part == line[:-2] + ', "score": 0.5, "translation": "나"}\n'


def test_lines_of_later_shards_are_numbered_in_the_file(tmp_path, small):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n' * 30 + "3\n")
    with refusal(r"x.jsonl:31: found no object of JSON; fix the line"):
        rows_of(tmp_path)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": i}) + "\n" for i in range(30)))
    shard, rows = rows_of(tmp_path)["x.jsonl"][1]
    assert format_of("x.jsonl").line(shard, 0) == rows[0]["text"] + 1
    first = texts_of(shard, rows, "text")[0]
    assert str(first) == "found int in column 'text', expected text; fix the row"


@pytest.mark.parametrize(("name", "mark"), [("x.tsv", "\t"), ("x.csv", ","), ("x.csv", ";")])
def test_rows_of_tables_are_numbered_below_their_names(name, mark, tmp_path):
    (tmp_path / name).write_text(f"id{mark}text\n" + "".join(f"{i}{mark}x\n" for i in range(3)))
    ((shard, rows),) = rows_of(tmp_path)[name]
    assert [format_of(name).line(shard, index) for index in range(3)] == [2, 3, 4]
    part = format_of(name).part(shard, rows, {"translation": ["y"] * 3}).decode()
    assert part.splitlines()[:2] == [mark.join(("id", "text", "translation")), f"0{mark}x{mark}y"]


def test_a_missing_column_is_named_beside_those_there_are(files):
    shard, rows = rows_of(files)["c.jsonl"][0]
    with refusal("c.jsonl: found no column 'de', it has id, text; name one with --column"):
        texts_of(shard, rows, "de")


@pytest.mark.parametrize(("name", "answer"), [("x.txt", "a\nb"), ("x.tsv", "a\tb")])
def test_an_answer_that_would_break_a_row_is_refused(name, answer, tmp_path):
    (tmp_path / name).write_text("text\nx\n")
    ((shard, rows),) = rows_of(tmp_path)[name]
    with refusal(f"{name}:2: an answer has a line break or a tab, .*; give JSON lines or Parquet"):
        format_of(name).part(shard, rows, {"translation": ["y"] * (len(rows) - 1) + [answer]})


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.tsv", "x.csv", "x.csv.gz"])
def test_lines_end_as_they_did(end, name, tmp_path, small):
    row = '{"text": "a"}' if "jsonl" in name else "a"
    content = end.join(["text" if name[2:5] in ("tsv", "csv") else row, *[row] * 60, ""]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    parts = [
        format_of(name).part(shard, rows, {"translation": ["b"] * len(rows)})
        for shard, rows in rows_of(tmp_path)[name]
    ]
    made = b"".join(parts)
    assert made.count(end.encode()) == made.count(b"\n") == 61


def test_an_empty_table_stays_empty_and_a_row_without_keys_is_named(tmp_path):
    for name in ("x.tsv", "x.csv"):
        (tmp_path / name).touch()
        ((shard, rows),) = rows_of(tmp_path)[name]
        assert format_of(name).part(shard, rows, {"translation": []}) == b""
    (tmp_path / "x.jsonl").write_text("{}\n")
    with refusal("x.jsonl: found no column 'text', a row is empty; fix it"):
        texts_of(*rows_of(tmp_path)["x.jsonl"][0], "text")


def test_a_table_without_rows_gets_the_columns(tmp_path):
    (tmp_path / "x.tsv").write_text("id\ttext\n")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    for name, ((shard, rows),) in rows_of(tmp_path).items():
        part = format_of(name).part(shard, rows, {"translation": []})
        assert rows == []
        if name == "x.tsv":
            assert part == b"id\ttext\ttranslation\n"
        else:
            assert pq.read_table(io.BytesIO(part)).column_names == ["text", "translation"]


SUBTITLES = (
    "1\n00:00:01,000 --> 00:00:02,000\n<i>Ja.</i>\n\n2\n00:00:03,000 --> 00:00:04,000\nNein.\n"
)
CATALOGUE = (
    'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "Ja."\nmsgstr ""\n'
)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("x.srt", SUBTITLES.encode(), ["Ja.", "Nein."]),
        ("x.srt", b"\xff\xfe" + SUBTITLES.encode("utf-16-le"), ["Ja.", "Nein."]),
        ("x.po", CATALOGUE.encode(), ["Ja."]),
        ("x.srt.gz", gzip.compress(SUBTITLES.encode()), ["Ja.", "Nein."]),
    ],
    ids=["UTF-8", "UTF-16", "PO", "gzip"],  # a header of gzip tells the time, and ids may not
)
def test_a_document_comes_back_whole(name, content, texts, tmp_path):
    (tmp_path / name).write_bytes(content)
    ((shard, rows),) = rows_of(tmp_path)[name]
    assert rows == [[text] for text in texts]
    part = format_of(name).part(shard, rows, {"translation": [["Oui."], *rows[1:]]})
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    new, old = (text.encode("utf-16-le" if b"\0" in plain else "utf-8") for text in ("Oui.", "Ja."))
    if name == "x.po":
        assert part == plain.replace(b'"Ja."\nmsgstr ""', b'"Ja."\nmsgstr "Oui."')
    else:
        assert part == plain.replace(old, new)


def test_names_are_below_the_folder_that_all_share(files):
    found = files_of([str(files / "below" / "*.gz"), str(files / "a.txt")])
    assert list(found) == ["below/b.txt.gz", "a.txt"]
    assert list(files_of([str(files / "c.*")])) == ["c.jsonl"]
    with refusal("found no file; give files, folders or patterns such as 'in/\\*.txt'"):
        files_of([str(files / "*.doc")])
    with refusal("found no input; give files, folders or patterns such as 'in/\\*.txt'"):
        files_of([])


def test_parts_that_another_process_has_joined_are_no_error(tmp_path):
    (tmp_path / "a.txt").write_text("done\n")
    join("a.txt", [tmp_path / "gone"], tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "done\n"
    with pytest.raises(FileNotFoundError):
        join("b.txt", [tmp_path / "gone"], tmp_path / "b.txt")
    (tmp_path / "file").write_text("")
    (tmp_path / "part").write_text("x")
    with refusal("cannot be written"):
        join("c.txt", [tmp_path / "part"], tmp_path / "file" / "c.txt")


def test_a_shard_whose_range_is_wrong_loses_rows(files, small):
    """A control: the test of coverage would see it."""
    shard, rows = rows_of(files)["a.txt"][1]
    wrong = replace(shard, start=shard.start + 1)
    assert format_of("a.txt").rows(wrong) != rows
    assert format_of("a.txt").part(shard, rows, {"translation": [""]}) == b"\n"
    out = io.BytesIO()
    format_of("a.txt").join([io.BytesIO(b"a"), io.BytesIO(b"b")], out)
    assert out.getvalue() == b"ab"
