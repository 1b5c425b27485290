"""Sound to log-mel filterbanks: reading, resampling, framing, mel filters, normalisation and
SpecAugment, in NumPy.

Let M be mel bins (bands), T frames.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from transduct.data.archives import LARGEST_FILE
from transduct.errors import TransductError, needing, require, rewording
from transduct.records import AtLeastOne, Checked, Count, Range, refuse_if

Sound = NDArray[np.float32]
ENDINGS = (".wav", ".flac")
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")  # libsndfile's names
SILENT = 2.0**-12  # a sound with a lower peak, eight steps of 16 bits, counts as silent
LINES = 1 << 16  # the maximum length of a Fourier transform
PIPED = 0x7FFF0000  # bytes; headers written to a pipe claim at least this size
UNKNOWN = 2**62  # frames; libsndfile returns at least this many for a FLAC header without a length
RATES = (1_000, 1_000_000)  # samples per second, the lowest and the highest accepted
# the largest denominator of a resampling ratio; the filter is twenty times as long
FINEST = 100_000
LINES_OF = {"kaldi": 512, "whisper": 400}  # the usual length of a transform
LOWEST = 20.0  # Hz, the lower edge of Kaldi's filterbanks; Whisper's is 0
PREEMPHASIS = 0.97
DITHER = 60.0  # dB below the sound


@dataclass(frozen=True)
class Features(Checked):
    """How filterbanks are computed from sound; the `data.features` section of a recipe.

    Attributes:
        kind: whose filterbanks these equal. Kaldi's have a Povey window, pre-emphasis and natural
            logarithms, with each band normalised to mean 0 and standard deviation 1 over the
            utterance. Whisper's have a Hann window and centred frames, clipped to 80 dB below the
            maximum and scaled.
        rate: samples per second; sounds with other rates are resampled.
        bands: the number of mel bands, M.
        window: length of the frames, in seconds.
        hop: seconds from the start of one frame to that of the next.
        fft: length of the Fourier transform; windows are padded to it with zeros. 0 is the kind's
            own: 512 for "kaldi", 400 for "whisper".
    """

    kind: Literal["kaldi", "whisper"] = "kaldi"
    rate: Annotated[int, Range(1000, why="samples a second")] = 16_000
    bands: AtLeastOne = 80
    window: float = 0.025
    hop: float = 0.010
    fft: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fft:
            object.__setattr__(self, "fft", LINES_OF[self.kind])
        refuse_if(
            not 1 <= self.step <= self.width or self.width < 2,
            f"window is {self.window} s and hop {self.hop} s; give a window of at least 2 samples, "
            "and a hop that is no longer",
        )
        refuse_if(
            self.fft < self.width,
            f"fft is {self.fft}, must be at least {self.width}, the samples of a window",
        )
        refuse_if(
            self.fft > LINES or self.bands > self.fft,
            f"fft is {self.fft} and bands {self.bands}; give an fft of at most {LINES}, and no "
            "more bands than that",
        )
        empty = mel_filters(self).max(0) <= 0.0
        refuse_if(
            empty.any(),
            f"fft is {self.fft}, must be longer: at {self.rate} Hz its lines are "
            f"{self.rate / self.fft:.1f} Hz apart and band {empty.argmax() + 1} of {self.bands} "
            "holds none",
        )

    @property
    def width(self) -> int:
        """Samples in a window."""
        return round(self.window * self.rate)

    @property
    def step(self) -> int:
        """Samples from one window to the next."""
        return round(self.hop * self.rate)

    def frames(self, samples: int) -> int:
        """The number of frames, T, of a sound with this many samples."""
        return (
            samples // self.step
            if self.kind == "whisper"
            else max(0, 1 + (samples - self.width) // self.step)
        )


@dataclass(frozen=True)
class Masks(Checked):
    """SpecAugment (Park et al. 2019): masks of random width set ranges of frames and of bands to
    the mean.

    Time warping is left out: it has the smallest effect in the paper.

    Attributes:
        times: the number of time masks.
        time_width: the maximum width of a time mask, in frames.
        bands: the number of band masks.
        band_width: the maximum width of a band mask, in bands.
    """

    times: Count = 2
    time_width: Count = 10
    bands: Count = 2
    band_width: Count = 15


def read_sound(
    data: bytes | Path,
    name: str | None,
    max_seconds: float = inf,
    span: tuple[float, float] = (0.0, inf),
) -> tuple[Sound, int]:
    """Read a WAV or FLAC file: samples between -1 and 1, averaged over channels, and their rate.

    Args:
        max_seconds: files whose header claims more are refused before they are decoded.
        span: the part to read, from one second to another.

    Raises:
        TransductError: the file is missing, damaged, empty, silent or too long.
    """
    with needing("speech", "soundfile"):
        import soundfile
    content = sized(_content(data, name) if isinstance(data, Path) else data, name)
    seconds = 0.0
    try:
        with soundfile.SoundFile(BytesIO(content)) as file:
            require(
                file.format in FORMATS,  # others may be truncated without notice
                f"found {file.format_info}, expected WAV or FLAC; convert it",
                file=name,
            )
            rate = file.samplerate
            _check_header(rate, file.frames, name)
            first, stop = (round(min(second * rate, file.frames)) for second in span)
            seconds = (stop - first) / rate
            require(
                seconds <= max_seconds,
                f"too long, {seconds:.3f} s by its header, expected at most {max_seconds:g} s; cut "
                "it anew",
                file=name,
            )
            at = file.seek(first) if file.seekable() else 0
            channels = file.read(stop - at, dtype="float32", always_2d=True)[first - at :]
    except soundfile.LibsndfileError as error:
        raise TransductError(
            f"not a whole sound file ({error.error_string}); give a WAV or FLAC file", file=name
        ) from error
    except (MemoryError, ValueError) as error:  # ValueError: more than any memory could hold
        raise TransductError(
            f"too long, {seconds:.3f} s by its header; it may be damaged: copy it again", file=name
        ) from error
    mixed = channels.mean(1)
    cancelled = np.abs(mixed).max(initial=0.0) < SILENT <= np.abs(channels).max(initial=0.0)
    require(not cancelled, "its channels cancel each other out; keep only one of them", file=name)
    return checked(mixed, rate, name), rate


def _content(path: Path, name: str | None) -> bytes:
    # ValueError: a path that holds a zero byte
    with rewording(
        (OSError, ValueError), "cannot be read ({error}); give a WAV or FLAC file", file=name
    ):
        require(
            (size := path.stat().st_size) <= LARGEST_FILE,
            f"holds {size:,} bytes, at most {LARGEST_FILE:,} are read; shorten it",
            file=name,
        )
        return path.read_bytes()


def _check_header(rate: int, frames: int, name: str | None) -> None:
    """Check the rate and the length in a header, before memory is allocated for the samples."""
    require(
        RATES[0] <= rate <= RATES[1],
        f"{rate:,} samples a second by its header, expected {RATES[0]:,} to {RATES[1]:,}; it may "
        "be damaged",
        file=name,
    )
    require(
        frames < UNKNOWN,
        "its header holds no length, as from a pipe; write it to a file again",
        file=name,
    )


def sized(content: bytes, name: str | None = None) -> bytes:
    """Check that a WAV file is complete: libsndfile would read a truncated one as a shorter sound.
    Returns it, with its size filled in where who wrote it to a pipe has left a zero.

    Raises:
        TransductError: it holds fewer bytes of sound than its header claims.
    """
    if content[:4] not in (b"RIFF", b"RIFX", b"RF64"):
        return content
    order: Literal["big", "little"] = "big" if content[:4] == b"RIFX" else "little"

    def chunk(place: int) -> tuple[bytes, int]:
        return content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], order)

    place, long = 12, 0
    while place + 8 <= len(content):
        kind, size = chunk(place)
        place += 8
        if kind == b"ds64":  # 64-bit sizes: of the file, then of the sound
            long = int.from_bytes(content[place + 8 : place + 16], "little")
        if kind == b"data":
            size, left = long or size, len(content) - place
            require(
                left >= size or (size >= PIPED and not long),
                f"not a whole sound file ({left:,} of {size:,} bytes of sound); copy it again",
                file=name,
            )
            following, its_size = chunk(place)
            # another chunk, such as LIST, may follow one without a sound
            if size or not left or (following.isalnum() and its_size <= left - 8):
                return content
            return content[: place - 4] + left.to_bytes(4, order) + content[place:]
        place += size + size % 2
    return content


class Silent(TransductError):
    """A sound whose samples are all as good as zero."""


def checked(samples: Sound, rate: int, name: str | None = None) -> Sound:
    """Check samples and, if any lie outside -1 to 1, divide them by their peak.

    Raises:
        TransductError: there are no samples, some are not finite, or (`Silent`) all are silent.
    """
    require(len(samples), "holds no samples; record it again", file=name)
    peak = np.abs(samples).max()
    require(np.isfinite(peak), "holds samples that are not numbers; record it again", file=name)
    if peak < SILENT:
        raise Silent(
            f"silent, {len(samples) / rate:.2f} s without a sound; record it again", file=name
        )
    return samples / peak if peak > 1.0 else samples


def resampled(samples: Sound, rate: int, wanted: int) -> Sound:
    """Resample with an antialiasing polyphase filter; an odd ratio of rates is approximated.

    Speed perturbation uses it too: sound of rate `r` taken for sound of rate `s * r` is s times as
    fast and as high.
    """
    if rate == wanted:
        return samples
    with needing("speech", "scipy"):
        from scipy.signal import resample_poly
    ratio = Fraction(wanted, rate).limit_denominator(FINEST)
    return np.asarray(resample_poly(samples, ratio.numerator, ratio.denominator), np.float32)


def contrast(samples: Sound, features: Features) -> float:
    """How much the loudness of a sound changes, in dB: the standard deviation over its frames, of
    the lower or the upper bands.

    Steady noise, white or pink, and a hum have 1 to 1.8. Single words have 2 to 20, also beside
    white noise 10 dB below them.
    """
    mel = log_mel(dithered(samples), features)
    decibel = 10.0 if features.kind == "whisper" else 10.0 / np.log(10.0)
    halves = np.array_split(mel, min(2, features.bands), 1)
    return float(decibel * max(half.mean(1).std() for half in halves))


def filterbanks(samples: Sound, features: Features, warp: float = 1.0) -> Sound:
    """The input of a model: log-mel filterbanks, normalised over the utterance; (samples,) -> (T,
    M)."""
    if features.kind == "kaldi":
        samples = dithered(samples)
    return normalised(log_mel(samples, features, warp), features.kind)


def dithered(samples: Sound) -> Sound:
    """Add faint noise to samples, like Kaldi, but always the same noise.

    In digital silence, as between joined recordings, the logarithm would tend to minus infinity and
    distort the mean and the deviation of its band.
    """
    noise = _noise(1 << len(samples).bit_length())[: len(samples)]
    level = np.sqrt(np.mean(np.square(samples))) if len(samples) else 0.0
    return samples + np.float32(level * 10.0 ** (-DITHER / 20.0)) * noise


@lru_cache(32)
def _noise(size: int) -> Sound:
    """White noise; a longer one begins with the shorter ones."""
    return np.random.Generator(np.random.Philox(key=0)).standard_normal(size, np.float32)


def log_mel(samples: Sound, features: Features, warp: float = 1.0) -> Sound:
    """The logarithm of the power in each mel band; (samples,) -> (T, M), with T from
    `Features.frames`.

    Args:
        warp: the factor by which frequencies are warped; see `warped`.
    """
    size, kaldi = features.width, features.kind == "kaldi"
    x = samples.astype(np.float64)
    if not kaldi:  # frame i is centred on sample i * hop
        x = np.pad(x, size // 2, "reflect" if len(x) > size // 2 else "constant")

    def framed(signal: NDArray[np.float64]) -> NDArray[np.float64]:
        # (T, window)
        return sliding_window_view(signal, size)[:: features.step][: features.frames(len(samples))]

    frames = framed(x)
    if kaldi:  # in the range of 16-bit integers; each frame minus its mean, then pre-emphasised
        x = x * 2.0**15
        mean = framed(x).mean(1, keepdims=True)
        frames = framed(np.append(0.0, x[1:] - PREEMPHASIS * x[:-1])) - (1.0 - PREEMPHASIS) * mean
    spectrum = np.fft.rfft(frames * _window(features), features.fft)  # (T, fft / 2 + 1)
    power = spectrum.real**2 + spectrum.imag**2
    mel = power @ mel_filters(features, warp)  # (T, M)
    log = (
        np.log(np.maximum(mel, np.finfo(np.float32).eps))
        if kaldi
        else np.log10(np.maximum(mel, 1e-10))
    )
    return log.astype(np.float32)


def normalised(mel: Sound, kind: Literal["kaldi", "whisper"]) -> Sound:
    """Normalise log-mel bands over an utterance like Kaldi's recipes or Whisper: (T, M) -> (T,
    M)."""
    if kind == "whisper":
        return np.asarray((np.maximum(mel, mel.max(initial=-np.inf) - 8.0) + 4.0) / 4.0, np.float32)
    if not len(mel):
        return mel
    # Subtracting the mean removes the constant effect of microphone and room.
    return (mel - mel.mean(0)) / np.maximum(mel.std(0), 0.1)


def masked(
    mel: Sound, kind: Literal["kaldi", "whisper"], masks: Masks, random: np.random.Generator
) -> Sound:
    """Apply SpecAugment to normalised bands: (T, M) -> (T, M)."""
    mel = mel.copy()
    frames, bands = mel.shape
    mean = 0.0 if kind == "kaldi" or not mel.size else mel.mean()
    for _ in range(masks.times):
        width = min(int(random.integers(masks.time_width + 1)), frames)
        start = int(random.integers(frames - width + 1))
        mel[start : start + width] = mean
    for _ in range(masks.bands):
        width = min(int(random.integers(masks.band_width + 1)), bands)
        start = int(random.integers(bands - width + 1))
        mel[:, start : start + width] = mean
    return mel


@lru_cache
def _window(features: Features) -> NDArray[np.float64]:
    size = features.width
    if features.kind == "whisper":
        return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)
    return np.hanning(size) ** 0.85


@lru_cache(256)
def mel_filters(features: Features, warp: float = 1.0) -> NDArray[np.float64]:
    """The weight of each frequency bin in each mel band: (fft / 2 + 1, M).

    Whisper's filters are triangles over Hertz, of equal area, with edges on Slaney's mel scale;
    Kaldi's are triangles over mel.
    """
    highest = features.rate / 2.0
    lines = warped(
        np.arange(features.fft // 2 + 1, dtype=np.float64) * (features.rate / features.fft),
        warp,
        highest,
    )
    if features.kind == "kaldi":
        edges = np.linspace(_kaldi(LOWEST), _kaldi(highest), features.bands + 2)
        return _triangles(_kaldi(lines), edges)
    edges = _from_slaney(np.linspace(0.0, _slaney(highest), features.bands + 2))
    return _triangles(lines, edges) * (2.0 / (edges[2:] - edges[:-2]))


def warped(frequencies: NDArray[np.float64], warp: float, highest: float) -> NDArray[np.float64]:
    """Vocal tract length perturbation (Jaitly and Hinton 2013, section 3): frequencies times
    `warp`, with the highest kept fixed by another slope near it."""
    if warp == 1.0:
        return frequencies
    bend = 0.6 * highest * min(warp, 1.0) / warp
    rest = (highest - bend * warp) / (highest - bend)
    return np.where(
        frequencies <= bend, frequencies * warp, highest - rest * (highest - frequencies)
    )


def _triangles(lines: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Triangular filters, each rising from the previous edge to its centre and falling to the next
    edge."""
    rising = (lines[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - lines[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling))


def _kaldi(hertz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)


def _slaney(hertz: Any) -> Any:
    """Slaney's mel scale: linear up to 1000 Hz (15 mel), then logarithmic, 27 mel for a factor of
    6.4."""
    hertz = np.asarray(hertz, np.float64)
    return np.where(
        hertz < 1000.0, hertz * 3.0 / 200.0, 15.0 + np.log(np.maximum(hertz, 1.0) / 1000.0) * _STEEP
    )


def _from_slaney(mel: Any) -> Any:
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) / _STEEP))


_STEEP = 27.0 / np.log(6.4)
