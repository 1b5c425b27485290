"""What looks like a mistake in a corpus is reported, and nothing else."""

import gzip

import pytest

from transduct.data.sources import TextSource
from transduct.data.suspicions import same_text, suspicions


def test_sides_that_are_the_same_text_are_told(tmp_path):
    for name, content in (("a", "x\ny\n"), ("b", "x\ny\n"), ("c", "x\nz\n"), ("d", "x\n")):
        (tmp_path / name).write_text(content)
    with gzip.open(tmp_path / "a.gz", "wt") as file:
        file.write("x\ny\n")
    for other, same in (("a", True), ("b", True), ("a.gz", True), ("c", False), ("d", False)):
        assert same_text(tmp_path / "a", tmp_path / other) == same
    assert not same_text(tmp_path, tmp_path)
    (tmp_path / "zip").write_bytes(b"PK\3\4" + bytes(99))
    assert not same_text(tmp_path / "zip", tmp_path / "zip")
    [said] = suspicions(TextSource(source=["a", "c"], target=["b", "a"]), tmp_path)
    assert said.startswith(f"{tmp_path / 'a'} and {tmp_path / 'b'} hold the same text")
    [said] = suspicions(TextSource(pairs="a.tsv", columns=[1, 1]), tmp_path)
    assert said == "a.tsv: columns is [1, 1], which takes one twice; is another meant?"
    assert [*suspicions(TextSource(pairs="a.tsv"), tmp_path)] == []


@pytest.mark.parametrize("kind, mark", [("tsv", "\t"), ("csv", ",")])
@pytest.mark.parametrize(
    "row, header",
    [
        (("de", "en"), True),
        (("Source", "TARGET"), True),
        (("Korean", "zh-Hant"), True),
        (("text", "label"), True),
        (("source_text", "translation.de"), True),
        (("한국어", "text-en"), True),
        (("Ein Haus", "A house"), False),
        (("text", "Ein Text"), False),
        (("is it", "es ist"), False),
    ],
)
def test_a_first_row_of_names_of_columns_is_reported(tmp_path, kind, mark, row, header):
    path = tmp_path / f"a.{kind}"
    path.write_text(mark.join(row) + "\n" + mark.join(["a b", "c d"]) + "\n")
    both = ", ".join(row)
    line = (
        f"{path}:1: the first row ({both}) looks like the names of the columns; if it is, read "
        f"them by these: columns [{both}], on the command line --columns {','.join(row)}"
    )
    assert [*suspicions(TextSource(pairs=path.name), tmp_path)] == [line] * header
    assert [*suspicions(TextSource(pairs=path.name, columns=[0, 1]), tmp_path)] == [line] * header
    assert [*suspicions(TextSource(pairs=path.name, columns=[*row]), tmp_path)] == []


@pytest.mark.parametrize("columns", [[0, 1], [0, 1, 2]])
def test_a_first_row_whose_label_occurs_once_is_reported(tmp_path, columns):
    row = ["Satz", "Gefühl", "Gefühl"][: len(columns)]
    rows = [[f"a {i}", "bc"[i % 2], "bc"[i % 2]][: len(columns)] for i in range(6)]
    source = TextSource(pairs="a.tsv", columns=columns)

    def warned(table, labelled=True):
        lines = ("\t".join(each) + "\n" for each in table)
        (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
        return [*suspicions(source, tmp_path, labelled)]

    [line] = warned([row, *rows])
    assert f"a.tsv:1: the first row ({', '.join(row)}) looks like the names of the col" in line
    assert warned([row, *rows], labelled=False) == warned([*rows, row]) == []
    answers = [[*each[:-1], str(i)] for i, each in enumerate(rows)]  # none comes again
    assert warned([row, *answers]) == []
    [line] = warned([["text", "text", "label"][-len(columns) :], *rows], labelled=False)
    assert "looks like the names" in line
