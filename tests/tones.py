"""Sounds for tests: each digit a tone of its own, spoken by two voices, in a tar as recordings
are."""

import io
import tarfile
from pathlib import Path

import numpy as np

RATE = 8000
VOICES = {"anna": 1.0, "bela": 1.06}
PATTERN = r"^(?P<text>\d)_(?P<speaker>\w+)_\d+\.wav$"


def tone(digit: int, voice: str = "anna", number: int = 0) -> np.ndarray:
    """A digit as a tone of 0.15 to 0.2 s with a little noise; the number tells one recording from
    another."""
    random = np.random.default_rng([digit, number, *voice.encode()])
    times = np.arange(int(RATE * random.uniform(0.15, 0.2))) / RATE
    pitch = 300.0 * (digit + 1) * VOICES[voice] * random.uniform(0.98, 1.02)
    swell = np.minimum(1.0, 3.0 * np.hanning(len(times)))  # quiet at both ends, as recordings are
    wave = 0.3 * swell * np.sin(2 * np.pi * pitch * times) + 0.003 * random.standard_normal(
        len(times)
    )
    return wave.astype(np.float32)


def string(text: str, voice: str = "anna", number: int = 1000) -> np.ndarray:
    """Digits one after another, with pauses of a little noise."""
    random = np.random.default_rng(number)
    pause = (0.003 * random.standard_normal(1000)).astype(np.float32)
    parts = [part for digit in text.split() for part in (pause, tone(int(digit), voice, number))]
    return np.concatenate([*parts, pause])


def encoded(samples: np.ndarray, rate: int = RATE, kind: str = "WAV") -> bytes:
    """Samples as the bytes of a file."""
    # An extra, which collecting the GPU tests must not need.
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind)
    return stream.getvalue()


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    """A tar, compressed if its ending says so."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_tones(path: Path, copies: int = 10, digits: int = 10, start: int = 0) -> Path:
    """Recordings named DIGIT_VOICE_NUMBER.wav, so many of each digit and voice."""
    members = {
        f"{digit}_{voice}_{number}.wav": encoded(tone(digit, voice, number))
        for digit in range(digits)
        for voice in VOICES
        for number in range(start, start + copies)
    }
    return write_archive(path, members)
