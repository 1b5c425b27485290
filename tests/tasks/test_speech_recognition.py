"""The speech recognition task: its batches, its loss, what it leaves out, and that it learns."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import transduct
from tests.helpers import ready
from tests.refusals import refusal
from tests.tones import PATTERN, RATE, encoded, string, tone, write_archive, write_tones
from transduct.config import Recipe
from transduct.data.tokenizer import Tokenizer
from transduct.predictors import speech_recognition
from transduct.runs import evaluate, train
from transduct.segments import pad
from transduct.tasks.speech_recognition import (
    SpeechRecognitionTask,
    ctc_frames,
    fill_up,
    make_batch,
)

STRINGS = {"sounds": "tones.tar", "pattern": PATTERN, "join": [2, 4], "strings": 30}
DATA = {
    "train": [STRINGS],
    "valid": {**STRINGS, "strings": 6},
    "test": {**STRINGS, "strings": 6},
    "features": {"rate": RATE, "bands": 20},
    "workers": 0,
}
MODEL = {
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.0,
}
TRAINING = {
    "steps": 4,
    "batch_tokens": 200,
    "warmup": 2,
    "log_every": 1,
    "validate_every": 2,
    "checkpoint_every": 2,
}


def recipe_of(root, **sections):
    data = {**DATA, "root": str(root), **sections.get("data", {})}
    return Recipe(
        "speech_recognition",
        data,
        sections.get("tokenizer", {"kind": "character", "size": 40}),
        {**MODEL, **sections.get("model", {})},
        {**TRAINING, **sections.get("training", {})},
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    write_tones(folder / "tones.tar", 3, 5)
    return folder


def prepared(root, folder, said=str, **sections):
    folder.mkdir(exist_ok=True)
    return ready(SpeechRecognitionTask(recipe_of(root, **sections), folder, said))


@pytest.fixture(scope="module")
def made(root, tmp_path_factory):
    return prepared(
        root, tmp_path_factory.mktemp("run"), data={"ctc": 0.4}, training={"label_smoothing": 0.3}
    )


def test_a_batch_is_flat_with_its_ends_and_beginnings():
    batch = make_batch([np.ones((5, 3), np.float32), np.ones((8, 3), np.float32)], [[5, 6], []])
    begin, end = Tokenizer.BEGIN, Tokenizer.END
    assert batch.features.shape == (16, 3)
    assert batch.features[5:8].abs().max() == 0.0  # filled up to whole tokens
    assert batch.frames.lengths.tolist() == [8, 8]
    assert batch.inputs.tolist() == [begin, 5, 6, begin]
    assert batch.outputs.tolist() == [5, 6, end, end]
    assert batch.text.tolist() == [5, 6]
    assert batch.text_segments.lengths.tolist() == [2, 0]
    assert batch.target_segments.lengths.tolist() == [3, 1]
    assert batch.counts == {"tokens": 4.0, "ctc": 4.0}
    assert batch.tokens == 4


def test_a_batch_is_filled_up_to_a_shape_with_what_does_not_count():
    sounds = [np.ones((40, 3), np.float32), np.ones((8, 3), np.float32)]
    batch = fill_up(make_batch(sounds, [[5, 6], []]), 60)
    assert batch.features.shape == (512, 3)
    assert not batch.features[48:].any()
    assert batch.frames.lengths.tolist()[:4] == [40, 8, 64, 64]
    assert batch.target_segments.lengths.tolist()[:3] == [3, 1, 4]
    assert batch.text_segments.lengths.tolist()[:3] == [2, 0, 6]
    assert batch.counted.tolist() == [1.0] * 4 + [0.0] * 4
    assert batch.heard.tolist() == [1.0] * 2 + [0.0] * (len(batch.frames) - 2)
    assert (batch.tokens, batch.counts) == (12, {"tokens": 4.0, "ctc": 4.0})
    unusual = make_batch([np.ones((400, 3), np.float32)], [[5]])
    assert fill_up(unusual, 60) is unusual


def test_the_loss_is_that_of_the_decoder_and_of_ctc(made):
    task, model = made
    batch = next(task.batches("train", 0, 0, 0, 1))
    terms = task.loss(model, batch)
    assert {name: (count, weight) for name, (_, count, weight) in terms.items()} == {
        "tokens": (batch.target_segments.total, 0.6), "ctc": (batch.target_segments.total, 0.4),
    }  # fmt: skip
    memory, segments = model.encode(batch.features, batch.frames)
    logits = model.logits(model.decode(batch.inputs, batch.target_segments, memory, segments))
    decoder = F.cross_entropy(logits, batch.outputs, reduction="sum", label_smoothing=0.3)
    torch.testing.assert_close(terms["tokens"][0], decoder)
    heard, lengths = (
        pad(model.ctc(memory), segments).transpose(0, 1),
        (segments.lengths, batch.text_segments.lengths),
    )
    ctc = F.ctc_loss(heard, batch.text, *lengths, Tokenizer.BEGIN, reduction="sum")
    torch.testing.assert_close(terms["ctc"][0], ctc, atol=1e-4, rtol=1e-5)


def test_a_text_needs_a_frame_a_token_and_one_between_two_of_a_kind():
    assert [ctc_frames(ids) for ids in ([], [4], [4, 5, 4], [4, 4, 4])] == [0, 1, 3, 5]


def test_the_share_of_transcripts_with_unknown_characters_is_said(root, tmp_path, caplog):
    said = []
    prepared(root, tmp_path, said.append, tokenizer={"kind": "character", "size": 6})
    assert "leaves no room for the 256 bytes" in caplog.text
    [line] = [each for each in said if each.startswith("corpus prepared: ")]
    assert line.endswith("(left out: none); unknown tokens in 60.0 % of transcripts")


def test_recordings_of_a_speaker_left_out_are_not_trained_on(root, tmp_path):
    said = []
    task, _ = prepared(root, tmp_path, said.append, data={"leave_out": ["bela"]})
    assert len(task.corpus) == 3 * 5 * 3  # speeds, digits, recordings
    assert {each.speaker for each in task._validation} == {"anna"}
    assert "corpus prepared: 15 recordings from tones.tar (left out: none)" in said
    nobody = {"leave_out": ["bela", "anna"]}
    for kind in ("byte", "character"):  # the second learns from texts, and finds none
        message = r"no recording is left to train on .*check data.train and data.leave_out"
        with refusal(message):
            prepared(
                root, tmp_path / "none", data={**nobody, "valid": None}, tokenizer={"kind": kind}
            )
    message = (
        r"data.valid: each of its \d+ recordings is of a speaker that data.leave_out "
        r"names; leave one of them in, or"
    )
    with refusal(message):
        prepared(root, tmp_path / "unheard", data=nobody)


def test_each_source_has_a_recording_left_to_train_on(root, tmp_path):
    bela = {**STRINGS, "pattern": PATTERN.replace("\\w+", "bela")}
    with refusal(r"tones\.tar: no recording is left to train on .*data\.leave_out"):
        prepared(root, tmp_path, data={"train": [STRINGS, bela], "leave_out": ["bela"]})


def test_a_speaker_to_leave_out_has_said_something(root, tmp_path):
    with refusal(r"data\.leave_out names 'bella', who has no recording; speakers are: anna, bela"):
        prepared(root, tmp_path / "run", data={"leave_out": ["anna", "bella"]})
    alone = {**STRINGS, "pattern": PATTERN.replace("\\w+", "anna")}
    for part in ("valid", "test"):
        data = {"train": [alone], "valid": None, "test": None, part: STRINGS, "leave_out": ["bela"]}
        task, model = prepared(root, tmp_path / part, data=data)
        assert len(task.corpus) == 45
    assert task.evaluate(model).scores == {}  # nothing to validate on


def test_a_text_longer_than_the_model_can_write_is_refused(root, tmp_path):
    message = (
        r"0_anna_0\.wav: its text, 4 times in a string, has 9 tokens with the end, "
        r"model\.max_length is 8; raise"
    )
    with refusal(message):
        prepared(root, tmp_path / "run", model={"max_length": 8})
    prepared(root, tmp_path / "more", model={"max_length": 9})
    # a corpus prepared for longer texts is read again
    with refusal(message):
        prepared(root, tmp_path / "more", model={"max_length": 8})
    single = {"train": [{"sounds": "tones.tar", "pattern": PATTERN}], "valid": None}
    with refusal(r"wav: its text has 3 tokens with the end, model\.max_length is 2; raise it"):
        prepared(root, tmp_path / "run", model={"max_length": 2}, data=single)


def test_what_is_left_out_or_resampled_is_said(tmp_path):
    members = {f"{i}.wav": encoded(tone(i), RATE if i else 16_000) for i in range(3)}
    members |= {"bad.wav": b"", "brief.wav": encoded(tone(1)[:400])}
    write_archive(tmp_path / "a.tar", members)
    texts = {**{f"{i}.wav": str(i) for i in range(3)}, "bad.wav": "1", "brief.wav": "1 2 3"}
    (tmp_path / "a.tsv").write_text("".join(f"{name}\t{text}\n" for name, text in texts.items()))
    source = {"sounds": "a.tar", "texts": "a.tsv"}
    data = {"train": [source], "valid": source, "test": None}
    with refusal(r"bad\.wav: not a whole sound file.*data\.broken=skip"):
        prepared(tmp_path, tmp_path / "run", data=data)
    said = []
    task, _ = prepared(tmp_path, tmp_path / "run", said.append, data={**data, "broken": "skip"})
    assert any(
        "3 recordings from a.tar, a.tsv (left out: 2 broken); 1 resampled to 8000 Hz" in line
        for line in said
    )
    [line] = [line for line in said if line.startswith("2 left out: bad.wav: not a whole")]
    assert "brief.wav: too short, 1 encoder tokens, its text needs 6 for CTC; check it" in line
    assert len(task.corpus) == 9
    assert any(
        line.startswith("validation: 1 left out: bad.wav: not a whole sound file") for line in said
    )
    numbers = [len(batch.frames) for batch in task.batches("train", 0, 0, 0, 1)]
    assert sum(numbers) == 3


def test_a_recording_is_long_enough_for_its_text_at_every_speed(tmp_path):
    write_archive(tmp_path / "a.tar", {"brief.wav": encoded(np.tile(tone(1), 2)[:2000])})
    (tmp_path / "a.tsv").write_text("brief.wav\t1 2 3\n")
    data = {"train": [{"sounds": "a.tar", "texts": "a.tsv"}], "valid": None, "test": None}
    task, _ = prepared(tmp_path, tmp_path / "run", data={**data, "augment": {"speeds": [0.9, 1.0]}})
    assert len(task.corpus) == 2
    with refusal(r"brief\.wav: too short, 4 encoder tokens, its text needs 6 for CTC"):
        prepared(tmp_path, tmp_path / "run", data={**data, "augment": {"speeds": [0.9, 1.6]}})


def test_validations_search_with_a_beam_of_their_own(made, monkeypatch):
    task, model = made
    beams, beam = [], speech_recognition.beam_search
    monkeypatch.setattr(
        speech_recognition, "beam_search", lambda *given: beams.append(given[0]) or beam(*given)
    )
    assert task.search == {"beam": task.decoding.validation_beam}
    monkeypatch.setattr(task, "search", {"beam": 3})
    task.evaluate(model)
    assert set(beams) == {3}


@pytest.mark.parametrize(
    "sections, message",
    [
        (
            {"data": {"ctc": 0.0}},
            "data.ctc is 0, so that CTC is not learnt; set decoding.ctc_weight to 0",
        ),
        ({"data": {"max_seconds": 0.01}}, "max_seconds is 0.01, must be longer than a window"),
        (
            {"data": {"features": {"rate": RATE, "bands": 21}}, "model": {"heads": "bands"}},
            "bands is 21, must be a mul",
        ),
        (
            {"tokenizer": {"dropout": 0.1}},
            "tokenizer.dropout is 0.1, but sounds have no tokens; set it to 0",
        ),
    ],
)
def test_impossible_recipes_are_refused(sections, message, root, tmp_path):
    with refusal(message):
        SpeechRecognitionTask(recipe_of(root, **sections), tmp_path, str)


def test_a_prepared_corpus_is_taken_again(root, tmp_path):
    said = []
    prepared(root, tmp_path, said.append)
    prepared(root, tmp_path, said.append, data={"ctc": 0.5, "augment": {"gain": 0.0}})
    assert "corpus unchanged: reused 90 rows" in said
    prepared(root, tmp_path, said.append, data={"augment": {"speeds": [1.0]}})
    assert said[-1].startswith("corpus prepared: 30 recordings")


@pytest.mark.slow
def test_it_learns_tones_for_digits(tmp_path):
    """At most 3 % of words wrong in strings of unseen recordings after 20 s of one core."""
    write_tones(tmp_path / "tones.tar", 12, 6)
    write_tones(tmp_path / "unseen.tar", 4, 6, start=100)
    trained_on, test = ({**STRINGS, "join": [1, 3], "strings": count} for count in (600, 60))
    augment = {"speeds": [1.0], "warp": 0.0, "masks": {"times": 0, "bands": 0}}
    data = {
        "train": [trained_on],
        "valid": None,
        "test": {**test, "sounds": "unseen.tar"},
        "augment": augment,
    }
    model = {"d_model": 64, "num_heads": 4, "d_ff": 128, "encoder_layers": 2, "heads": "bands"}
    training = {
        "steps": 600,
        "batch_tokens": 350,
        "warmup": 40,
        "learning_rate": 0.006,
        "schedule": "linear",
    }
    training |= {"log_every": 100, "validate_every": 0, "checkpoint_every": 300}
    recipe = recipe_of(tmp_path, data=data, model=model, training=training)
    lines = []
    train.train(recipe, tmp_path / "run", notify=str, report=lines.append)
    report = evaluate.evaluate(tmp_path / "run")
    assert report.scores["word_error_rate"] <= 3.0, lines[-1]
    loaded = transduct.load(tmp_path / "run")
    assert loaded.predict([string("1 4 2"), string("0 5", "bela")]) == ["1 4 2", "0 5"]
    # where CTC hears each digit: one after another
    ctc = loaded.attention(string("1 4 2")).panels()[1].weights
    places = [int(row.argmax()) for row, piece in zip(ctc[1:], "▁142", strict=True) if piece != "▁"]
    assert places == sorted(set(places))
