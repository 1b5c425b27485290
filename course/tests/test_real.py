"""Real text becomes ids, pairs and hidden words."""

from itertools import islice

import torch
from transduct_course import real, small

from course.tests import datasets


def test_words_keep_apostrophes_and_marks_stand_alone():
    assert real.words_of("It didn't work, did it?") == [
        *("It", "didn't", "work", ",", "did", "it", "?")
    ]


def test_the_commonest_words_come_first():
    assert real.commonest([["b", "a"], ["c", "c", "a"]], 2) == ["a", "c"]


def test_hidden_words_are_the_labels_and_others_have_none():
    rows = [[1, 2, 3, 4], [5]]
    for batch in islice(real.hidden(rows, 99, 1, 6), 5):
        masked = batch.tokens == 99
        assert torch.equal(masked, batch.labels >= 0)
        for start, stop in zip(batch.segments.offsets, batch.segments.offsets[1:]):
            whole = torch.where(masked, batch.labels, batch.tokens)[start:stop].tolist()
            assert whole in rows
            assert masked[start:stop].any()


def test_guessing_hidden_words_is_learnt():
    model = small.seeded(1, lambda: small.bert_of(8, 0, d_model=16, d_ff=16, head="masked"))
    data = real.hidden([[3, 4, 5, 6, 7, 8]], 11, 1, 8)
    _, losses = small.train(model, data, 40, 1e-2, loss=real.hidden_loss)
    assert losses[-1] < 0.5 * losses[0]


def test_long_pairs_are_left_out(tmp_path):
    for name, lines in (
        ("en.gz", ["one two three", "one", "two", ""]),
        ("de.gz", ["a", "b", "c", "d"]),
    ):
        datasets.write(tmp_path / name, lines, 4)
    paths = (tmp_path / "en.gz", tmp_path / "de.gz")
    assert real.short_pairs(paths, 2, 9) == [("one", "b"), ("two", "c")]
    assert real.short_pairs(paths, 2, 1) == [("one", "b")]


def test_captions_are_pieces_that_can_be_translated_and_scored(tmp_path):
    text = real.captions(datasets.write_all(tmp_path) / "multi30k", 30, 4)
    assert [len(text.train), len(text.test)] == [30, 4]
    assert text.tokenizer.decode([text.test[0][1]]) == [text.texts[0][1]]
    assert text.vocabulary == text.tokenizer.size - small.FIRST
    assert (
        next(small.choices(text.train, 5, "a")).counts
        == next(small.choices(text.train, 5, "a")).counts
    )
    shape = {"d_model": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = small.seeded(1, lambda: small.transformer_of(text.vocabulary, **shape))
    small.train(model, small.choices(text.train, 8, "a"), 50, 1e-2)
    found = real.scored(model, text)
    assert found["chrf"] > 60
    assert found["loss"] < 1
