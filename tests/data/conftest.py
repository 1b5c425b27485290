"""A corpus of pairs, prepared in small pieces."""

import gzip
import http.server
import io
import json
import lzma
import os
import threading
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from transduct.data import corpus, places, text
from transduct.data.preparing import prepare
from transduct.data.samples import generate
from transduct.data.sources import DataConfig, TextSource
from transduct.data.text import read_pairs
from transduct.data.tokenizer import Tokenizer
from transduct.errors import TransductError

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": pa.Codec("zstd").compress,
}
PAIRS = [*generate("reverse", 60), *[*dict.fromkeys(generate("number_names", 80))][:40]]


@pytest.fixture
def small_pieces(monkeypatch):
    """Many chunks and many shards, so that every seam is crossed."""
    monkeypatch.setattr(text, "CHUNK", 7)
    monkeypatch.setattr(corpus, "SHARD_TOKENS", 300)


@pytest.fixture(scope="module")
def tokenizers():
    lines = [text for pair in PAIRS for text in pair]
    return Tokenizer.train(lines, "bpe", 80), Tokenizer.train(lines, "character", 80)


def compress(data, ending):
    """The bytes of a file, compressed as its name ends."""
    return bytes(COMPRESS[ending](data))


class Recorder(list):
    def __call__(self, message):
        self.append(message)


def write(folder, pairs, name="a"):
    """Write the pairs and say where: the train list of a data section."""
    for side, ending in enumerate(("s", "t")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{ending}").write_text(lines, encoding="utf-8", newline="\n")
    return TextSource(source=f"{name}.s", target=f"{name}.t")


def data_of(folder, pairs, **settings):
    """The `data` section of a table of these pairs."""
    (folder / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return DataConfig(train=[TextSource(pairs="a.tsv")], root=str(folder), **settings)


@pytest.fixture
def made(tmp_path, tokenizers):
    """Prepare the pairs with the settings; what was made and what was said."""

    def make(pairs=PAIRS, tokenizers=tokenizers, **settings):
        said = Recorder()
        data = DataConfig(**{"train": [write(tmp_path, pairs)], "root": str(tmp_path), **settings})
        return prepare(data, *tokenizers, tmp_path / "corpus", said), said

    return make


def texts(corpus, tokenizers, indices=None):
    """The pairs of texts that rows stand for."""
    columns = corpus.columns(np.arange(len(corpus)) if indices is None else indices)
    split = [np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in columns]
    return list(zip(*(tokenizer.decode(ids) for tokenizer, ids in zip(tokenizers, split))))


def encoded(format, pairs):
    """The bytes of a file of one format that holds both sides."""
    if format == ".tsv":
        return "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    if format == ".jsonl":
        return "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs).encode()
    sink = io.BytesIO()
    columns = {"source": [s for s, _ in pairs], "target": [t for _, t in pairs]}
    pa.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def write_bytes(folder, name, data):
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return name


def read(folder, source, replace=()):
    return [pair for chunk in read_pairs(source, folder, replace) for pair in chunk]


def refused(folder, source):
    """The error message, less the folder."""
    with pytest.raises(TransductError) as error:
        read(folder, source)
    message = str(error.value)
    del error  # it holds the files that were being read
    assert "\n" not in message
    return message.replace(f"{folder}/", "")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *given):
        pass


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The folder of copies, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "IN_USE", {})
    places.identity.cache_clear()
    yield tmp_path / "cache" / "transduct" / "copies"
    for handle in places.IN_USE.values():
        os.close(handle)


@pytest.fixture
def server(request, tmp_path):
    """A folder, and its address; a test may name the kind of server."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(getattr(request, "param", Quiet), directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=[0.01], daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
