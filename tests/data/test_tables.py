"""Rows of tables, their columns, and what is wrong with a row."""

import json
import re
from unicodedata import normalize

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.data.conftest import encoded, read, refused, write_bytes
from tests.refusals import refusal
from transduct.data import tables
from transduct.data.sources import TextSource
from transduct.data.tables import tsv_rows
from transduct.data.text import read_rows, rows_or_errors


@pytest.mark.parametrize(
    "name, row, bad",
    [
        ("a.jsonl", '{"source": "a", "target": "b"}\n', "a.jsonl:2: not JSON"),
        ("a.tsv", "a\tb\n", "a.tsv:2: found 1, expected at least 2 columns"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", " \n", "\r\n"])
def test_blank_lines_at_the_end_of_records_are_none(tmp_path, name, row, bad, end):
    write_bytes(tmp_path, name, row * 2 + end)
    assert read(tmp_path, TextSource(pairs=name)) == [("a", "b")] * 2
    if end:
        write_bytes(tmp_path, name, row + end + row)
        with refusal(bad):
            read(tmp_path, TextSource(pairs=name))


def test_a_blank_line_of_a_single_column_is_a_row(tmp_path):
    write_bytes(tmp_path, "a.tsv", "a\n\n")
    assert [*read_rows(TextSource(pairs="a.tsv", columns=[0]), tmp_path)] == [["a"], [""]]


def test_columns_by_number_by_header_by_key_and_by_field(tmp_path):
    write_bytes(tmp_path, "a.tsv", "id\tde\ten\n0\tja\tyes\n")
    assert read(tmp_path, TextSource(pairs="a.tsv", columns=[2, 1])) == [
        ("en", "de"),
        ("yes", "ja"),
    ]
    assert read(tmp_path, TextSource(pairs="a.tsv", columns=["de", "en"])) == [("ja", "yes")]
    write_bytes(tmp_path, "a.jsonl", '{"de": "ja", "en": "yes"}')
    assert read(tmp_path, TextSource(pairs="a.jsonl", columns=["en", "de"])) == [("yes", "ja")]
    write_bytes(
        tmp_path,
        "b.jsonl",
        '{"translation": {"de": "ja", "en": {"us": "yes"}}, "translation.fr": "oui"}',
    )
    nested = ["translation.de", "translation.en.us"]
    assert read(tmp_path, TextSource(pairs="b.jsonl", columns=nested)) == [("ja", "yes")]
    literal = ["translation.fr", "translation.de"]
    assert read(tmp_path, TextSource(pairs="b.jsonl", columns=literal)) == [("oui", "ja")]
    table = pa.table({"id": [0], "translation": [{"de": "ja", "en": {"us": "yes"}}]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(
        tmp_path, TextSource(pairs="a.parquet", columns=["translation.en.us", "translation.de"])
    ) == [("yes", "ja")]


def test_a_line_feed_inside_a_value_becomes_a_blank(tmp_path):
    for format in (".jsonl", ".parquet"):
        name = write_bytes(tmp_path, "a" + format, encoded(format, [("one\ntwo\r\nthree", "\n")]))
        assert read(tmp_path, TextSource(pairs=name)) == [("one two three", " ")]


@pytest.mark.parametrize(
    "name, data, columns, message",
    [
        (
            "a.tsv",
            "a\tb\nc",
            None,
            r"a.tsv:2: found 1, expected at least 2 columns with tabs between; fix it or set",
        ),
        ("a.tsv", "a\tb\n\na\tb\n", None, "a.tsv:2: found 1, expected at least 2 columns"),
        ("a.tsv", "a\tb", [0, 2], "a.tsv:1: found 2, expected at least 3 columns"),
        (
            "a.tsv",
            "de\ten\n",
            ["de", "fr"],
            "a.tsv:1: no column 'fr'; set columns to some of: de, en",
        ),
        ("a.tsv", "", ["de", "fr"], "a.tsv:1: no column 'de'; set columns to some of: "),
        ("a.tsv", "de\ten\tde\n", ["de", "en"], "a.tsv:1: 2 columns are named 'de'; give each"),
        (
            "a.jsonl",
            "{",
            None,
            r"a.jsonl:1: not JSON \(.*\); expected an object with 'source' and 'target' on "
            r"every line",
        ),
        (
            "a.jsonl",
            "[1]",
            None,
            r"a.jsonl:1: found \[1\], expected an object with 'source' and 'target'",
        ),
        (
            "a.jsonl",
            '{"s": ""}',
            ["s.x", "t"],
            "a.jsonl:1: no key 's.x'; set columns to some of: s$",
        ),
        (
            "a.jsonl",
            "[" * 100_000,
            ["t", "t"],
            r"a.jsonl:1: not JSON \(maximum recursion depth .*\); expected an object",
        ),
        (
            "a.jsonl",
            '{"source": ""}',
            None,
            "a.jsonl:1: no key 'target'; set columns to some of: ",
        ),
        (
            "a.jsonl",
            '{"source": 12, "target": ""}',
            None,
            "a.jsonl:1: found 12 for 'source', expected text",
        ),
        (
            "a.jsonl",
            r'{"source": "\ud83d\ude00", "target": ""}'
            + "\n"
            + r'{"source": "\uD83d", "target": ""}',
            None,
            "a.jsonl:2: found an unpaired surrogate, expected text; fix the line",
        ),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path, name, data, columns, message):
    write_bytes(tmp_path, name, data)
    assert re.match(message, refused(tmp_path, TextSource(pairs=name, columns=columns)))


def test_labels_may_be_whole_numbers(tmp_path):
    write_bytes(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n')
    pa.parquet.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / "a.parquet")
    for name, other in (("a.jsonl", "x"), ("a.parquet", "0")):
        source = TextSource(pairs=name, columns=["text", "label"])
        assert [[*row] for row in read_rows(source, tmp_path, labelled=True)] == [
            ["a", "1"],
            ["b", other],
        ]
        with refusal("found 1 for 'label', expected text"):
            list(read_rows(source, tmp_path))
    write_bytes(tmp_path, "a.jsonl", '{"text": "a", "label": true}\n')
    with refusal("found True for 'label', expected text"):
        list(
            read_rows(
                TextSource(pairs="a.jsonl", columns=["text", "label"]), tmp_path, labelled=True
            )
        )


def test_parquet_columns_that_do_not_fit_are_named(tmp_path):
    pa.parquet.write_table(pa.table({"de": ["a", None], "n": [1, 2]}), tmp_path / "a.parquet")
    cases = {
        ("de", "en"): "a.parquet: no column 'en'; set columns to some of: de, n",
        ("n", "de"): "a.parquet, row 1: found 1 for 'n', expected text; fix it or set columns",
        (
            "de",
            "de",
        ): "a.parquet, row 2: found nothing for 'de', expected text; fix it or set columns",
    }
    for columns, message in cases.items():
        assert refused(tmp_path, TextSource(pairs="a.parquet", columns=list(columns))) == message


def test_a_long_text_of_parquet_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 10)
    name = write_bytes(
        tmp_path, "a.parquet", encoded(".parquet", [("x" * 10, "y"), ("x" * 11, "y")])
    )
    message = "row 2: found 11 characters for 'source', at most 10 are read; cut the text"
    with refusal(message) as caught:
        read(tmp_path, TextSource(pairs=name))
    assert caught.value.skippable


def test_parquet_times_are_no_text(tmp_path):
    times = pa.array([1], pa.timestamp("ns"))
    pa.parquet.write_table(pa.table({"de": ["a"], "en": times}), tmp_path / "a.parquet")
    # Arrow gives a time of pandas where that is installed, else it raises
    message = r"a\.parquet, rows? 1.*: found [Tt]imestamp.* for 'en', expected text; fix it or set"
    assert re.match(message, refused(tmp_path, TextSource(pairs="a.parquet", columns=["de", "en"])))


def test_parquet_bytes_that_are_not_utf8_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 2)
    broken = pa.array([b"a", b"b", b"c", b"\xe4"]).view(pa.string())
    pa.parquet.write_table(
        pa.table({"de": broken, "en": ["a", "b", "c", "d"]}), tmp_path / "a.parquet"
    )
    message = "a.parquet, rows 3 and on: 'de' holds bytes that are not UTF-8; write the file again"
    assert refused(tmp_path, TextSource(pairs="a.parquet", columns=["en", "de"])) == message


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array([{"x": "c"}]), pa.array(["d"])]
    pa.parquet.write_table(
        pa.Table.from_arrays(columns, ["de", "de", "en", "en.x"]), tmp_path / "a.parquet"
    )
    pa.parquet.write_table(
        pa.Table.from_arrays(columns[1:], ["de", "", "en.x"]), tmp_path / "b.parquet"
    )
    for columns in (["de", "de"], ["en.x", "de"]):
        message = f"a.parquet: 2 columns are named '{columns[0]}'; give each its own name"
        assert refused(tmp_path, TextSource(pairs="a.parquet", columns=columns)) == message
    assert read(tmp_path, TextSource(pairs="b.parquet", columns=["de", "en.x"])) == [("b", "d")]


def test_columns_and_keys_are_found_in_either_form_of_unicode(tmp_path):
    forms = [normalize(form, "긍정") for form in ("NFC", "NFD")]
    for held, asked in (forms, forms[::-1]):
        (tmp_path / "a.tsv").write_text(f"x\t{held}\n1\t2\n", encoding="utf-8")
        assert [*tsv_rows(tmp_path / "a.tsv", [asked, "x"])] == [["2", "1"]]
        line = json.dumps({held: "2", "x": "1"}, ensure_ascii=False)
        (tmp_path / "a.jsonl").write_text(line, encoding="utf-8")
        pa.parquet.write_table(pa.table({"x": ["1"], held: ["2"]}), tmp_path / "a.parquet")
        for name in ("a.jsonl", "a.parquet"):
            source = TextSource(pairs=name, columns=[asked, "x"])
            assert [*read_rows(source, tmp_path)] == [["2", "1"]]
    pa.parquet.write_table(pa.table({form: ["1"] for form in forms}), tmp_path / "a.parquet")
    with refusal("2 columns are named '긍정'; give each its own name"):
        list(read_rows(TextSource(pairs="a.parquet", columns=[forms[0], "x"]), tmp_path))


def test_parquet_rows_that_are_wrong_come_as_their_errors(tmp_path):
    table = pa.table({"source": ["a", None, "c"], "target": ["x", "y", "z"]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    first, wrong, last = rows_or_errors(TextSource(pairs="a.parquet"), tmp_path)
    assert (first, last) == (["a", "x"], ["c", "z"])
    assert "row 2: found nothing for 'source', expected text" in str(wrong)
