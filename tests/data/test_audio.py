"""Sounds are read or refused by name; filterbanks are Whisper's and Kaldi's; what is drawn stays in
its bounds."""

import io

import numpy as np
import pytest
import soundfile
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from tests.refusals import refusal
from tests.tones import RATE, encoded, string, tone
from transduct.data import audio
from transduct.data.audio import (
    Features,
    Masks,
    contrast,
    dithered,
    filterbanks,
    log_mel,
    masked,
    normalised,
    read_sound,
    resampled,
)


@pytest.fixture
def noise():
    """Two seconds of noise that swells from nothing, 16 kHz."""
    random = np.random.default_rng(1)
    return (0.2 * random.standard_normal(32_000) * np.linspace(0.0, 1.0, 32_000) ** 3).astype(
        np.float32
    )


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_file_is_read_as_it_was_written(kind, tmp_path):
    samples = tone(3)
    data = encoded(samples, RATE, kind)
    found, rate = read_sound(data, "a")
    assert rate == RATE
    np.testing.assert_allclose(found, samples, atol=2**-15)
    (tmp_path / "a.wav").write_bytes(data)
    np.testing.assert_array_equal(read_sound(tmp_path / "a.wav", "a")[0], found)


@pytest.mark.parametrize("kind", ["kaldi", "whisper"])
def test_speech_changes_in_loudness_and_steady_noise_does_not(kind):
    features = Features(kind=kind, rate=RATE, bands=20)
    noise = np.random.default_rng(1).standard_normal(RATE).astype(np.float32)
    for level in (1e-3, 0.3):
        assert 0.5 < contrast(level * noise, features) < 1.9
        assert contrast(level * noise * np.hanning(RATE).astype(np.float32), features) > 4
    assert contrast(string("1 2"), features) > 4
    assert contrast(np.zeros(RATE, np.float32), features) == pytest.approx(0.0, abs=1e-3)
    quieter = contrast(0.5 * string("1 2"), features)
    assert contrast(string("1 2"), features) == pytest.approx(quieter, abs=1e-3)


def test_channels_are_mixed():
    left, right = tone(1)[:1000], tone(2)[:1000]
    found, _ = read_sound(encoded(np.stack([left, right], 1)), "a")
    np.testing.assert_allclose(found, (left + right) / 2, atol=2**-14)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"RIFF1234WAVEjunk", "b.wav: not a whole sound file"),
        (b"", "b.wav: not a whole sound file"),
        (
            encoded(tone(1), kind="AIFF"),
            r"b.wav: found AIFF \(Apple/SGI\), expected WAV or FLAC; convert it",
        ),
        (
            encoded(tone(1), kind="OGG"),
            r"b.wav: found OGG \(OGG Container format\), expected WAV or FLAC; convert it",
        ),
        (encoded(np.zeros(0, np.float32)), "b.wav: holds no samples"),
        (encoded(np.zeros(800, np.float32)), "b.wav: silent, 0.10 s without a sound"),
        (encoded(np.full(800, 2.0**-13, np.float32)), "b.wav: silent, 0.10 s without a sound"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(data, message):
    with refusal(message):
        read_sound(data, "b.wav")


def as_floats(samples):
    """Samples as a WAV file of numbers of any size."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE, format="WAV", subtype="FLOAT")
    return stream.getvalue()


def test_samples_that_are_no_numbers_are_refused():
    with refusal(r"b\.wav: holds samples that are not numbers"):
        read_sound(as_floats(np.array([0.5, np.nan], np.float32)), "b.wav")


def test_samples_of_another_range_keep_their_shape():
    found, _ = read_sound(as_floats(tone(1) * 32768), "a")
    np.testing.assert_allclose(found, tone(1) / np.abs(tone(1)).max(), atol=1e-6)
    np.testing.assert_array_equal(read_sound(as_floats(tone(1)), "a")[0], tone(1))


def sized(data, size):
    """A WAV file whose header claims so many bytes of sound."""
    place = data.index(b"data") + 4
    return data[:place] + size.to_bytes(4, "little") + data[place + 4 :]


def test_a_wav_file_that_ends_too_early_is_refused():
    whole = encoded(tone(1))
    with refusal(r"a\.wav: not a whole sound file \([\d,]+ of [\d,]+ bytes of sound\); copy"):
        read_sound(whole[: len(whole) // 3], "a.wav")
    # an odd size is filled up
    after = whole.replace(b"WAVEfmt ", b"WAVEnote" + (3).to_bytes(4, "little") + b"abc\0fmt ")
    with refusal("of sound"):
        read_sound(after[:-2], "a.wav")
    np.testing.assert_array_equal(read_sound(after, "a")[0], read_sound(whole, "a")[0])


@pytest.mark.parametrize("kind", [{"format": "RF64"}, {"format": "WAV", "endian": "BIG"}])
def test_a_long_or_big_endian_wav_file_that_ends_too_early_is_refused(kind):
    stream = io.BytesIO()
    soundfile.write(stream, tone(1), RATE, subtype="PCM_16", **kind)
    whole = stream.getvalue()
    assert len(read_sound(whole, "a")[0]) == len(tone(1))
    with refusal(r"a\.wav: not a whole sound file \([\d,]+ of [\d,]+ bytes of sound\); copy"):
        read_sound(whole[: len(whole) // 2], "a.wav")


def test_a_wav_file_of_a_telephone_is_read():
    stream = io.BytesIO()
    soundfile.write(stream, tone(1), RATE, format="WAV", subtype="GSM610")
    found, rate = read_sound(stream.getvalue(), "a")
    assert rate == RATE
    assert len(tone(1)) <= len(found) < len(tone(1)) + 320  # samples of a block


@pytest.mark.parametrize("rate", [999, 1_000_003, 2**31 - 1])
def test_a_rate_that_no_sound_has_is_refused(rate):
    whole = encoded(tone(1))
    place = whole.index(b"fmt ") + 12
    message = (
        f"a: {rate:,} samples a second by its header, expected 1,000 to 1,000,000; it "
        "may be damaged"
    )
    with refusal(message):
        read_sound(whole[:place] + rate.to_bytes(4, "little") + whole[place + 4 :], "a")


def test_channels_that_cancel_each_other_are_said():
    with refusal("a: its channels cancel each other out; keep only one of them"):
        read_sound(encoded(np.stack((tone(1), -tone(1)), 1)), "a")
    assert np.abs(read_sound(encoded(np.stack((tone(1), 0 * tone(1)), 1)), "a")[0]).max() > 0.1


def test_a_file_larger_than_any_sound_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "a.wav").open("wb") as file:
        file.truncate(2**30 + 1)  # which takes no room on the disk
    with refusal(r"a\.wav: holds 1,073,741,825 bytes, at most 1,073,741,824 are read; shorten it"):
        read_sound(tmp_path / "a.wav", "a.wav")


@pytest.mark.parametrize("size", [0x7FFFF000, 0xFFFFFFFF])
def test_a_wav_file_from_a_pipe_is_read(size):
    whole = encoded(tone(1))
    np.testing.assert_array_equal(read_sound(sized(whole, size), "a")[0], read_sound(whole, "a")[0])


@pytest.mark.parametrize("kind", [{}, {"endian": "BIG"}])
def test_a_wav_file_whose_header_was_never_finished_is_read(kind):
    stream = io.BytesIO()
    soundfile.write(stream, tone(1), RATE, format="WAV", **kind)
    whole = stream.getvalue()
    unfinished = whole[:4] + bytes(4) + sized(whole, 0)[8:]
    np.testing.assert_array_equal(read_sound(unfinished, "a")[0], read_sound(whole, "a")[0])


def test_a_wav_file_without_a_sound_may_end_in_another_chunk():
    empty = encoded(np.zeros(0, np.float32))
    for end in (b"", b"LIST" + (4).to_bytes(4, "little") + b"INFO"):
        with refusal("a: holds no samples"):
            read_sound(empty + end, "a")


def claiming(data, frames):
    """A FLAC file whose header claims so many samples."""
    place = 8 + 13  # the last 36 bits of 8 bytes
    return (
        data[:place]
        + bytes([data[place] & 0xF0 | frames >> 32])
        + frames.to_bytes(5, "big")[1:]
        + data[place + 5 :]
    )


def test_what_is_too_long_is_refused_before_it_is_decoded(monkeypatch):
    silence = encoded(np.zeros(60 * RATE, np.float32), RATE, "FLAC")
    monkeypatch.setattr(soundfile.SoundFile, "read", None)
    with refusal(r"a: too long, 60\.000 s by its header, expected at most 30 s; cut it anew"):
        read_sound(silence, "a", 30.0)
    with refusal(r"a: too long, 8589934\.592 s by its header, expected at most"):
        read_sound(claiming(silence, 2**36 - 1), "a", 30.0)


def test_a_header_that_claims_more_than_memory_holds_is_refused(monkeypatch):
    message = r"a: too long, .* s by its header; it may be damaged: copy it again"
    whole = encoded(tone(1), RATE, "FLAC")
    with refusal("a: its header holds no length, as from a pipe; write it to a file again"):
        read_sound(claiming(whole, 0), "a")

    def read(*args, **options):
        raise MemoryError

    monkeypatch.setattr(soundfile.SoundFile, "read", read)
    with refusal(message):
        read_sound(whole, "a")


def test_a_missing_file_is_refused_by_name(tmp_path):
    with refusal(r"none\.wav: cannot be read \(No such file"):
        read_sound(tmp_path / "none.wav", str(tmp_path / "none.wav"))
    with refusal(r"cannot be read \(.*embedded null"):
        read_sound(tmp_path / "a\0.wav", "a")


@pytest.mark.parametrize("package", ["soundfile", "scipy.signal"])
def test_a_missing_library_is_named_with_its_install_line(package, monkeypatch):
    import sys

    whole = encoded(tone(1))
    monkeypatch.setitem(sys.modules, package, None)
    with refusal(f"{package.split('.')[0]} is not installed; run: pip install"):
        resampled(*read_sound(whole, "a"), 16_000)


def test_a_tone_stays_the_same_at_another_rate_and_rises_with_speed():
    wave = np.sin(2 * np.pi * 1000.0 * np.arange(8000) / 8000).astype(np.float32)

    def pitch(samples, rate):
        return np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples)

    assert pitch(resampled(wave, 8000, 16_000), 16_000) == pytest.approx(1000.0, abs=2)
    assert len(resampled(wave, 8000, 16_000)) == 16_000
    faster = resampled(wave, 8800, 8000)  # at 1.1 times the speed
    assert len(faster) == pytest.approx(8000 / 1.1, abs=1)
    assert pitch(faster, 8000) == pytest.approx(1100.0, abs=2)
    assert resampled(wave, 8000, 8000) is wave


def test_odd_rates_are_taken_for_their_neighbours(monkeypatch):
    """A filter twenty times as long as the larger number of the ratio would take gigabytes."""
    ratios = []
    monkeypatch.setattr(
        "scipy.signal.resample_poly", lambda samples, up, down: ratios.append((up, down)) or samples
    )
    for rate in (44_100, 999_983, 16_001):
        resampled(np.zeros(10, np.float32), rate, 16_000)
    (up, down), *odd = ratios
    assert (up, down) == (160, 441)
    assert odd[1] == (16_000, 16_001)
    assert max(map(max, ratios)) <= 100_000
    assert odd[0][0] / odd[0][1] == pytest.approx(16_000 / 999_983, rel=1e-6)


def test_whispers_filterbanks(noise):
    expected = WhisperFeatureExtractor()._np_extract_fbank_features(noise[None], "cpu")[0].T
    np.testing.assert_allclose(filterbanks(noise, Features("whisper")), expected, atol=1e-5)


@pytest.mark.parametrize("rate, fft", [(16_000, 512), (8000, 512)])
def test_kaldis_filterbanks(noise, rate, fft):
    filters = mel_filter_bank(
        num_frequency_bins=fft // 2 + 1,
        num_mel_filters=80,
        min_frequency=20,
        max_frequency=rate // 2,
        sampling_rate=rate,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    size = rate // 40
    expected = spectrogram(
        noise * 2**15,
        window_function(size, "povey", periodic=False),
        frame_length=size,
        hop_length=rate // 100,
        fft_length=fft,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    ).T
    features = Features(rate=rate, fft=fft)
    found = log_mel(noise, features)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    scaled = normalised(found, "kaldi")
    np.testing.assert_allclose(scaled, (expected - expected.mean(0)) / expected.std(0), atol=1e-4)


def test_a_band_that_hardly_changes_is_not_blown_up():
    scaled = normalised(np.array([[7.0, 7.0, 1.0], [7.0, 7.02, 3.0]], np.float32), "kaldi")
    np.testing.assert_allclose(scaled, [[0.0, -0.1, -1.0], [0.0, 0.1, 1.0]], atol=1e-4)


@pytest.mark.parametrize("kind", ["kaldi", "whisper"])
@pytest.mark.parametrize("samples", [200, 201, 279, 280, 281, 1000])
def test_the_frames_are_as_many_as_was_said(kind, samples):
    features = Features(kind, rate=8000)
    wave = tone(1)[:samples]
    assert filterbanks(wave, features).shape == (features.frames(samples), 80)
    assert features.frames(samples) > 0
    assert np.isfinite(filterbanks(wave, features)).all()


def test_less_than_a_window_is_no_frame():
    assert Features(rate=8000).frames(199) == 0
    assert filterbanks(np.zeros(199, np.float32), Features("whisper", rate=8000)).shape == (2, 80)


def test_loudness_changes_no_filterbank():
    wave = tone(2)
    features = Features(rate=8000)
    np.testing.assert_allclose(
        filterbanks(0.125 * wave, features), filterbanks(wave, features), atol=1e-4
    )


def test_a_warp_moves_a_tone_to_another_band():
    features = Features(rate=8000)
    bands = [log_mel(tone(4), features, warp).mean(0).argmax() for warp in (0.8, 1.0, 1.2)]
    assert bands[0] < bands[1] < bands[2]
    bent = audio.warped(np.array([0.0, 1000.0, 2000.0, 3000.0, 4000.0]), 1.2, 4000.0)
    np.testing.assert_allclose(bent, [0.0, 1200.0, 2400.0, 3200.0, 4000.0])
    steps = np.diff(audio.warped(np.linspace(0.0, 4000.0, 99), 0.8, 4000.0))
    assert 0 < steps.max() < 2 * steps.min()


def test_masks_cover_no_more_than_they_say():
    mel = np.ones((50, 80), np.float32)
    masks = Masks(times=1, time_width=5, bands=1, band_width=7)
    widths, reached = set(), np.zeros(130, bool)
    for seed in range(600):
        found = masked(mel, "kaldi", masks, np.random.default_rng(seed))
        reached |= np.concatenate([(found == 0).all(1), (found == 0).all(0)])
        times, bands = (found == 0).all(1).sum(), (found == 0).all(0).sum()
        widths.add((times, bands))
        assert (found == 0).sum() == times * 80 + bands * 50 - times * bands
    assert {time for time, _ in widths} == set(range(6))
    assert {band for _, band in widths} == set(range(8))
    assert reached.all(), "from the first frame and band to the last"
    assert (mel == 1).all()
    assert masked(mel[:2], "kaldi", Masks(2, 90, 2, 90), np.random.default_rng(1)).shape == (2, 80)


def test_masks_hold_the_mean_of_the_features(noise):
    for kind in ("kaldi", "whisper"):
        mel = filterbanks(noise, Features(kind))
        found = masked(mel, kind, Masks(0, 0, 1, 40), np.random.default_rng(1))
        filled = np.unique(found[found != mel])
        assert filled == pytest.approx([mel.mean()], abs=1e-5)
    assert masked(mel[:0], "whisper", Masks(), np.random.default_rng(1)).shape == (0, 80)


def test_a_transform_is_as_long_as_is_usual_unless_the_recipe_says_more():
    lengths = [Features(kind, fft=fft).fft for kind in ("kaldi", "whisper") for fft in (0, 1024)]
    assert lengths == [512, 1024, 400, 1024]
    assert Features() == Features(fft=512)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"window": 0.0}, "window is 0.0 s and hop 0.01 s; give a window of at least 2"),
        ({"hop": 0.03}, "window is 0.025 s and hop 0.03 s; give"),
        (
            {"fft": 10**9},
            "fft is 1000000000 and bands 80; give an fft of at most 65536, and no more bands",
        ),
        (
            {"bands": 10**9},
            "fft is 512 and bands 1000000000; give an fft of at most 65536, and no more bands",
        ),
        ({"fft": 300}, "fft is 300, must be at least 400, the samples of a window"),
        (
            {"rate": 8000, "fft": 256, "bands": 128},
            "fft is 256, must be longer: at 8000 Hz its lines are 31.2 Hz apart",
        ),
    ],
)
def test_impossible_features_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Features(**wrong)


def test_digital_silence_is_no_cliff():
    random = np.random.default_rng(1)
    word = (0.1 * random.standard_normal(4000)).astype(np.float32)
    features = Features(rate=8000)

    def between(pause):
        return filterbanks(np.concatenate([word, pause.astype(np.float32), word]), features)

    nothing, little = between(np.zeros(4000)), between(1e-4 * random.standard_normal(4000))
    # the control: without dither it is over 1
    assert np.abs(nothing.mean(1) - little.mean(1)).max() < 0.2
    cliff = log_mel(np.concatenate([word, np.zeros(4000, np.float32), word]), features)
    assert cliff.min() < np.log(1e-6)


def test_dither_is_the_same_for_ever_and_as_loud_as_the_sound():
    sound = np.sin(np.arange(8000, dtype=np.float32))
    added = dithered(sound) - sound
    assert np.array_equal(dithered(sound), dithered(sound))
    assert np.sqrt((added**2).mean() / (sound**2).mean()) == pytest.approx(1e-3, rel=0.05)
    np.testing.assert_allclose(dithered(8 * sound), 8 * dithered(sound), rtol=1e-5)
    steady = np.ones(5000, np.float32)
    # a short sound has the noise with which that of a long one begins
    for size in (1, 1023, 1024, 1025, 5000):
        assert np.array_equal(dithered(steady[:size]), dithered(steady)[:size])
