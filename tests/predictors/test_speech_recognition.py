"""A recogniser in use: files and samples to text, error rates, attention, and what it refuses."""

import json
import logging

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import transduct
from tests.helpers import with_settings
from tests.refusals import refusal
from tests.tasks.test_speech_recognition import DATA, recipe_of
from tests.tones import PATTERN, RATE, encoded, string, tone, write_archive, write_tones
from transduct.data.audio import Features
from transduct.data.files import Refused
from transduct.data.recordings import Recording, SoundSource
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.search import length_penalty
from transduct.inference.batches import flat
from transduct.predictors.speech_recognition import Hearing, Recogniser, Spoken, stacked
from transduct.runs import evaluate, train

INPUTS = [string("1 2 3"), string("4"), string("0 1 2 3", "bela")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    write_tones(folder / "tones.tar", 2, 5)
    recipe = recipe_of(
        folder, data={"leave_out": ["bela"]}, model={"heads": "bands"}, training={"steps": 30}
    )
    train.train(recipe, folder / "run", notify=str)
    return folder / "run"


@pytest.fixture(scope="module")
def model(run):
    return transduct.load(run)


def test_files_and_samples_are_answered_alike(model, tmp_path):
    for i, sound in enumerate(INPUTS):
        (tmp_path / f"{i}.flac").write_bytes(encoded(sound, RATE, "FLAC"))
    read = [Recogniser._sound(model, tmp_path / f"{i}.flac") for i in range(3)]
    paths = [str(tmp_path / f"{i}.flac") for i in range(3)]
    assert model.predict(paths) == model.predict(read)
    assert all(isinstance(text, str) for text in model.predict(paths))


@pytest.mark.parametrize("options", [{}, {"ctc_weight": 0.7}, {"length_penalty": 1.5}])
@torch.inference_mode()
def test_a_score_is_the_decoders_and_ctcs_each_with_its_weight(model, options):
    weight, alpha = options.get("ctc_weight", 0.3), options.get("length_penalty", 0.0)
    for sound, (hypotheses, _) in zip(INPUTS, model._generate(INPUTS, options), strict=True):
        memory, segments = model._encode([sound])
        for each in hypotheses:
            tokens, own = flat([[Tokenizer.BEGIN, *each.tokens]], "cpu")
            hidden = model.model.decode(tokens, own, memory, segments)
            likely = model.model.logits(hidden).log_softmax(-1)
            decoder = float(likely[range(len(likely)), [*each.tokens, Tokenizer.END]].sum())
            lengths = torch.tensor([len(memory)]), torch.tensor([len(each.tokens)])
            text, heard = torch.tensor([each.tokens]), model.model.ctc(memory)[:, None]
            ctc = -float(F.ctc_loss(heard, text, *lengths, Tokenizer.BEGIN, reduction="sum"))
            assert each.score == pytest.approx((1 - weight) * decoder + weight * ctc, abs=1e-3)
            assert each.rank == pytest.approx(
                each.score / length_penalty(len(each.tokens) + 1, alpha)
            )


def test_other_rates_are_resampled(model, tmp_path):
    wave = np.repeat(string("1 2"), 2)
    (tmp_path / "a.wav").write_bytes(encoded(wave, 2 * RATE))
    assert len(model._sound(tmp_path / "a.wav")) == len(wave) // 2
    assert len(model._sound((tmp_path / "a.wav").read_bytes())) == len(wave) // 2


@pytest.mark.parametrize(
    "given, message",
    [
        ("none.wav", r"none\.wav: cannot be read"),
        (b"RIFF", "input 1: not a whole sound file"),
        (tone(1)[:100], "input 1: too short, 0.0125 s"),
        (np.ones(31 * RATE), "input 1: too long, 31 s, expected from 0.025 s to 30 s"),
        (np.full(RATE, np.nan), "input 1: holds samples that are not numbers"),
        (np.zeros(0), "input 1: holds no samples"),
        (
            np.ones((RATE, 2)),
            r"input 1: .* shape \(8000, 2\), float64, expected samples, \(N,\), from",
        ),
        (np.ones(RATE, np.uint8), r"input 1: .* shape \(8000,\), uint8, expected .* scale whole"),
        (np.ones(RATE, complex), "input 1: found an array of .*, complex128, expected samples"),
        ([0.0] * RATE, "input 1: found a list, expected a file's name, its content or an array of"),
        (None, "input 1: found a NoneType, expected"),
    ],
)
def test_what_cannot_be_heard_is_refused(model, given, message):
    with refusal(message):
        model.predict([given])


def test_the_answer_to_what_holds_no_speech_is_empty_and_the_others_stay(model, tmp_path):
    random = np.random.default_rng(1)
    white = random.standard_normal(RATE)
    pink = np.fft.irfft(np.fft.rfft(white) / np.sqrt(np.maximum(np.arange(RATE // 2 + 1), 1)))
    hum = np.sin(2 * np.pi * 50 / RATE * np.arange(RATE)) + 0.01 * white
    (tmp_path / "silent.wav").write_bytes(encoded(np.zeros(RATE, np.float32)))
    none = [np.zeros(RATE), tmp_path / "silent.wav", 0.001 * white, 0.2 * white, pink, 0.5 * hum]
    mixed = [each for pair in zip(none, INPUTS * 2, strict=True) for each in pair]
    found = model.predict(mixed)
    assert found[::2] == [""] * 6
    assert found[1::2] == model.predict(INPUTS) * 2
    assert all(found[1::2])
    asked = model.predict(none, contrast=0.0)
    assert asked[:2] == ["", ""], "silence says nothing, whoever asks"
    assert all(asked[3:])
    with refusal("no speech was found; give a recording"):
        model.attention(0.2 * white)
    with refusal(r"silent, 1\.00 s without a sound; record it"):
        model.attention(np.zeros(RATE))


class Said(Recogniser):
    """A recogniser whose answers are known."""

    def __init__(self, model, answers):
        super().__init__(model.model, model.tokenizer, model.hearing, model.decoding)
        self.answers = answers

    def _generate(self, sounds, options):
        return [([], []) for _ in sounds]

    def _texts(self, found):
        return self.answers


RECORDINGS = [
    Recording("a", tone(1), "1 2 3", "anna"),
    Recording("b", tone(2), "4", "anna"),
    Recording("c", tone(3), "5 6", "bela"),
]


def test_error_rates_are_edits_a_word_and_a_character(model):
    report = Said(model, ["1 2", "4", "5 7"]).evaluate(RECORDINGS)
    # one of four words; a blank and a digit of "1▁2▁3" and "4"
    known = {"word_error_rate": 25.0, "token_error_rate": pytest.approx(100 * 2 / 6)}
    unseen = {"word_error_rate": 50.0, "token_error_rate": pytest.approx(100 / 3)}
    assert report.scores == known | {f"{name}_unseen": rate for name, rate in unseen.items()}
    assert report.outputs == ["1 2", "4", "5 7"]
    assert report.details["speakers"] == {"anna": 25.0, "bela": 50.0}
    assert report.details["utterances"] == 3
    assert set(report.details["ctc_alone"]) == set(report.scores)


def test_blanks_around_and_between_words_are_no_edits(model):
    scores = Said(model, [" 1  2 3 ", "4\n", "5\t6 "]).evaluate(RECORDINGS).scores
    assert [*scores.values()] == [0.0] * 4


def test_models_are_compared(model):
    other = Said(model, ["1 2 3", "9", "5 7"])
    details = Said(model, ["1 2", "4", "5 7"]).evaluate(RECORDINGS, other).details
    assert details["against"]["word_error_rate"] == 25.0
    assert details["p_values"] == dict.fromkeys(details["against"], 1.0)
    right, wrong = ([each.text for each in RECORDINGS] * 8, ["7 8 9", "0", "1 2"] * 8)
    surely = Said(model, wrong).evaluate(RECORDINGS * 8, Said(model, right)).details
    assert set(surely["against"].values()) == {0.0}
    assert all(p < 0.05 for p in surely["p_values"].values())


def test_another_model_hears_at_its_own_rate_whatever_this_one_may_hear(model):
    heard, asked = [], []

    class Other(Said):
        def _generate(self, sounds, options):
            asked.append(options)
            heard.extend(map(len, sounds))
            return super()._generate(sounds, options)

    other = Other(model, ["1 2 3", "9", "5 7"])
    other.hearing = Hearing(Features(rate=2 * RATE, bands=20, window=0.5, fft=8192), 0.1)
    Said(model, ["1 2", "4", "5 7"]).evaluate(RECORDINGS, other, beam=2)
    assert asked == [{"beam": 2}]
    assert heard == [max(RATE, 2 * len(each.samples)) for each in RECORDINGS]  # at least a window


def test_what_is_left_out_is_said(run, tmp_path, caplog):
    write_archive(tmp_path / "a.tar", {"a.wav": encoded(string("1 2")), "b.wav": b""})
    (tmp_path / "a.tsv").write_text("a.wav\t1 2\nb.wav\t3\n")
    with caplog.at_level(logging.WARNING, "transduct"):
        spoken = Spoken(SoundSource("a.tar", "a.tsv"), [], tmp_path, "skip")
        report = transduct.load(run).evaluate(spoken)
    assert (report.details["utterances"], report.details["left_out"]) == (1, {"broken": 1})
    assert "1 left out: b.wav: not a whole sound file" in caplog.text


def test_it_is_measured_on_known_speakers_and_on_those_left_out(run):
    report = evaluate.evaluate(run)
    rates = {"word_error_rate", "token_error_rate"}
    assert set(report.scores) == rates | {f"{name}_unseen" for name in rates}
    assert report.details["utterances"] == 12
    assert set(report.details["speakers"]) == {"anna", "bela"}
    assert report.scores == evaluate.evaluate(run).scores


def test_speakers_left_out_are_looked_for_in_further_corpora(model, run):
    anna = SoundSource("tones.tar", pattern=PATTERN.replace("\\w+", "anna"))
    both = SoundSource("tones.tar", pattern=PATTERN)
    heard = Spoken(anna, [both], run.parent).read(model.hearing, Refused("stop"))
    assert [each.speaker for each in heard] == ["anna"] * 10 + ["bela"] * 10


def test_it_is_measured_on_files(run, tmp_path):
    source, reference = tmp_path / "a.tar", tmp_path / "a.tsv"
    write_archive(source, {"a.wav": encoded(string("1 2")), "b.wav": encoded(string("3"))})
    reference.write_text("a.wav\t1 2\nb.wav\t3\n")
    report = evaluate.evaluate(run, {"source": str(source), "reference": str(reference)})
    assert set(report.scores) == {"word_error_rate", "token_error_rate"}
    assert report.details["utterances"] == 2


def test_attention_has_panels_of_frames_for_each_character(model):
    found = model.attention(INPUTS[0], "1 2")
    cross, ctc, *heads = found.panels()
    assert list(cross.rows) == ["▁", "1", "▁", "2"]
    assert cross.weights.shape == (4, len(cross.columns))
    assert list(ctc.rows) == ["blank", "▁", "1", "2"], "each token once"
    assert ctc.weights.shape == (4, len(ctc.columns))
    assert ctc.weights.equal(found.draw.keywords["ctc"][[0, 1, 2, 4]])
    assert list(cross.columns[:3]) == ["0.00", "0.04", "0.08"]
    assert [head.title for head in heads] == ["head 1: bands 1 to 10", "head 2: bands 11 to 20"]
    assert heads[0].weights.shape == (len(cross.columns), len(cross.columns))
    own = model.attention(INPUTS[0])
    assert "".join(own.target[1:]).replace("▁", " ").strip() == model.predict(INPUTS[:1])[0]
    assert found.weights["decoder.0.cross"].shape[0] == 2
    with refusal("no speech was found; give a recording"):
        model.attention(INPUTS[0], "")
    asked = {"ctc_weight": 0.0, "beam": 1}
    with refusal(r"found an output and options of a search for it \(ctc_weight, beam\)"):
        model.attention(INPUTS[0], "1", **asked)
    same = "".join(model.attention(INPUTS[2], **asked).target[1:])
    assert [same.replace("▁", " ").strip()] == model.predict(INPUTS[2:], **asked)
    found.draw.keywords["bands"] = []
    assert len(found.panels()) == 2, "heads that hear all have none of their own"


def test_a_model_of_other_bands_is_refused(run, tmp_path):
    hearing = json.loads((run / "model" / "config.json").read_text())["hearing"]
    hearing["features"]["bands"] = 16
    with refusal("hears 16 bands, its model 20; they do not belong together"):
        transduct.load(with_settings(run / "model", tmp_path / "m", hearing=hearing))


def test_sounds_are_filled_up_to_whole_tokens():
    first, second = stacked([np.ones((3, 2), np.float32), np.ones((4, 2), np.float32)])
    assert (first[:, 0].tolist(), second[:, 0].tolist()) == ([1, 1, 1, 0], [1, 1, 1, 1])
    assert Hearing().features == Features()
    assert DATA["workers"] == 0
