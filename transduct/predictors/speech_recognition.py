"""Inference for speech recognition: transcribes sounds, with error rates and attention.

Let T be the encoder tokens of an utterance and S the tokens of its text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe
from transduct.data.audio import (
    Features,
    Silent,
    Sound,
    checked,
    contrast,
    filterbanks,
    read_sound,
    resampled,
)
from transduct.data.files import DataSection, Policy, Refused, corpora
from transduct.data.lines import composed, stored
from transduct.data.recordings import (
    STACK,
    Augment,
    Recording,
    SoundSource,
    Tally,
    at_rate,
    fixed_utterances,
    read_recordings,
    tokens_of,
)
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.ctc import CTCPrefix, best_path
from transduct.decoding.filters import Filter, Forbid
from transduct.decoding.search import Hypothesis, finite, search
from transduct.errors import require
from transduct.evaluation.bootstrap import Ratio
from transduct.evaluation.text import normalised, token_error_rate
from transduct.inference.batches import answered, device_of, flat
from transduct.inference.engine import beam_search, on_own_threads
from transduct.inference.settings import BeamWidth, LengthPenalty
from transduct.models.speech import SIZES, Config, Speech
from transduct.predictors.base import Attention, Panel, Predictor, Report
from transduct.predictors.isolation import of_input
from transduct.predictors.model_directory import Family, TextModel, require_fit
from transduct.predictors.options import (
    are_given,
    check_inputs,
    check_nothing_given,
    data_with_test,
    policy_of,
    with_options,
)
from transduct.records import AtLeastOne, Checked, NotNegative, Rate, refuse_if
from transduct.segments import (
    SHORTEST,
    Axis,
    FlatBatch,
    Segments,
    Shape,
    concatenated,
    power_of_two,
)

RATES = ("word_error_rate", "token_error_rate")
BLANK = Tokenizer.BEGIN  # the blank of CTC, a token that no text contains
Given = str | Path | bytes | np.ndarray


@dataclass(frozen=True)
class DecodingConfig(Checked):
    """How texts are searched for.

    Attributes:
        beam: the beam size; 1 is greedy search.
        length_penalty: alpha of Wu et al. 2016.
        ctc_weight: the weight of CTC prefix scores in the search (Watanabe et al. 2017); the
            decoder has the rest.
        contrast: the least change of loudness of what may be speech, in dB (`audio.contrast`). The
            answer to a steadier sound is empty; with 0 the model is asked about all but silence.
        batch_tokens: the most encoder tokens in a batch.
        validation_beam: the beam size of validations during training.
    """

    beam: BeamWidth = 5
    length_penalty: LengthPenalty = 0.0
    ctc_weight: Rate = 0.3
    contrast: NotNegative = 1.9
    batch_tokens: AtLeastOne = 4096
    validation_beam: BeamWidth = 1


@dataclass(frozen=True)
class RecordingsConfig(DataSection):
    """The `data` section of a recipe for speech recognition.

    Attributes:
        features: the filterbanks.
        augment: how training utterances are augmented.
        ctc: the weight of CTC in the loss; the decoder's cross-entropy has the rest.
        leave_out: speakers to hold out from training; all their recordings are scored separately.
        max_seconds: the longest recording.
        broken: `stop` at a recording that cannot be used, or `skip` it.
    """

    train: list[SoundSource]
    valid: SoundSource | None = None
    test: SoundSource | None = None
    features: Features = field(default_factory=Features)
    augment: Augment = field(default_factory=Augment)
    ctc: Rate = 0.3
    leave_out: list[str] = field(default_factory=list)
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "leave_out", [composed(name) for name in self.leave_out])
        refuse_if(
            self.max_seconds <= self.features.window,
            f"max_seconds is {self.max_seconds}, must be longer than a window "
            f"(features.window, {self.features.window})",
        )


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Utterances and their texts. Both losses are averages over target tokens.

    Attributes:
        features: (N, mel bins), a multiple of four frames for each utterance.
        inputs, outputs: (M,) the text with the begin token before it, and with the end token after
            it.
        text: the text without either.
        counted, heard: (M,) and (B,) 1.0 for a target token, or an utterance, and 0.0 for filler;
            None without filler.
    """

    terms = {"tokens": "targets", "ctc": "targets"}
    features: Annotated[Tensor, Axis("frames")]
    frames: Annotated[Segments, Axis("frames")]
    inputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    outputs: Annotated[Tensor, Axis("targets", Tokenizer.END)]
    target_segments: Annotated[Segments, Axis("targets")]
    text: Annotated[Tensor, Axis("text", Tokenizer.END)]
    text_segments: Annotated[Segments, Axis("text")]
    counted: Annotated[Tensor | None, Axis("targets", marks=True)] = None
    heard: Annotated[Tensor | None, Axis("sequences", marks=True)] = None

    @property
    def tokens(self) -> int:
        """The number of encoder tokens, of four frames each."""
        return self.sizes["frames"] // STACK


def make_batch(mels: Sequence[Any], texts: Sequence[Sequence[int]]) -> Batch:
    """Make a batch of filterbanks and the ids of their texts, without special tokens."""
    return Batch.of(
        features=stacked(mels),
        inputs=[[Tokenizer.BEGIN, *ids] for ids in texts],
        outputs=[[*ids, Tokenizer.END] for ids in texts],
        text=texts,
    )


def fill_up(batch: Batch, tokens: int) -> Batch:
    """The batch filled up to one of a few shapes, for a captured graph; see `Shape.near`. As it is
    if its lengths are uncommon."""
    near = Shape.near((batch.frames.lengths // STACK).tolist(), tokens, tokens)
    if near is None:
        return batch
    longest = power_of_two(batch.target_segments.longest, SHORTEST)
    # room for the filler of the texts too, which is up to a part
    sequences = near.sequences + -(-near.rounded_up(1) // longest)
    targets, text = (
        Shape(near.rounded_up(each.total), sequences, longest, longest)
        for each in (batch.target_segments, batch.text_segments)
    )
    frames = replace(near, sequences=sequences).stretched(STACK)
    return batch.filled(frames=frames, targets=targets, text=text, sequences=sequences)


@dataclass(frozen=True)
class Hearing:
    """How a recogniser treats sounds, beside its model.

    Attributes:
        features: the filterbanks.
        max_seconds: the longest utterance.
        leave_out: speakers held out from training, who are scored separately.
    """

    features: Features = field(default_factory=Features)
    max_seconds: float = 30.0
    leave_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leave_out", [composed(name) for name in self.leave_out])


@dataclass(frozen=True)
class Spoken:
    """Recordings to evaluate on: `source`, and `more` sources that may hold recordings of held-out
    speakers; `others` may list recordings of the same folder."""

    source: SoundSource
    more: list[SoundSource]
    root: Path
    broken: Policy = "stop"
    others: Sequence[SoundSource] = ()

    def read(self, hearing: Hearing, refused: Refused) -> list[Recording]:
        """The utterances of known speakers, then those of the held-out ones.

        Raises:
            TransductError: as `read_recordings`.
        """
        tally, out = Tally(refused), set(hearing.leave_out)
        features, longest = hearing.features, hearing.max_seconds
        recordings = [
            list(read_recordings(each, self.root, features, longest, tally, self.others))
            for each in (self.source, *(self.more if out else []))
        ]
        known = [each for each in recordings[0] if each.speaker not in out]
        unseen = [each for part in recordings for each in part if each.speaker in out]
        parts = [
            fixed_utterances(part, self.source, hearing.features.rate)
            for part in (known, unseen)
            if part
        ]
        return [each for part in parts for each in part]


def speech_panels(found: Attention, ctc: Tensor, bands: Sequence[str]) -> list[Panel]:
    """The last cross-attention, the probabilities of CTC, and the attention of each head with its
    own bands.

    Args:
        ctc: (S, T) the probability of the blank and of each token of the text at each encoder
            token.
        bands: the frequency bands of each head of the first layer; none if every head gets all
            bands.
    """
    text, times = found.target[1:], found.source
    cross = found.last_cross[: len(text)]  # row t chooses token t + 1
    heads = zip(bands, found["encoder.0.self"])
    labels = ["blank", *text]
    # one row for each distinct token
    first = [i for i, label in enumerate(labels) if label not in labels[:i]]
    return [
        Panel("where each token was heard, by seconds", cross, text, times),
        Panel("what CTC heard", ctc[first], [labels[i] for i in first], times),
        *(
            Panel(f"head {i}: {band}", matrix, times, times)
            for i, (band, matrix) in enumerate(heads, 1)
        ),
    ]


@dataclass(frozen=True)
class Heard:
    """Recordings as one recogniser heard them, for another to hear the same."""

    recordings: Sequence[Recording]
    by: Hearing
    refused: Refused

    def rates(self, outputs: Sequence[str]) -> dict[str, Ratio]:
        """The error rates of known speakers and of held-out ones."""
        pairs, out = list(zip(outputs, self.recordings, strict=True)), self.by.leave_out
        known, unseen = (
            [pair for pair in pairs if (pair[1].speaker in out) == left] for left in (False, True)
        )
        rates = _error_rates(known) if known else {}
        of_unseen = _error_rates(unseen) if unseen else {}
        return rates | {f"{name}_unseen": rate for name, rate in of_unseen.items()}


class Recogniser(TextModel):
    """Transcribes speech, with one model and its tokenizer."""

    reads = "sound"  # the kind of file that its inputs are
    verbs = Predictor.verbs | {"attention"}
    family = Family(Config, SIZES, Speech)
    sections = {"hearing": Hearing, "decoding": DecodingConfig}
    token_counts, unknown = Predictor.token_counts, Predictor.unknown  # of files, not of texts

    def __init__(
        self, model: Speech, tokenizer: Tokenizer, hearing: Hearing, decoding: DecodingConfig
    ) -> None:
        super().__init__(model, tokenizer, decoding)
        self.hearing = hearing

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        tokenizer, hearing, decoding = super().parts(directory, config, model)
        ours, theirs = hearing.features.bands, model.config.bands
        require_fit(ours == theirs, directory, f"hears {ours} bands, its model {theirs}")
        return [tokenizer, hearing, decoding]

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> Spoken:
        """The sounds of a tar or a folder and a file with their texts, or the recipe's test set."""
        if are_given(files, "source", "reference"):
            source = SoundSource(files["source"], files["reference"])
            return Spoken(source, [], Path(), policy_of(refused))
        data = data_with_test(RecordingsConfig, recipe)
        policy = policy_of(refused, data.broken)
        return Spoken(data.test, data.train, Path(data.root), policy, corpora(data))

    def predict(self, inputs: Sequence[Given], **options: Any) -> list[str]:
        """Transcribe each sound; the answer to one without speech is empty.

        Args:
            inputs: WAV or FLAC files, their content, or samples at the rate of the model's
                features.
            options: fields of `DecodingConfig`.

        Raises:
            TransductError: a file is missing, damaged, too short or too long, or an option is
                unknown.
        """
        check_inputs(inputs, "sound")
        silence = np.zeros(self.hearing.features.width, np.float32)
        sounds = []
        for number, each in enumerate(inputs):
            try:
                with of_input(number):
                    sounds.append(self._sound(each))
            except Silent:
                sounds.append(silence)
        return self._texts(self._generate(sounds, options))

    def evaluate(
        self,
        data: Spoken | Sequence[Recording],
        against: "Recogniser | None" = None,
        **options: Any,
    ) -> Report:
        """Error rates in percent: `word_error_rate`, and `token_error_rate` over characters, blanks
        included. See `Predictor`; the other model hears the same recordings, at its own rate.

        Held-out speakers are scored separately, under names that end in `_unseen`.
        """
        refused = Refused(data.broken if isinstance(data, Spoken) else "stop", advise=False)
        recordings = data.read(self.hearing, refused) if isinstance(data, Spoken) else data
        return super().evaluate(Heard(recordings, self.hearing, refused), against, **options)

    def measured(self, data: Heard, options: Mapping[str, Any]) -> Report:
        rate, features, recordings = data.by.features.rate, self.hearing.features, data.recordings
        sounds = [each.samples for each in recordings]
        if self.hearing is not data.by:  # whatever their length is at this rate
            changed = [resampled(sound, rate, features.rate) for sound in sounds]
            sounds = [np.pad(each, (0, max(0, features.width - len(each)))) for each in changed]
        found = self._generate(sounds, options)
        outputs = self._texts(found)
        speakers = sorted({each.speaker for each in recordings})
        of_speakers = {
            name: _word_error_rate(
                [pair for pair in zip(outputs, recordings) if pair[1].speaker == name]
            ).score
            for name in speakers
        }
        rates = data.rates(outputs)
        details: dict[str, Any] = {
            "utterances": len(recordings),
            "left_out": data.refused.dropped,
            "seconds": round(sum(len(each.samples) for each in recordings) / rate, 1),
            "speakers": of_speakers,
            "ctc_alone": _scores(data.rates(self.tokenizer.decode([path for _, path in found]))),
            **{name: {"interval": share.interval()} for name, share in rates.items()},
        }
        return Report(_scores(rates), details, outputs, frozenset(rates), rates, data.refused)

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def attention(self, given: Given, text: str | None = None, **options: Any) -> Attention:
        """Every attention weight of a sound and its text.

        Args:
            text: the text given to the decoder; by default the model's own answer, with options as
                for `predict`.

        Raises:
            TransductError: as `predict`; the text is empty; or both a text and an option are given.
        """
        check_nothing_given(text, options)
        sound = self._sound(given)
        ids = (
            self._generate([sound], options)[0][0][0].tokens
            if text is None
            else self.tokenizer.encode([text])[0]
        )
        require(ids, "no speech was found; give a recording with speech")
        device, weights = device_of(self.model), list[Tensor]()
        memory, memory_segments = self._encode([sound], weights)
        inputs, segments = flat([[Tokenizer.BEGIN, *ids]], device)
        self.model.decode(inputs, segments, memory, memory_segments, weights)
        seconds = STACK * self.hearing.features.hop
        times = [f"{i * seconds:.2f}" for i in range(len(memory))]
        ctc = self.model.ctc(memory).exp()[:, [BLANK, *ids]].T.cpu()  # (S, T)
        tokens = self.tokenizer.pieces([Tokenizer.BEGIN, *ids])
        draw = partial(speech_panels, ctc=ctc, bands=self._bands())
        return Attention.of(self.model, weights, times, tokens, draw=draw)

    def _bands(self) -> list[str]:
        config = self.model.config
        if config.groups == 1:
            return []
        width = config.bands // config.groups
        return [f"bands {i * width + 1} to {(i + 1) * width}" for i in range(config.groups)]

    def _sound(self, given: Given) -> Sound:
        features, longest = self.hearing.features, self.hearing.max_seconds
        if isinstance(given, np.ndarray):
            require(
                given.ndim == 1 and given.dtype.kind == "f",
                f"found an array of shape {given.shape}, {given.dtype}, expected "
                "samples, (N,), from -1.0 to 1.0; mix channels, scale whole numbers",
            )
            samples = checked(given.astype(np.float32), features.rate)
            return at_rate(samples, features.rate, features, longest, None)
        require(
            isinstance(given, str | Path | bytes),
            f"found a {type(given).__name__}, expected a file's name, its content or "
            "an array of samples",
        )
        name, file = (
            (None, given) if isinstance(given, bytes) else (str(given), stored(Path(given)))
        )
        samples, rate = read_sound(file, name, longest)
        return at_rate(samples, rate, features, longest, name)

    def _encode(
        self, sounds: Sequence[Sound], weights: list[Tensor] | None = None
    ) -> tuple[Tensor, Segments]:
        first = next(self.model.parameters())
        mels = stacked([filterbanks(sound, self.hearing.features) for sound in sounds])
        features, frames = concatenated(mels), Segments.of([*map(len, mels)])
        return self.model.encode(
            features.to(first.device, first.dtype), frames.to(first.device), weights
        )

    def _generate(
        self, sounds: Sequence[Sound], options: Mapping[str, Any]
    ) -> list[tuple[list[Hypothesis], list[int]]]:
        """The n-best list of each sound, and the best path of CTC without the decoder; a hypothesis
        without tokens where there is no speech."""
        decoding, features = with_options(self.decoding, options), self.hearing.features
        loud = [contrast(each, features) > decoding.contrast for each in sounds]
        spoken = [*compress(sounds, loud)]
        lengths = [tokens_of(features, len(sound)) for sound in spoken]

        @torch.inference_mode()
        def recognised(numbers: list[int]) -> list[tuple[list[Hypothesis], list[int]]]:
            memory, segments = self._encode([spoken[i] for i in numbers])
            heard, end = self.model.ctc(memory), Tokenizer.END
            limits = [min(self.model.config.max_length, lengths[i] + 1) for i in numbers]
            strategy = beam_search(
                decoding.beam, limits, BLANK, end, decoding.length_penalty, memory.device
            )
            filters: list[Filter] = [Forbid(Tokenizer.UNWRITTEN, memory.device)]
            if decoding.ctc_weight:
                weighed = CTCPrefix(heard, segments, decoding.beam, BLANK, end, decoding.ctc_weight)
                filters.insert(0, weighed)
            with on_own_threads(self.model):
                found = finite(search(self.model, memory, segments, strategy, filters))
            return [*zip(found, best_path(heard, segments, BLANK), strict=True)]

        answers = iter(answered(recognised, lengths, decoding.batch_tokens))
        silence = [Hypothesis([], 0.0, 0.0)], list[int]()
        return [next(answers) if each else silence for each in loud]

    def _texts(self, found: Sequence[tuple[list[Hypothesis], list[int]]]) -> list[str]:
        texts = self.tokenizer.decode([best.tokens for (best, *_), _ in found])
        return [text.replace("\n", " ").strip() for text in texts]


def _scores(rates: Mapping[str, Ratio]) -> dict[str, float]:
    return {name: rate.score for name, rate in rates.items()}


def _error_rates(pairs: Sequence[tuple[str, Recording]]) -> dict[str, Ratio]:
    def characters(text: str) -> str:
        return " ".join(normalised(text).replace(" ", "▁"))

    of_characters = token_error_rate(
        [characters(output) for output, _ in pairs], [[characters(each.text)] for _, each in pairs]
    )
    return dict(zip(RATES, (_word_error_rate(pairs), of_characters), strict=True))


def _word_error_rate(pairs: Sequence[tuple[str, Recording]]) -> Ratio:
    return token_error_rate([output for output, _ in pairs], [[each.text] for _, each in pairs])


def stacked(mels: Sequence[Sound]) -> list[Sound]:
    """Filterbanks, each zero-padded to a multiple of `STACK` frames, which make one encoder
    token."""
    return [np.pad(mel, ((0, -len(mel) % STACK), (0, 0))) for mel in mels]
