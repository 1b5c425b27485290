"""Recordings with transcripts, prepared as a corpus, and the utterances made of them.

An utterance is one recording, or several of one speaker joined with pauses. Its recordings and its
augmentation are a function of (seed, epoch, example).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from transduct.data.archives import read_members
from transduct.data.audio import (
    ENDINGS,
    Features,
    Masks,
    Sound,
    filterbanks,
    masked,
    read_sound,
    resampled,
)
from transduct.data.batching import FIXED, philox
from transduct.data.corpus import Corpus, Ragged, lists_of, ragged, write_rows
from transduct.data.files import WORDS_AT_ONCE, Refused, pack, unpack
from transduct.data.lines import composed, numbered, read_lines
from transduct.data.text import in_chunks
from transduct.data.transcripts import Transcripts, unlisted
from transduct.errors import TransductError, placing, require, rewording
from transduct.records import Checked, Range, refuse_if

SPEAKERS = "speakers.int32"
STACK = 4  # frames per encoder token; utterances are padded to a multiple
LOUDEST = 120.0  # dB, the bound of gains and of noise levels
FADE = 0.005  # seconds over which joined recordings fade in and out
# seconds, the range of pauses between recordings, before the first and after the last
PAUSES = 0.05, 0.35
HUSH = 20.0  # dB by which pauses are at most quieter than the background noise of the recordings
# background noise: seconds of a segment, and the percentile of the loudness of segments
QUIET = 0.01, 10


@dataclass(frozen=True)
class SoundSource:
    """WAV or FLAC files with their transcripts.

    Attributes:
        sounds: a folder, a tar archive, plain or compressed, or Kaldi's `wav.scp`, of whose
            recordings a file `segments` beside it may name parts.
        texts: a table of file name, text and, if known, speaker. It is as by Common Voice (a
            header), LJSpeech (bars), Kaldi (an id, a blank, the text), or has tabs. Names may have
            folders, and any ending or none.
        pattern: instead of `texts`, a regular expression that finds the groups `text` and `speaker`
            in file names; files that do not match are ignored.
        join: the minimum and maximum number of recordings of one speaker to join into a string; [1,
            1] joins none.
        strings: the number of joined strings in an epoch.
        columns: the columns of `texts` for file, text and, if known, speaker: numbers from 0, or
            names if the first line is a header. By default well-known names are found.
    """

    sounds: str
    texts: str | None = None
    pattern: str | None = None
    join: list[int] = field(default_factory=lambda: [1, 1])
    strings: int = 0
    columns: list[str] | list[int] | None = None

    def __post_init__(self) -> None:
        refuse_if(
            self.columns is not None
            and (self.texts is None or len(self.columns) not in (2, 3) or -1 in self.columns),
            f"columns is {self.columns}, must be those of file, text and, if known, speaker in "
            "texts",
        )
        refuse_if(
            (self.texts is None) == (self.pattern is None),
            "give texts, a file of lines of file and text, or pattern: one of them",
        )
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(
                    f"pattern is '{self.pattern}', not a regular expression ({error})"
                ) from error
            refuse_if(
                "text" not in groups,
                f"pattern is '{self.pattern}', must have a group (?P<text>...)",
            )
        refuse_if(
            len(self.join) != 2 or not 1 <= self.join[0] <= self.join[1],
            f"join is {self.join}; give the least and the largest number of recordings in a "
            "string, from 1 on",
        )
        refuse_if(
            (self.join[1] > 1) != (self.strings > 0),
            f"strings is {self.strings}; say how many an epoch holds, only where recordings "
            "are joined",
        )

    def files(self) -> list[str]:
        """The files of the source, by their names in the recipe."""
        return [name for name in (self.sounds, self.texts) if name is not None]


@dataclass(frozen=True)
class Augment(Checked):
    """How training utterances are augmented; the `data.augment` section of a recipe.

    Attributes:
        speeds: speed perturbation (Ko et al. 2015): recordings are stored at each speed, and one is
            drawn; it changes the pitch too.
        gain: the maximum change of the volume of a recording, in dB up or down. "kaldi" features do
            not show the volume of a recording that is not joined with others.
        noise: the range of signal-to-noise ratios of added white noise, in dB; no noise if empty.
        warp: frequencies are warped by a factor from 1 - warp to 1 + warp (Jaitly and Hinton 2013).
        masks: SpecAugment.
    """

    speeds: list[Annotated[float, Range(0.5, 2)]] = field(default_factory=lambda: [0.9, 1.0, 1.1])
    gain: Annotated[float, Range(0, LOUDEST)] = 6.0
    noise: list[Annotated[float, Range(-LOUDEST, LOUDEST)]] = field(
        default_factory=lambda: [15.0, 50.0]
    )
    warp: Annotated[float, Range(0, 0.3)] = 0.1
    masks: Masks = field(default_factory=Masks)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            not self.speeds,
            "speeds is [], must have at least one factor; give [1.0] to change none",
        )
        refuse_if(
            self.noise and (len(self.noise) != 2 or self.noise[0] > self.noise[1]),
            f"noise is {self.noise}, must be the lowest and the highest dB, or [] for none",
        )


UNCHANGED = Augment([1.0], 0.0, [], 0.0, Masks(0, 0, 0, 0))


class Recording(NamedTuple):
    """A sound at the rate of the features, with its text and speaker."""

    name: str
    samples: Sound
    text: str
    speaker: str


@dataclass
class Tally:
    """Counts of recordings that were refused, ignored or resampled."""

    refused: Refused
    resampled: int = 0
    other_names: int = 0

    @property
    def dropped(self) -> dict[str, int]:
        """How many were left out, for a manifest."""
        return {**self.refused.dropped, "not_fitting_the_pattern": self.other_names}


def read_recordings(
    source: SoundSource,
    root: Path,
    features: Features,
    max_seconds: float,
    tally: Tally,
    others: Sequence[SoundSource] = (),
) -> Iterator[Recording]:
    """Read the recordings of a source; unusable ones are refused by name, and counted in `tally`.

    Args:
        others: sources whose tables may list recordings of the same folder; these are left out.

    Raises:
        TransductError: there is none, or one is unusable and the policy is to stop: a file that is
            broken, silent, too short, too long or without a text, or a text without a file.
    """
    sounds, tables, count = root / source.sounds, list[Transcripts](), 0
    if source.texts is not None:
        tables = [Transcripts(root / source.texts, source.columns, tally.refused)]
        tables += [
            Transcripts(root / each.texts, each.columns, Refused("skip"))
            for each in others
            if each.sounds == source.sounds
            and each.texts not in (None, source.texts)
            and (root / str(each.texts)).is_file()
        ]
    for name, content, span in _members(sounds, root):
        with tally.refused.each():
            if not tables:
                text, speaker = _in_name(str(source.pattern), name) or (None, "")
                tally.other_names += text is None
                require(
                    text is None or text.strip(),
                    "has no text where the pattern looks; rename it or correct the pattern",
                    file=name,
                )
            elif (row := tables[0].find(name, sounds)) is not None:
                _, text, speaker = row
            elif any(table.find(name, sounds) for table in tables[1:]):
                continue
            else:
                raise unlisted(tables[0], name, tally.refused)
            if text is None:  # the name does not match, or its line was refused
                continue
            samples, rate = read_sound(content(), name, max_seconds, span)
            samples = at_rate(samples, rate, features, max_seconds, name)
            tally.resampled += rate != features.rate
            count += 1
            yield Recording(name, samples, text, speaker)
    for name in tables[0].missing() if tables else ():
        with tally.refused.each():
            raise TransductError(
                f"'{name}' is not there as WAV or FLAC, but has a text in {source.texts}; convert "
                "or fetch it",
                file=str(sounds),
            )
    require(count, "no recording left to use; check its files and the pattern", file=str(sounds))


Member = tuple[str, Callable[[], bytes | Path], tuple[float, float]]  # and its seconds
WHOLE = 0.0, inf


def _members(sounds: Path, root: Path) -> Iterator[Member]:
    """The recordings of a folder or an archive by name. Or those of a `wav.scp` by id; if a file
    `segments` stands beside it, the parts that it names."""
    if sounds.suffix != ".scp":
        yield from ((*member, WHOLE) for member in read_members(sounds, ENDINGS))
        return
    files: dict[str, Callable[[], Path]] = {}
    for number, line in numbered(read_lines(sounds)):
        name, _, file = line.strip().partition(" ")
        require(
            file and not file.endswith("|"),
            f"found {line!r:.60}, expected an id and a file; write what a command gives to a file "
            "first",
            file=str(sounds),
            line=number,
        )
        paths = [folder / file.strip() for folder in (root, sounds.parent)]
        path = next((path for path in paths if path.exists()), paths[0])
        files[composed(name)] = partial(Path, path)
    if (segments := segments_of(sounds)) is None:
        yield from ((name, file, WHOLE) for name, file in files.items())
        return
    for number, line in numbered(read_lines(segments)):
        with (
            placing(str(segments), number),
            rewording(
                (ValueError, KeyError),
                f"found {line!r:.60}, expected an id, the id of a recording in {sounds.name}, and "
                "the seconds at which the part begins and ends; fix the line",
            ),
        ):
            name, recording, begin, end = composed(line).split()[:4]
            span = float(begin), inf if float(end) == -1 else float(end)
            refuse_if(not 0 <= span[0] < span[1], "not in order")
            member = name, files[recording], span
        yield member


def segments_of(sounds: Path) -> Path | None:
    """The file beside a `wav.scp` that says which parts of the recordings are utterances, if
    any."""
    path = sounds.with_name("segments")
    return path if sounds.suffix == ".scp" and path.is_file() else None


def at_rate(
    samples: Sound, rate: int, features: Features, max_seconds: float, name: str | None
) -> Sound:
    """Resample a sound to the rate of the features.

    Raises:
        TransductError: it is shorter than a window, or longer than `max_seconds`.
    """
    seconds = len(samples) / rate
    wrong = "short" if seconds < features.window else "long"
    require(
        features.window <= seconds <= max_seconds,
        f"too {wrong}, {seconds:.4g} s, expected from {features.window} s to {max_seconds:g} s; "
        "cut it anew",
        file=name,
    )
    return resampled(samples, rate, features.rate)


def _in_name(pattern: str, name: str) -> tuple[str, str] | None:
    """Text and speaker, "" if unknown, in the name of a file; None if it does not match the
    pattern."""
    match = re.search(composed(pattern), name)
    return None if match is None else (match["text"] or "", match.groupdict().get("speaker") or "")


def write_recordings(
    folder: Path, sources: Sequence[Iterator[Recording]], rate: int, speeds: Sequence[float]
) -> dict[str, Any]:
    """Write recordings at each speed as the rows of a corpus, and a file of speaker numbers; return
    the manifest.

    The columns are the text, as code points, and the samples, as 16-bit integers; `weights` holds
    the rows of each source.
    """
    names: dict[str, int] = {}
    speakers: list[int] = []

    def chunks(recordings: Iterator[Recording]) -> Iterator[list[Ragged]]:
        for chunk in in_chunks(
            recordings, lambda each: len(each.samples) * len(speeds) // 2, WORDS_AT_ONCE
        ):
            speakers.extend(names.setdefault(each.speaker, len(names)) for each in chunk)
            rows = [
                (each.text, packed(each.samples, rate, speed)) for each in chunk for speed in speeds
            ]
            yield [
                ragged([_letters(text) for text, _ in rows]),
                ragged([words for _, words in rows]),
            ]

    manifest = write_rows(folder, 2, ((1.0, chunks(recordings)) for recordings in sources))
    np.array(speakers, np.int32).tofile(folder / SPEAKERS)
    return manifest


def packed(samples: Sound, rate: int, speed: float) -> np.ndarray:
    """Samples at a speed, as 16-bit integers packed in 32-bit words."""
    faster = resampled(samples, round(rate * speed), rate)
    numbers = np.clip(np.rint(faster * 32768.0), -32768, 32767).astype(np.int16)
    return pack(numbers)


def _letters(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.int32)


class Choices(NamedTuple):
    """The random choices for an utterance.

    Attributes:
        recordings: their numbers.
        speed: the number of their common speed.
        pauses: samples of the pauses before, between and after them.
        random: the generator for everything else.
    """

    recordings: np.ndarray
    speed: int
    pauses: np.ndarray
    random: np.random.Generator


class Utterances:
    """The training utterances of an epoch, by number, made from a corpus of recordings."""

    def __init__(
        self, corpus: Corpus, sources: Sequence[SoundSource], features: Features, augment: Augment
    ) -> None:
        self.corpus, self.sources = corpus, sources
        self.features, self.augment = features, augment
        speeds = len(augment.speeds)
        speakers = np.fromfile(corpus.directory / SPEAKERS, np.int32)
        spans = [(start // speeds, stop // speeds) for start, stop, _ in corpus.weights]
        self.firsts = [start for start, _ in spans]  # the first recording of each source
        # the recordings of each speaker in each source
        self.groups = [_groups(speakers, *span) for span in spans]
        counts = [
            s.strings or stop - start for s, (start, stop) in zip(self.sources, spans, strict=True)
        ]
        self.starts = np.cumsum([0, *counts])
        # (recordings, speeds)
        self.samples = 2 * np.asarray(corpus.lengths[:, 1], np.int64).reshape(-1, speeds)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def draw(self, seed: int, epoch: int, number: int) -> Choices:
        """Choose the recordings, speed and pauses of utterance `number` of an epoch."""
        source = int(np.searchsorted(self.starts, number, "right")) - 1
        random = np.random.Generator(philox(seed, (epoch << 40) + number))
        speed = int(random.integers(len(self.augment.speeds)))
        if not self.sources[source].strings:
            recording = self.firsts[source] + number - self.starts[source]
            return Choices(np.array([recording]), speed, np.zeros(2, np.int64), random)
        recordings, pauses = draw_string(
            random, self.groups[source], self.sources[source].join, self.features.rate
        )
        return Choices(recordings, speed, pauses, random)

    def tokens(self, seed: int, epoch: int) -> np.ndarray:
        """The number of encoder tokens of each utterance of an epoch, for its plan."""
        draws = (self.draw(seed, epoch, number) for number in range(len(self)))
        samples = (int(self.samples[d.recordings, d.speed].sum() + d.pauses.sum()) for d in draws)
        return np.fromiter(
            (tokens_of(self.features, each) for each in samples), np.int64, len(self)
        )

    def make(self, seed: int, epoch: int, number: int) -> tuple[Sound, str]:
        """The filterbanks (T, M) and the text of an utterance."""
        draw, augment = self.draw(seed, epoch, number), self.augment
        rows = draw.recordings * len(augment.speeds) + draw.speed
        letters, words = map(lists_of, self.corpus.columns(rows))
        texts = [part.astype(np.int32).tobytes().decode("utf-32-le") for part in letters]
        sounds = [
            unpack(part, 2 * len(part), np.int16).astype(np.float32) / 32768.0 for part in words
        ]
        samples = spoken(sounds, draw.pauses, augment, self.features.rate, draw.random)
        # rounded, so that the filters are cached
        warp = 1.0 + round(augment.warp * float(draw.random.uniform(-1.0, 1.0)), 2)
        mel = masked(
            filterbanks(samples, self.features, warp),
            self.features.kind,
            augment.masks,
            draw.random,
        )
        return mel, " ".join(texts)


def _groups(speakers: np.ndarray, start: int, stop: int) -> list[np.ndarray]:
    """The recordings from start to stop, grouped by speaker."""
    speakers = speakers[start:stop]
    return [start + np.flatnonzero(speakers == speaker) for speaker in np.unique(speakers)]


def draw_string(
    random: np.random.Generator, groups: Sequence[np.ndarray], join: Sequence[int], rate: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw recordings of one speaker, and the pauses, in samples, before, between and after
    them."""
    speaker = groups[int(random.integers(len(groups)))]
    count = int(random.integers(join[0], join[1] + 1))
    recordings = speaker[random.integers(len(speaker), size=count)]
    return recordings, (random.uniform(*PAUSES, count + 1) * rate).astype(np.int64)


def spoken(
    sounds: Sequence[Sound],
    pauses: np.ndarray,
    augment: Augment,
    rate: int,
    random: np.random.Generator,
) -> Sound:
    """Join sounds with pauses before, between and after them, a random gain for each, and noise
    over all.

    Joined sounds fade in and out to avoid clicks. The noise in a pause is that of the recording
    before it, attenuated by an amount drawn once for the utterance.
    """
    hush = 10.0 ** (-random.uniform(0.0, HUSH) / 20.0)

    def silence(size: int, sound: Sound, gain: float) -> Sound:
        level = hush * gain * background_noise(sound, rate) if size else 0.0
        return np.float32(level) * random.standard_normal(size, np.float32)

    gains = 10.0 ** (random.uniform(-augment.gain, augment.gain, len(sounds)) / 20.0)
    parts: list[Sound] = [silence(pauses[0], sounds[0], gains[0])]
    for sound, gain, pause in zip(sounds, gains, pauses[1:], strict=True):
        level = np.full(len(sound), gain, np.float32)
        if len(sounds) > 1:
            ramp = np.linspace(0.0, 1.0, min(round(FADE * rate), len(sound) // 2), dtype=np.float32)
            level[: len(ramp)] *= ramp
            level[len(sound) - len(ramp) :] *= ramp[::-1]
        parts += [sound * level, silence(pause, sound, gain)]
    whole: Sound = np.concatenate(parts)
    if augment.noise:
        power = sum(float(part @ part) for part in parts) / max(1, sum(map(len, sounds)))
        below = 10.0 ** (-random.uniform(augment.noise[0], augment.noise[1]) / 20.0)
        whole = whole + np.float32(power**0.5 * below) * random.standard_normal(
            len(whole), np.float32
        )
    return whole


def background_noise(sound: Sound, rate: int) -> float:
    """The loudness of the background noise of a recording, estimated from its quietest segments."""
    size = min(round(QUIET[0] * rate), len(sound))
    parts = sound[: len(sound) // size * size].reshape(-1, size)
    loudness = np.sort(np.sqrt((parts**2).mean(1)))
    # as in numpy.percentile, which takes ten times as long
    place = QUIET[1] / 100.0 * (len(loudness) - 1)
    return float(np.interp(place, np.arange(len(loudness)), loudness))


def tokens_of(features: Features, samples: int) -> int:
    """The number of encoder tokens of a sound with this many samples."""
    return -(-features.frames(samples) // STACK)


def fixed_utterances(
    recordings: Sequence[Recording], source: SoundSource, rate: int
) -> Iterator[Recording]:
    """The utterances to evaluate on: the recordings themselves, or strings of them, always the
    same."""
    if not source.strings:
        yield from recordings
        return
    speakers = sorted({each.speaker for each in recordings})
    groups = [np.flatnonzero([each.speaker == name for each in recordings]) for name in speakers]
    for number in range(source.strings):
        random = np.random.Generator(philox(FIXED, number))
        chosen, pauses = draw_string(random, groups, source.join, rate)
        parts = [recordings[i] for i in chosen]
        samples = spoken([part.samples for part in parts], pauses, UNCHANGED, rate, random)
        text, name = (" ".join(getattr(part, each) for part in parts) for each in ("text", "name"))
        yield Recording(name, samples, text, parts[0].speaker)
