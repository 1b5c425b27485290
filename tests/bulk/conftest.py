"""A model directory that answers, and files of every format with texts."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transduct_bench.ours import untrained

TEXTS = [" ".join(f"w{(7 * i + j) % 50}" for j in range(1 + i % 7)) for i in range(40)]


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bulk") / "model"
    untrained(directory, "tiny", 60)
    return str(directory)


@pytest.fixture
def files(tmp_path):
    """A folder of inputs."""
    return files_in(tmp_path / "in")


def files_in(folder):
    """Write one file of each format, with 40 rows each."""
    (folder / "below").mkdir(parents=True)
    lines = "".join(f"{text}\n" for text in TEXTS)
    (folder / "a.txt").write_text(lines)
    (folder / "below" / "b.txt.gz").write_bytes(gzip.compress(lines.encode()))
    objects = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
    (folder / "c.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    rows = "".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS))
    (folder / "d.tsv").write_text("id\ttext\n" + rows)
    with (folder / "e.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    pq.write_table(pa.Table.from_pylist(objects), folder / "f.parquet", row_group_size=15)
    return folder
