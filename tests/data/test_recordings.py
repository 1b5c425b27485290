"""Recordings are prepared once; what an utterance is made of depends on (seed, epoch, example)
alone."""

from dataclasses import replace
from unicodedata import normalize

import numpy as np
import pytest

from tests.refusals import refusal
from tests.tones import PATTERN, RATE, encoded, tone, write_archive, write_tones
from transduct.data import recordings as utterances_of
from transduct.data.audio import Features, filterbanks, resampled
from transduct.data.corpus import build
from transduct.data.files import Refused, unpack
from transduct.data.recordings import (
    FADE,
    UNCHANGED,
    Augment,
    Recording,
    SoundSource,
    Tally,
    Utterances,
    at_rate,
    background_noise,
    fixed_utterances,
    read_recordings,
    spoken,
    tokens_of,
    write_recordings,
)
from transduct.predictors.speech_recognition import Hearing, RecordingsConfig

FEATURES = Features(rate=RATE, bands=40)
JOINED = SoundSource("tones.tar", pattern=PATTERN, join=[3, 5], strings=40)
PLAIN = SoundSource("tones.tar", pattern=PATTERN)


def read(source, root, policy="stop", features=FEATURES):
    found = Tally(Refused(policy))
    return list(read_recordings(source, root, features, 30.0, found)), found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    write_tones(folder / "tones.tar", 3, 4)
    return folder


def make_corpus(root, folder, sources, augment):
    def fill(into):
        return write_recordings(
            into, [iter(read(s, root)[0]) for s in sources], RATE, augment.speeds
        )

    return Utterances(build(folder, {}, fill, str), sources, FEATURES, augment)


@pytest.fixture(scope="module")
def utterances(root, tmp_path_factory):
    return make_corpus(
        root, tmp_path_factory.mktemp("corpus") / "corpus", [JOINED, PLAIN], Augment()
    )


def test_names_say_text_and_speaker_and_choose_files(root):
    recordings, found = read(
        SoundSource("tones.tar", pattern=r"^(?P<text>[12])_(?P<speaker>\w+)_\d"), root
    )
    assert {(each.text, each.speaker) for each in recordings} == {
        (t, s) for t in "12" for s in ("anna", "bela")
    }
    assert found.dropped == {"broken": 0, "not_fitting_the_pattern": 12}
    alone, _ = read(SoundSource("tones.tar", pattern=r"^(?P<text>0)_anna_0"), root)
    assert [(each.name, each.speaker) for each in alone] == [("0_anna_0.wav", "")]
    np.testing.assert_allclose(alone[0].samples, tone(0), atol=2**-15)


def test_texts_come_from_a_file(root, tmp_path):
    write_archive(
        tmp_path / "a.tar", {"a.wav": encoded(tone(1)), "b.flac": encoded(tone(2), 16_000, "FLAC")}
    )
    (tmp_path / "a.tsv").write_text("b.flac\tone two\tbela\na.wav\tone\n")
    recordings, found = read(SoundSource("a.tar", "a.tsv"), tmp_path)
    assert [(each.name, each.text, each.speaker) for each in recordings] == [
        ("a.wav", "one", ""), ("b.flac", "one two", "bela"),
    ]  # fmt: skip
    assert found.resampled == 1
    assert len(recordings[1].samples) == pytest.approx(len(tone(2)) / 2, abs=1)


def test_blanks_around_a_name_make_no_other_speaker(tmp_path):
    write_archive(tmp_path / "a.tar", {f"{i}.wav": encoded(tone(i)) for i in range(4)})
    (tmp_path / "a.tsv").write_text(
        "0.wav\tone\ttheo\n1.wav\tone\ttheo \n2.wav\tone\t \xa0theo\n3.wav\tone\t \n"
    )
    recordings, _ = read(SoundSource("a.tar", "a.tsv"), tmp_path)
    assert [each.speaker for each in recordings] == ["theo", "theo", "theo", ""]


def test_a_pattern_that_finds_no_text_is_named(root):
    source = SoundSource("tones.tar", pattern=r"(?P<text>x?)_anna")
    with refusal(r"0_anna_0\.wav: has no text where the pattern looks; rename it"):
        read(source, root)


BAD = {
    "broken.wav": (b"RIFFxxxx", "broken.wav: not a whole sound file"),
    "silent.wav": (encoded(np.zeros(4000, np.float32)), "silent.wav: silent"),
    "short.wav": (
        encoded(tone(1)[:100]),
        r"short.wav: too short, 0.0125 s, expected from 0.025 s to 30 s",
    ),
    "long.wav": (
        encoded(np.tile(tone(1), 200)),
        r"long.wav: too long, 3.\.\d+ s by its header, expected",
    ),
    "unsaid.wav": (encoded(tone(1)), "unsaid.wav: has no text in a.tsv"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_stops_or_is_left_out_by_name(name, tmp_path):
    data, message = BAD[name]
    write_archive(tmp_path / "a.tar", {"good.wav": encoded(tone(1)), name: data})
    (tmp_path / "a.tsv").write_text(
        "good.wav\tone\n" + ("" if name == "unsaid.wav" else f"{name}\ttwo\n")
    )
    source = SoundSource("a.tar", "a.tsv")
    with refusal(message + ".*or leave such out with data.broken=skip"):
        read(source, tmp_path)
    recordings, found = read(source, tmp_path, "skip")
    assert [each.name for each in recordings] == ["good.wav"]
    assert found.dropped["broken"] == 1
    assert name in found.refused.summary()


def test_a_sound_that_cannot_be_read_is_left_out_and_counts_once(tmp_path):
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "good.wav").write_bytes(encoded(tone(1)))
    (tmp_path / "sounds" / "gone.wav").symlink_to("nowhere.wav")
    (tmp_path / "a.tsv").write_text("good.wav\tone\ngone.wav\ttwo\n")
    for source in (
        SoundSource("sounds", "a.tsv"),
        SoundSource("sounds", pattern="(?P<text>.+)[.]wav"),
    ):
        with refusal(r"its link leads nowhere.*or leave such out with data.broken="):
            read(source, tmp_path)
        recordings, found = read(source, tmp_path, "skip")
        assert [each.name for each in recordings] == ["good.wav"]
        assert found.dropped == {"broken": 1, "not_fitting_the_pattern": 0}


def test_a_text_without_a_sound_is_refused(tmp_path):
    write_archive(tmp_path / "a.tar", {"good.wav": encoded(tone(1))})
    (tmp_path / "a.tsv").write_text("good.wav\tone\ngone.wav\ttwo\n")
    with refusal(r"'gone\.wav' is not there as WAV or FLAC, but has a text in a\.tsv"):
        read(SoundSource("a.tar", "a.tsv"), tmp_path)
    assert len(read(SoundSource("a.tar", "a.tsv"), tmp_path, "skip")[0]) == 1


def test_a_source_without_a_recording_is_refused(root):
    with refusal("no recording left to use; check its files and the pattern"):
        read(SoundSource("tones.tar", pattern="(?P<text>never)"), root)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({}, "give texts, a file of lines of file and text, or pattern: one of them"),
        ({"texts": "a", "pattern": "(?P<text>.)"}, "give texts"),
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": "(.)"}, r"must have a group \(\?P<text>...\)"),
        ({"pattern": "(?P<text>.)", "columns": [0, 1]}, "columns is .*, must be those of file, te"),
        ({"texts": "a", "columns": ["path"]}, "columns is .*, must be those of file, text and"),
        ({"texts": "a", "join": [3]}, "join is \\[3\\]; give the least and the largest"),
        ({"texts": "a", "join": [0, 2]}, "join is"),
        ({"texts": "a", "join": [3, 7]}, "strings is 0; say how many an epoch holds"),
        ({"texts": "a", "strings": 7}, "strings is 7; say how many"),
    ],
)
def test_impossible_sources_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        SoundSource("a.tar", **wrong)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"speeds": []}, "speeds is \\[\\], must have at least one factor"),
        ({"noise": [50.0, 10.0]}, "noise is .*, must be the lowest and the highest dB"),
        ({"noise": [50.0]}, "noise is .*, must be the lowest and the highest dB"),
    ],
)
def test_impossible_changes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Augment(**wrong)


def test_the_pitch_is_moved_both_ways(utterances, monkeypatch):
    def warped(samples, features, warp):
        warps.append(warp)
        return filterbanks(samples, features, warp)

    warps = []
    monkeypatch.setattr(utterances_of, "filterbanks", warped)
    for number in range(30):
        utterances.make(1, 1, number)
    assert 0.9 <= min(warps) < 0.95 < 1.05 < max(warps) <= 1.1


def test_recordings_are_kept_at_every_speed(root, utterances):
    recordings, _ = read(PLAIN, root)
    assert utterances.samples.shape == (2 * len(recordings), 3)
    for speed, samples in zip([0.9, 1.0, 1.1], utterances.samples[0], strict=True):
        assert samples == pytest.approx(len(recordings[0].samples) / speed, abs=2)


def test_a_loud_recording_is_cut_off_and_does_not_wrap(tmp_path):
    loud = np.where(np.arange(4000) % 200 < 100, 1.0, -1.0).astype(np.float32)
    faster = resampled(loud, round(1.1 * RATE), RATE)
    assert np.abs(faster).max() > 1.05

    def fill(into):
        return write_recordings(into, [iter([Recording("a.wav", loud, "a", "")])], RATE, [1.1])

    _, (words, _) = build(tmp_path / "corpus", {}, fill, str).columns(np.array([0]))
    samples = unpack(words, len(faster), np.int16) / 32768.0
    np.testing.assert_allclose(samples, faster.clip(-1.0, 1.0), atol=2**-15)


def test_an_utterance_depends_on_seed_epoch_and_number_alone(utterances, root, tmp_path):
    again = make_corpus(root, tmp_path / "corpus", [JOINED, PLAIN], Augment())
    for number in (0, 7, 39, 40, 60):
        mel, text = utterances.make(1, 2, number)
        other, same = again.make(1, 2, number)
        np.testing.assert_array_equal(mel, other)
        assert text == same
    assert (
        len({utterances.make(seed, epoch, 3)[0].tobytes() for seed in (1, 2) for epoch in (0, 1)})
        == 4
    )


def test_lengths_are_known_before_anything_is_made(utterances):
    lengths = utterances.tokens(3, 1)
    assert len(lengths) == len(utterances) == 40 + 24
    for number in range(len(utterances)):
        assert -(-len(utterances.make(3, 1, number)[0]) // 4) == lengths[number]


def test_a_string_is_of_one_speaker_and_as_long_as_was_said(utterances, root):
    recordings, _ = read(PLAIN, root)
    counts = set()
    for number in range(40):
        drawn = utterances.draw(1, 0, number)
        assert len({recordings[i].speaker for i in drawn.recordings}) == 1
        assert utterances.make(1, 0, number)[1] == " ".join(
            recordings[i].text for i in drawn.recordings
        )
        counts.add(len(drawn.recordings))
        assert len(drawn.pauses) == len(drawn.recordings) + 1
        assert (drawn.pauses >= 0.05 * RATE - 1).all()
        assert (drawn.pauses <= 0.35 * RATE).all()
    assert counts == {3, 4, 5}


def test_without_changes_a_recording_is_what_was_read(root, tmp_path):
    recordings, _ = read(PLAIN, root)
    plain = make_corpus(root, tmp_path / "corpus", [PLAIN], UNCHANGED)
    for number in (0, 5):
        mel, text = plain.make(1, 0, number)
        samples = recordings[number].samples
        np.testing.assert_allclose(
            mel, filterbanks(np.append(samples, np.zeros(len(samples) % 2)), FEATURES), atol=1e-3
        )
        assert text == recordings[number].text


def test_a_joint_does_not_click():
    steady = np.full(2000, 0.5, np.float32)  # begins and ends in a step
    random = np.random.default_rng(1)
    whole = spoken([steady, steady], np.array([100, 50, 100]), UNCHANGED, RATE, random)
    assert len(whole) == 4250
    spoken_parts = [slice(100, 2100), slice(2150, 4150)]
    for part in spoken_parts:
        assert np.abs(np.diff(whole[part])).max() <= 0.5 / (FADE * RATE - 1) + 1e-6
        assert whole[part][0] == whole[part][-1] == 0.0
        np.testing.assert_array_equal(whole[part][100:1900], steady[100:1900])


@pytest.mark.parametrize("size", [5, 79, 80, 81, 5000])
def test_the_background_noise_of_a_recording_is_a_percentile_of_its_loudness(size):
    sound = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    parts = [part for part in np.split(sound, range(80, size, 80)) if len(part) == min(80, size)]
    expected = np.percentile([np.sqrt(np.mean(part**2)) for part in parts], 10)
    assert background_noise(sound, 8000) == pytest.approx(expected, rel=1e-6)


def test_a_pause_is_as_noisy_as_the_recording_before_it(monkeypatch):
    monkeypatch.setattr(utterances_of, "HUSH", 0.0)
    random = np.random.default_rng(1)
    loud, soft = tone(1), 0.1 * tone(2)
    loud[-600:] = 0.05 * random.standard_normal(600)  # what is quietest in it
    whole = spoken([loud, soft], np.array([4000, 4000, 4000]), UNCHANGED, RATE, random)
    pauses = [whole[:4000], whole[4000 + len(loud) : 8000 + len(loud)], whole[-4000:]]
    expected = [background_noise(sound, RATE) for sound in (loud, loud, soft)]
    assert [pause.std() for pause in pauses] == pytest.approx(expected, rel=0.05)
    assert background_noise(loud, RATE) == pytest.approx(0.05, rel=0.2)
    monkeypatch.undo()
    levels = [
        spoken([loud], np.array([4000, 0]), UNCHANGED, RATE, random)[:4000].std() for _ in range(30)
    ]
    hushed = 20 * np.log10(np.array(levels) / expected[0])
    assert -20.5 < hushed.min() < -15 < -5 < hushed.max() < 0.5


def test_noise_is_as_loud_as_was_said():
    random = np.random.default_rng(1)
    sound = tone(3)
    noisy = (
        spoken([sound], np.zeros(2, int), replace(UNCHANGED, noise=[20.0, 20.0]), RATE, random)
        - sound
    )
    assert 20 * np.log10(np.std(sound) / np.std(noisy)) == pytest.approx(20.0, abs=0.5)
    for seed in range(5):  # whatever the gain
        gained = replace(UNCHANGED, gain=20.0)
        plain, noisy = (
            spoken([sound], np.zeros(2, int), each, RATE, np.random.default_rng(seed))
            for each in (gained, replace(gained, noise=[20.0, 20.0]))
        )
        assert 20 * np.log10(np.std(plain) / np.std(noisy - plain)) == pytest.approx(20.0, abs=0.5)
    gains = [
        np.std(spoken([sound], np.zeros(2, int), replace(UNCHANGED, gain=6.0), RATE, random))
        for _ in range(50)
    ]
    spread = 20 * np.log10(np.array(gains) / np.std(sound))
    assert -6.001 <= spread.min() < -3 < 3 < spread.max() <= 6.001


def test_fixed_utterances_are_the_same_for_ever(root):
    recordings, _ = read(JOINED, root)
    once, again = (list(fixed_utterances(recordings, JOINED, RATE)) for _ in range(2))
    assert len(once) == 40
    assert {each.speaker for each in once} == {"anna", "bela"}
    for one, other in zip(once, again, strict=True):
        assert (one.name, one.text) == (other.name, other.text)
        np.testing.assert_array_equal(one.samples, other.samples)
    assert list(fixed_utterances(recordings, PLAIN, RATE)) == recordings
    first = Recording(*once[0])
    assert first.text.split() == [name[0] for name in first.name.split()]


def test_encoder_tokens_stand_for_four_frames():
    assert [tokens_of(FEATURES, 200 + 80 * n) for n in range(6)] == [1, 1, 1, 1, 2, 2]
    assert len(at_rate(tone(1), 16_000, FEATURES, 30.0, "a")) == pytest.approx(
        len(tone(1)) / 2, abs=1
    )
    assert len(resampled(tone(1), RATE, RATE)) == len(tone(1))


def test_a_sound_whose_header_did_not_say_that_it_is_too_long_is_refused():
    sound = np.zeros(2 * RATE, np.float32)
    assert len(at_rate(sound, RATE, FEATURES, 2.0, "a")) == len(sound)
    with refusal(r"a: too long, 2 s, expected from 0\.025 s to 1 s; cut it anew"):
        at_rate(sound, RATE, FEATURES, 1.0, "a")


@pytest.mark.parametrize("held, asked", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_and_speakers_are_one_in_either_form_of_unicode(tmp_path, held, asked):
    """Of files, in tables, in patterns and in `leave_out`."""
    folder = tmp_path / "sounds"
    folder.mkdir()
    (folder / normalize(held, "일_한나.wav")).write_bytes(encoded(tone(1)))
    line = "\t".join(normalize(asked, each) for each in ("일_한나.wav", "one", "한나"))
    (tmp_path / "texts").write_text(f"{line}\n", encoding="utf-8")
    pattern = normalize(asked, r"(?P<text>일)_(?P<speaker>.*)\.wav")
    for source in (SoundSource("sounds", "texts"), SoundSource("sounds", pattern=pattern)):
        [recording], _ = read(source, tmp_path)
        assert recording.speaker == "한나"
    config = RecordingsConfig([PLAIN], leave_out=[normalize(asked, "한나")])
    assert config.leave_out == Hearing(FEATURES, 1.0, config.leave_out).leave_out == ["한나"]
    assert Hearing(FEATURES, 1.0, [normalize(asked, "한나")]).leave_out == ["한나"]
