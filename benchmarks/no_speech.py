"""How often what holds no speech is answered with nothing, and how often real words are lost by it.

    python benchmarks/no_speech.py MODEL SOUNDS [--count 100]

MODEL is a speech recogniser; SOUNDS a tar or a folder of single words, such as fsdd's
test.tar.gz. Prints, for silence, white and pink noise of each length and loudness drawn, the
share of empty answers; then the same for the words as they are and with white noise beside them,
with the rule (`decoding.contrast`) and without it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import transduct
from transduct.data.archives import read_members
from transduct.data.audio import ENDINGS, Silent, read_sound, resampled

LENGTHS = (0.3, 1.0, 3.0)  # seconds
PEAKS = (0.001, 0.9)
BESIDE = (20.0, 10.0, 5.0)  # dB of words above noise


def noise(kind: str, size: int, random: np.random.Generator) -> np.ndarray:
    """Silence, white noise or pink noise, with a loudness that is drawn too."""
    wave = random.standard_normal(size)
    if kind == "pink":
        lines = np.maximum(np.arange(size // 2 + 1), 1)
        wave = np.fft.irfft(np.fft.rfft(wave) / np.sqrt(lines), size)
    wave *= (kind != "silence") * np.exp(random.uniform(*np.log(PEAKS))) / np.abs(wave).max()
    return wave.astype(np.float32)


def words(path: Path, rate: int) -> list[np.ndarray]:
    """The sounds of an archive or folder that are not silent, at the rate of the model."""
    found = []
    for name, content in read_members(path, ENDINGS):
        try:
            samples, own = read_sound(content(), name)
        except Silent:
            continue
        found.append(resampled(samples, own, rate))
    return found


def empty(model: Any, sounds: Sequence[np.ndarray], **options: float) -> str:
    """The share of empty answers, in percent."""
    answers = model.predict(sounds, **options)
    return f"{100 * sum(not text for text in answers) / len(answers):6.1f} %"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each kind of sound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("sounds", type=Path)
    parser.add_argument("--count", type=int, default=100, help="sounds of each kind and length")
    given = parser.parse_args(arguments)
    model, random = transduct.load(given.model), np.random.default_rng(1)
    rate = model.hearing.features.rate
    rows = {
        f"{kind}, {seconds:g} s": [
            noise(kind, round(seconds * rate), random) for _ in range(given.count)
        ]
        for kind in ("silence", "white", "pink")
        for seconds in LENGTHS
    }
    rows["words"] = said = words(given.sounds, rate)
    for level in BESIDE:
        rows[f"words, {level:g} dB above white noise"] = [
            word + np.float32(word.std() * 10.0 ** (-level / 20.0)) * noise.astype(np.float32)
            for word in said
            for noise in [random.standard_normal(len(word))]
        ]
    print(f"{'empty answers':36} {'':>6} with   without the rule")
    for name, sounds in rows.items():
        print(f"{name:36} {empty(model, sounds)} {empty(model, sounds, contrast=0.0)}", flush=True)


if __name__ == "__main__":
    main()
