"""Speech recognition: text from sounds, by an encoder-decoder trained with cross-entropy and CTC.

Let N be the frames and M the target tokens of a batch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from transduct.data.batching import Indices
from transduct.data.corpus import build, inputs_of
from transduct.data.files import Refused, corpora
from transduct.data.recordings import (
    Recording,
    SoundSource,
    Tally,
    Utterances,
    packed,
    read_recordings,
    segments_of,
    tokens_of,
    write_recordings,
)
from transduct.data.text_warnings import UnknownRate
from transduct.data.tokenizer import Tokenizer, TokenizerConfig
from transduct.errors import TransductError, require
from transduct.functional.losses import ctc_loss, projected_cross_entropy
from transduct.models.speech import Speech
from transduct.predictors.base import Report
from transduct.predictors.model_directory import three_of
from transduct.predictors.speech_recognition import (
    BLANK,
    RATES,
    Batch,
    DecodingConfig,
    Hearing,
    Recogniser,
    RecordingsConfig,
    Spoken,
    fill_up,
    make_batch,
)
from transduct.tasks.base import Epoch
from transduct.tasks.model import files_summary, searched
from transduct.tasks.sections import Sections
from transduct.tasks.text import TextTask
from transduct.training.distributed import Terms


def batch_of(
    numbers: Indices,
    *,
    utterances: Utterances,
    tokenizer: Tokenizer,
    seed: int,
    epoch: int,
    capacity: int,
) -> Batch:
    """Make a batch of the utterances with given numbers: a pure function of (seed, epoch,
    utterance).

    Args:
        capacity: the encoder tokens of a shape to fill the batch up to; 0 for none.
    """
    made = [utterances.make(seed, epoch, number) for number in numbers.tolist()]
    batch = make_batch([mel for mel, _ in made], tokenizer.encode([text for _, text in made]))
    return fill_up(batch, capacity) if capacity else batch


def ctc_frames(ids: Sequence[int]) -> int:
    """The fewest frames in which CTC can emit a text: one for each token, and a blank between equal
    neighbours."""
    return len(ids) + sum(a == b for a, b in pairwise(ids))


class SpeechRecognitionTask(TextTask):
    """Trains an encoder-decoder on recordings and their texts."""

    name, title, unit = "speech_recognition", "Speech recogniser", "recordings"
    sections = Sections(RecordingsConfig, DecodingConfig, TokenizerConfig)
    families = {"speech": Recogniser.family}
    against_dropout = "sounds have no tokens"
    scores = RATES
    derived = {"vocabulary_size": "tokenizer.size", "bands": "data.features.bands"}
    hearing: Hearing

    def check(self) -> None:
        super().check()
        data = self.data
        require(
            data.ctc or not self.decoding.ctc_weight,
            "{key} is 0, so that CTC is not learnt; set decoding.ctc_weight to 0",
            key="data.ctc",
        )
        self.hearing = Hearing(data.features, data.max_seconds, data.leave_out)
        self._speakers = set[str]()  # of all recordings read so far
        self.hypotheses = self.decoding.validation_beam
        self.search = {"beam": self.decoding.validation_beam}

    def prepare(self) -> None:
        """Read the validation set, train the tokenizer unless the run has one, and prepare the
        corpus.

        Reading the validation set first finds a mistake in it before hours of work.
        """
        data, root = self.data, Path(self.data.root)
        if data.valid is not None:
            refused = Refused(data.broken)
            spoken = Spoken(data.valid, [], root, others=corpora(data))
            heard = spoken.read(self.hearing, refused)
            refused.report(self.notify, "validation: ")
            self._speakers.update(each.speaker for each in heard)
            self._validation = [each for each in heard if each.speaker not in data.leave_out]
            require(
                self._validation,
                f"data.valid: each of its {len(heard):,} recordings is of a speaker that "
                "data.leave_out names; leave one of them in, or validate on others",
            )
        self.make_tokenizer(self._texts())
        inputs = inputs_of(data, {"the tokenizer": self.tokenizer}, ("ctc", "augment"))
        longest = self.model_config().max_length
        inputs |= {"augment.speeds": data.augment.speeds, "model.max_length": longest}
        for source in data.train:
            if path := segments_of(root / source.sounds):
                inputs[f"file segments of {source.sounds}"] = sha256(path.read_bytes()).hexdigest()
        self.corpus = build(self.directory / "corpus", inputs, self._fill, self.notify)
        if self._validation is not None:
            about = data.features.rate, data.augment.speeds[0]
            rows = ([packed(each.samples, *about)] for each in self._validation)
            self.report_leaks("validation recordings", rows, 1)

    def _texts(self) -> Iterator[str]:
        found = Tally(Refused(self.data.broken))
        texts = (
            each.text for source in self.data.train for each in self._recordings(source, found)
        )
        if (first := next(texts, None)) is None:
            raise self._none_left(", ".join(source.sounds for source in self.data.train), found)
        yield from chain([first], texts)

    def _recordings(self, source: SoundSource, found: Tally) -> Iterator[Recording]:
        """Yields the recordings of a source that are for training."""
        data = self.data
        for each in read_recordings(
            source, Path(data.root), data.features, data.max_seconds, found, corpora(data)
        ):
            self._speakers.add(each.speaker)
            if each.speaker not in data.leave_out:
                yield each

    def _fill(self, folder: Path) -> dict[str, Any]:
        data, found = self.data, Tally(Refused(self.data.broken))
        unknown = UnknownRate("transcripts")
        sources = [self._learnable(source, found, unknown) for source in data.train]
        manifest = write_recordings(folder, sources, data.features.rate, data.augment.speeds)
        self._check_speakers()
        for source, (start, stop, _) in zip(data.train, manifest["weights"], strict=True):
            if start == stop:
                raise self._none_left(source.sounds, found)
        files = files_summary(data, found.dropped)
        count = manifest["rows"] // len(data.augment.speeds)
        changed = (
            f"; {found.resampled:,} resampled to {data.features.rate} Hz" if found.resampled else ""
        )
        self.notify(f"corpus prepared: {count:,} recordings {files}{changed}{unknown}")
        found.refused.report(self.notify)
        return manifest | {"dropped": found.dropped}

    def _none_left(self, sounds: str, found: Tally) -> TransductError:
        files = files_summary(self.data, found.dropped)
        return TransductError(
            f"{sounds}: no recording is left to train on {files}; check data.train and "
            "data.leave_out"
        )

    def _check_speakers(self) -> None:
        """Check that all speakers to leave out exist; the test set is read only if one is missing
        elsewhere.

        Raises:
            TransductError: no recording is of one of them.
        """
        data, out = self.data, set(self.data.leave_out)
        if data.test is not None and not out <= self._speakers:
            # to note their speakers
            deque(self._recordings(data.test, Tally(Refused("skip"))), maxlen=0)
        unknown = sorted(out - self._speakers)
        there = ", ".join(sorted(filter(None, self._speakers))) or "none"
        require(
            not unknown,
            f"{{key}} names '{', '.join(unknown)}', who has no recording; speakers are: {there}",
            key="data.leave_out",
        )

    def _learnable(
        self, source: SoundSource, found: Tally, unknown: UnknownRate
    ) -> Iterator[Recording]:
        """Yields the recordings that are long enough for CTC at the highest speed, and whose texts
        fit the model; counts unknown tokens of their texts.

        Where recordings are joined to strings, a string may repeat one recording, and that text
        must fit too.
        """
        fastest, longest = max(self.data.augment.speeds), self.model_config().max_length
        for each in self._recordings(source, found):
            with found.refused.each():
                tokens = tokens_of(self.data.features, int(len(each.samples) / fastest))
                single, doubled = self.tokenizer.encode(
                    [each.text, " ".join([each.text] * source.join[1])]
                )
                times = f", {source.join[1]} times in a string," if source.strings else ""
                require(
                    len(doubled) < longest,
                    f"{each.name}: its text{times} has {len(doubled) + 1:,} tokens with the end, "
                    f"model.max_length is {longest:,}; raise it, or cut the recording anew",
                )
                needed = ctc_frames(single)
                require(
                    tokens >= needed,
                    f"{each.name}: too short, {tokens} encoder tokens, its text needs "
                    f"{needed} for CTC; check it",
                )
                unknown.add([single])
                yield each

    def epoch(self, number: int) -> Epoch[Batch]:
        data, seed = self.data, self.training.seed
        utterances = Utterances(self.corpus, data.train, data.features, data.augment)
        make = partial(
            batch_of,
            utterances=utterances,
            tokenizer=self.tokenizer,
            seed=seed,
            epoch=number,
            capacity=self.capacity,
        )
        return Epoch(utterances.tokens(seed, number)[:, None], make)

    def loss(self, model: Speech, batch: Batch) -> Terms:
        """Label-smoothed cross-entropy of the decoder and CTC loss of the encoder, both summed."""
        smoothing = self.training.label_smoothing
        memory, segments = model.encode(batch.features, batch.frames)
        hidden = model.decode(batch.inputs, batch.target_segments, memory, segments)
        loss, _ = projected_cross_entropy(
            hidden, model.output_table, batch.outputs, smoothing, batch.counted
        )
        ctc = ctc_loss(model.ctc(memory), segments, batch.text, batch.text_segments, BLANK)  # (B,)
        if batch.heard is not None:  # filler may be shorter than its text, which is infinite
            ctc = ctc.masked_fill(batch.heard == 0.0, 0.0)
        counts, weight = batch.counts, self.data.ctc
        return {
            "tokens": (loss, counts["tokens"], 1.0 - weight),
            "ctc": (ctc.sum(), counts["ctc"], weight),
        }

    def predictor(self, model: Speech) -> Recogniser:
        return Recogniser(model, self.tokenizer, self.hearing, self.decoding)

    def samples(self, data: list[Recording], outputs: Sequence[str]) -> list[tuple[str, ...]]:
        return [(data[i].name, outputs[i], data[i].text) for i in three_of(len(data))]

    def examples(self) -> int:
        """The recordings, each of which the corpus holds at several speeds."""
        return len(self.corpus) // len(self.data.augment.speeds)

    def measured(self, report: Report) -> str:  # noqa: ARG002
        return f", {searched(self.decoding.validation_beam)}"

    def settings(self) -> dict[str, Any]:
        return {"hearing": asdict(self.hearing), **super().settings()}
