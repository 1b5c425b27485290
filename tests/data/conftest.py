"""A corpus of pairs, prepared in small pieces."""

import gzip
import lzma

import numpy as np
import pyarrow as pa
import pytest

from transduct.data import corpus, text
from transduct.data.preparing import prepare
from transduct.data.samples import generate
from transduct.data.sources import DataConfig, TextSource
from transduct.data.tokenizer import Tokenizer

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
