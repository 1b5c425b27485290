"""A prepared corpus holds what plain Python would keep, is reused or rebuilt as it should, and is
never half there."""

import errno
import json
import os
import pickle
import random
import shutil
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from tests.data.conftest import PAIRS, Recorder, texts
from tests.refusals import refusal
from transduct.data import corpus as module
from transduct.data.corpus import Corpus, build, growth, list_array, write_rows
from transduct.data.replacements import Replacement
from transduct.data.samples import generate
from transduct.data.sources import DataConfig, TextSource
from transduct.data.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("small_pieces")


MADE = ["a.s", "a.t", "corpus", "corpus.json"]  # in the folder of a run


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def ragged(lists):
    return np.array([*chain.from_iterable(lists)]), np.array([len(each) for each in lists])


@pytest.mark.parametrize("copy", [lambda x: x, lambda x: pickle.loads(pickle.dumps(x))])
def test_rows_come_in_the_order_asked_for(made, tokenizers, copy):
    corpus = copy(made()[0])
    indices = np.array([99, 3, 3, 0, 57, 98, 4])
    assert texts(corpus, tokenizers, indices) == [PAIRS[i] for i in indices]
    for ids, lengths in corpus.columns(indices):
        assert ids.dtype == lengths.dtype == np.int64
        assert ids.flags.c_contiguous
        assert lengths.flags.c_contiguous
    (ids, lengths), _ = corpus.columns(np.array([], np.int64))
    assert len(ids) == len(lengths) == 0


def test_any_number_of_columns_and_empty_lists(tmp_path):
    draw = random.Random(1)
    rows = [
        [[draw.randrange(2**31) for _ in range(draw.choice([0, 0, 1, 50]))] for _ in range(3)]
        for _ in range(60)
    ]

    def fill(folder):
        chunks = [rows[i : i + 5] for i in range(0, 60, 5)]
        columns = ([ragged(lists) for lists in zip(*chunk)] for chunk in chunks)
        return write_rows(folder, 3, [(1.0, columns)])

    corpus = build(tmp_path / "corpus", {}, fill, Recorder())
    order = draw.sample(range(60), 60)
    for column, (ids, lengths) in enumerate(corpus.columns(np.array(order))):
        assert ids.tolist() == [*chain.from_iterable(rows[i][column] for i in order)]
        assert lengths.tolist() == [len(rows[i][column]) for i in order]
    assert (corpus.weights, corpus.dropped) == ([(0, 60, 1.0)], {})


def test_an_unchanged_corpus_is_reused(made, tmp_path):
    before = made()[0].directory.stat().st_mtime_ns
    corpus, said = made(
        workers=3, valid=TextSource(pairs="v.tsv"), metrics=["chrf"], bleu_tokenize="zh"
    )
    assert said == ["corpus unchanged: reused 100 rows"]
    assert corpus.directory.stat().st_mtime_ns == before
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    manifest["inputs"]["metrics"] = ["bleu"]  # as it was written once
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    assert made()[1] == ["corpus unchanged: reused 100 rows"]
    manifest["inputs"]["something else"] = 3
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    assert made()[1][0] == "corpus prepared again: something else changed"
    moved = tmp_path.with_name("moved")
    shutil.copytree(tmp_path, moved)
    data = DataConfig(train=[TextSource(source="a.s", target="a.t")], root=str(moved))
    manifest = json.loads((moved / "corpus" / "manifest.json").read_text())
    assert manifest["inputs"]["file a.s"] == module.digest_of(Path(data.root) / "a.s")


def test_a_run_that_has_begun_keeps_its_files(made, tmp_path):
    made()
    other = [("new", PAIRS[0][1]), *PAIRS[1:]]
    made(pairs=other)  # nothing has been made for it yet
    (tmp_path / "checkpoints" / "step_0").mkdir(parents=True)
    message = (
        f"^{tmp_path}: file a.s changed since its run began; put back what was there or "
        "choose another --out"
    )
    with refusal(message):
        made()
    assert made(pairs=other)[1] == ["corpus unchanged: reused 100 rows"]
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    manifest["inputs"]["file a.s"] = "as when it lay elsewhere"
    (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    assert made(pairs=other)[1][0] == "corpus prepared again: file a.s changed", (
        "and it is the same corpus"
    )
    (tmp_path / "corpus" / "manifest.json").write_text("{")
    assert made(pairs=other)[1][0].startswith("corpus prepared again: it is damaged")
    shutil.rmtree(tmp_path / "corpus")  # to make room
    message = f"^{tmp_path}: what its corpus is made of has changed since its run began; put back"
    with refusal(message):
        made()
    assert made(pairs=other)[1][0].startswith("corpus prepared: 100 pairs")
    (tmp_path / "corpus.json").unlink()  # of a run begun by an earlier version
    with refusal(r"file a\.s changed since its run began"):
        made()


def test_a_corpus_made_elsewhere_is_opened_as_it_is(made, tmp_path):
    made()
    with module.made_elsewhere():
        corpus, said = made(pairs=[("new", PAIRS[0][1]), *PAIRS[1:]])
        assert (len(corpus), said) == (len(PAIRS), [])
        shutil.rmtree(tmp_path / "corpus")
        with refusal("corpus: not a prepared corpus"):
            made()
    assert made()[1][0].startswith("corpus prepared: 100 pairs")


def test_whatever_changes_the_corpus_is_noticed_and_named(made, tmp_path, tokenizers):
    made()
    cases = {
        "max_length": {"max_length": 100},
        "max_length, max_ratio": {"max_ratio": 5.0},
        "drop_duplicates, max_ratio": {"drop_duplicates": False},
        "drop_duplicates, held_out": {"held_out": 3},
        "file a.s, held_out": {"pairs": [("new", PAIRS[0][1]), *PAIRS[1:]]},
        "file a.s, the source tokenizer": {"tokenizers": (tokenizers[1], tokenizers[1])},
        "the source tokenizer, train": {
            "train": [TextSource(source="a.s", target="a.t", weight=2.0)]
        },
        "replace, train": {"replace": [Replacement("both", "a", "b")]},
    }
    for changed, settings in cases.items():
        _, said = made(**settings)
        assert said[0] == f"corpus prepared again: {changed} changed"
        kept = (
            said[-1]
            .replace("prepared: ", "unchanged: reused ")
            .split(" (")[0]
            .replace("pairs", "rows")
        )
        assert made(**settings)[1] == [kept]


def damage(path, change):
    data = path.read_bytes()
    path.write_bytes(change(data))


@pytest.mark.parametrize(
    "name", ["shard_00000.arrow", "shard_00001.arrow", "lengths.int32", "manifest.json"]
)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-9],
        lambda data: b"",
        lambda data: data[:300] + bytes([data[300] ^ 64]) + data[301:],
    ],
    ids=["truncated", "emptied", "one bit flipped"],
)
def test_damage_is_noticed_and_mended(made, tokenizers, name, change):
    corpus, _ = made()
    damage(corpus.directory / name, change)
    corpus, said = made()
    assert said[0].startswith("corpus prepared again: ")
    assert texts(corpus, tokenizers) == PAIRS


def test_a_missing_shard_is_noticed(made):
    corpus, _ = made()
    (corpus.directory / "shard_00001.arrow").unlink()
    assert made()[1][0].startswith("corpus prepared again: it is damaged ([Errno 2] No such file")


def test_opening_what_is_no_corpus_is_refused(made, tmp_path):
    with refusal(r"nothing: not a prepared corpus \(.*\); prepare it again"):
        Corpus(tmp_path / "nothing")
    corpus, _ = made()
    damage(corpus.directory / "shard_00000.arrow", lambda data: data[:-9])
    with refusal("corpus: not a prepared corpus"):
        Corpus(corpus.directory)
    shutil.copy(corpus.directory / "shard_00001.arrow", corpus.directory / "shard_00000.arrow")
    with refusal(r"corpus: holds \d+ of 100 rows; prepare it again"):
        Corpus(corpus.directory)


def test_a_prepare_that_fails_leaves_the_old_corpus_and_nothing_else(made, tmp_path):
    made()
    before = names_in(tmp_path)
    pairs = [*PAIRS[:50], ("a\nb", "c")]  # one line too many on one side, met when half is written
    with refusal("has 52 lines and"):
        made(pairs)
    assert names_in(tmp_path) == before
    assert made()[1] == ["corpus unchanged: reused 100 rows"]


def test_what_a_killed_prepare_left_is_removed_though_the_corpus_may_be_whole(made, tmp_path):
    for outcome in ("corpus prepared: 100 pairs", "corpus unchanged: reused 100 rows"):
        for name in (".corpus.1.part", ".corpus.1.old.part"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "shard_00009.arrow").write_text("half")
        corpus, said = made()
        assert said[-1].startswith(outcome)
        assert names_in(tmp_path) == MADE
        assert not (corpus.directory / "shard_00009.arrow").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_left_clean(made, tmp_path, monkeypatch, number):
    class Full:
        def __init__(self, file, schema):
            self.batches = 0

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def write_batch(self, batch):
            self.batches += 1
            if self.batches == 3:
                raise OSError(number, "no room")

    monkeypatch.setattr(module.pa.ipc, "new_file", Full)
    with refusal("corpus.*: the disk is full; nothing was changed there: free some space and run"):
        made()
    assert names_in(tmp_path) == ["a.s", "a.t"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_arrow_reports_a_full_disk_as_the_system_does(tmp_path):
    (tmp_path / "lengths.int32").touch()
    (tmp_path / "shard_00000.arrow").symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        write_rows(tmp_path, 1, [(1.0, [[(np.arange(300_000), np.array([300_000]))]])])
    assert error.value.errno == errno.ENOSPC


def test_other_failures_of_the_system_are_not_called_a_full_disk(tmp_path):
    def fill(folder):
        raise PermissionError(errno.EACCES, "not yours")

    with refusal(r"corpus: cannot be written \(not yours\); choose another place"):
        build(tmp_path / "corpus", {}, fill, Recorder())
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_files_is_left_alone(made, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.tex").touch()
    with refusal("corpus: exists and is not a corpus; choose a new folder, or empty this one"):
        made()
    (tmp_path / "corpus" / "thesis.tex").unlink()
    with refusal("exists and is not a corpus"):
        build(tmp_path / "a.s", {}, lambda folder: {}, Recorder())
    assert len(made()[0]) == 100


def test_a_link_to_another_disk_stays_one(made, tmp_path, tokenizers):
    (tmp_path / "disk").mkdir()
    (tmp_path / "corpus").symlink_to(tmp_path / "disk")
    for pairs in (PAIRS, PAIRS[:50]):
        corpus, _ = made(pairs)
        assert texts(corpus, tokenizers) == pairs
        assert corpus.directory == tmp_path / "disk"
    assert (tmp_path / "corpus").is_symlink()
    assert names_in(tmp_path) == [*MADE, "disk"]


def test_a_missing_file_is_refused(made):
    with refusal(r"none: cannot be read \(No such file.*\); correct data.train or data.root"):
        made(train=[TextSource(source="none", target="a.t")])


def test_a_folder_is_another_once_a_file_in_it_is(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("one")
    before = module.digest_of(tmp_path)
    assert before == module.digest_of(tmp_path)
    (tmp_path / "sub" / "a").write_text("three")
    changed = module.digest_of(tmp_path)
    (tmp_path / "sub" / "a").rename(tmp_path / "sub" / "b")
    renamed = module.digest_of(tmp_path)
    (tmp_path / "c").write_text("")
    assert (
        len({repr(found) for found in (before, changed, renamed, module.digest_of(tmp_path))}) == 4
    )


def test_a_folder_is_another_once_what_is_behind_its_links_is(tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "a").write_text("one")
    (tmp_path / "all").mkdir()
    found = [module.digest_of(tmp_path / "all")]
    (tmp_path / "all" / "cat").symlink_to(tmp_path / "pool")
    found.append(module.digest_of(tmp_path / "all"))
    (tmp_path / "pool" / "a").write_text("three")
    found.append(module.digest_of(tmp_path / "all"))
    (tmp_path / "all" / "b").symlink_to("gone")
    found.append(module.digest_of(tmp_path / "all"))
    assert len({repr(each) for each in found}) == 4


def test_the_digest_of_a_plain_folder_stays_what_it_was(tmp_path):
    """Otherwise every corpus of pictures would be prepared again."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_text("one")
    stat = (tmp_path / "cat" / "1.png").stat()
    listing = [("cat/1.png", stat.st_size, stat.st_mtime_ns)]
    assert module.digest_of(tmp_path) == {
        "files": 1,
        "listing": blake2b(repr(listing).encode()).hexdigest(),
    }


def test_what_is_validated_on_is_another_once_its_files_are(tmp_path):
    def digest(**named):
        return module.validation_digest(DataConfig(train=[source], root=str(tmp_path), **named))

    source = TextSource(source="a", target="b")
    assert digest() == ""
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("eins")
    before = digest(valid=source)
    assert digest(valid=replace(source, weight=1.0)) == before
    (tmp_path / "b").write_text("zwei")
    assert digest(valid=source) != before
    (tmp_path / "b").write_text("eins")
    assert digest(valid=source) == before


def test_a_folder_that_is_validated_on_is_the_same_where_it_was_copied_to(tmp_path):
    digests = []
    for place, time, content in (("a", 1, "one"), ("b", 2, "one"), ("b", 2, "three")):
        (tmp_path / place / "cats").mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "cats" / "1.png").write_text(content)
        os.utime(tmp_path / place / "cats" / "1.png", (time, time))
        data = SimpleNamespace(
            valid=SimpleNamespace(files=lambda: ["cats"]), root=str(tmp_path / place)
        )
        digests.append(module.validation_digest(data))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", [list, np.array])
def test_rows_become_a_column(kind):
    flat, lengths = module.ragged([kind(row) for row in ([5, 6], [7], [8, 9, 10])])
    assert (flat.tolist(), lengths.tolist()) == ([5, 6, 7, 8, 9, 10], [2, 1, 3])
    flat, lengths = module.ragged([])
    assert (flat.dtype, len(flat), len(lengths)) == (np.int32, 0, 0)


@pytest.mark.parametrize("rows", [[], [[]], [[5, 6], [], [8, 9, 10]]])
def test_a_column_is_its_rows_again(rows):
    assert [row.tolist() for row in module.lists_of(module.ragged(rows))] == rows


def test_no_more_words_are_written_at_once_than_have_places():
    """32-bit offsets would overflow to negative numbers."""
    with pytest.raises(
        ValueError, match=r"2,147,483,648 words in a batch of Arrow.s, at most 2,147,483,647"
    ):
        list_array(np.empty(0, np.int32), np.array([2**31 - 1, 1]))


class Held:
    """A corpus of two columns in memory."""

    def __init__(self, *columns):
        self.held = columns
        self.lengths = np.array([[len(row) for row in column] for column in columns]).T

    def columns(self, numbers):
        picked = [[column[number] for number in numbers] for column in self.held]
        return [
            (np.concatenate([[], *rows]).astype(np.int64), np.array([len(row) for row in rows]))
            for rows in picked
        ]


@pytest.fixture(scope="module")
def names():
    return [source for source, _ in generate("number_names", 3000)]


@pytest.fixture(scope="module")
def tokenizer(names):
    return Tokenizer.train(names, "bpe", 200)


@pytest.mark.parametrize("beside", [0, 1, 3])
def test_it_is_what_dropout_does_on_average(names, tokenizer, beside):
    rows = tokenizer.encode(names)
    corpus, rate = Held(rows, [[]] * len(rows)), 0.2
    random = Random(5)
    drawn = [tokenizer.resegment(row, rate, random) for row in rows]
    expected = sum(len(row) + beside for row in drawn) / sum(len(row) + beside for row in rows)
    assert expected > 1.15
    found = growth(corpus, [0], beside, tokenizer, rate)
    assert (
        found
        == growth(corpus, [0, 1], beside, tokenizer, rate)
        == pytest.approx(expected, rel=0.02)
    )
    assert growth(corpus, [1], beside, tokenizer, rate) == 1.0


def test_nothing_grows_where_nothing_is_dropped_or_there(names, tokenizer):
    assert growth(Held(tokenizer.encode(names[:5])), [0], 1, tokenizer, 0.0) == 1.0
    assert growth(Held([]), [0], 1, tokenizer, 0.5) == 1.0


def test_rows_from_all_over_the_corpus_are_looked_at(tokenizer):
    long, short = tokenizer.encode(["nine hundred ninety-nine million", "one"])
    ordered = Held([long] * 5000 + [short] * 5000)
    alone = (
        growth(Held([long]), [0], 1, tokenizer, 1.0),
        growth(Held([short]), [0], 1, tokenizer, 1.0),
    )
    assert min(alone) < growth(ordered, [0], 1, tokenizer, 1.0) < max(alone)
