"""Every range of every record: it is the one named here, its record keeps to it, and the error
names key, value and range."""

import re
from dataclasses import dataclass, field
from importlib import import_module
from math import copysign, inf, isinf, nan
from pathlib import Path
from typing import Annotated

import pytest

from transduct.records import Checked, Range, ranges_of, refuse_if

ROOT = Path(__file__).parents[1]
# The keys by record, as file.Class, and their range. A record that extends another has the ranges
# of that one too.
RANGES = {
    "annotated_images.Collage": {"count": "at least 1"},
    "audio.Features": {"rate": "at least 1,000", "bands": "at least 1"},
    "audio.Masks": {"times time_width bands band_width": "at least 0"},
    "augmentation.Augmentation": {"crop operations": "at least 0", "erase mix": "from 0 to 1"},
    "captioned_images.PicturesConfig": {"size": "from 1 to 8,192"},
    "captioned_images.PictureSource": {
        "count": "at least 0",
        "weight": "above 0 and at most 1,000",
    },
    "files.DataSection": {"workers": "from 0 to 256"},
    "images.ImageSource": {"weight": "above 0 and at most 1,000"},
    "masking.PlainTextConfig": {
        "max_length": "at least 5",
        "mask": "above 0 and below 1",
    },
    "recordings.Augment": {
        "speeds": "from 0.5 to 2",
        "gain": "from 0 to 120",
        "noise": "from -120 to 120",
        "warp": "from 0 to 0.3",
    },
    "sources.DataConfig": {
        "max_length": "at least 2",
        "max_ratio": "0, or at least 1",
        "held_out": "at least 0",
    },
    "sources.TextSource": {"count": "at least 0", "weight": "above 0 and at most 1,000"},
    "replacements.Replacement": {"cycle": "at least 0"},
    "tokenizer.Side": {"size": "from 4 to 4,194,304"},
    "tokenizer.TokenizerConfig": {
        "dropout": "at least 0 and below 1",
        "sample": "from 1 to 1,000,000,000",
    },
    "settings.DecodingConfig": {
        "beam validation_beam": "from 1 to 1,000",
        "length_penalty": "from -20 to 20",
        "batch_tokens workers top_k max_length no_repeat": "at least 0",
        "temperature": "0, or at least 0.001",
        "top_p": "above 0 and at most 1",
        "expansion": "from 0 to 1,000",
    },
    "bert.Config": {
        "vocabulary_size d_model num_heads d_ff": "from 1 to 16,777,216",
        "layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
        "max_length": "from 3 to 1,048,576",
        "n_grams": "from 0 to 16,777,216",
    },
    "dalle.CodesConfig": {
        "picture_size": "from 1 to 8,192",
        "codes d_code": "from 1 to 16,777,216",
        "beta": "at least 0",
    },
    "dalle.Config": {
        "vocabulary_size d_model num_heads d_ff": "from 1 to 16,777,216",
        "max_length": "from 1 to 1,048,576",
        "layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
    },
    "detr.Config": {
        "classes d_model num_heads d_ff queries": "from 1 to 16,777,216",
        "side": "from 1 to 8,192",
        "encoder_layers": "from 0 to 1,000",
        "decoder_layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
        "no_object": "above 0 and at most 1",
    },
    "gpt.Config": {
        "vocabulary_size d_model num_heads d_ff": "from 1 to 16,777,216",
        "layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
        "max_length": "from 2 to 1,048,576",
    },
    "rnn.Config": {
        "source_size target_size d_model d_hidden": "from 1 to 16,777,216",
        "encoder_layers decoder_layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
        "memory_span": "from 2 to 1,048,576",
        "scheduled_sampling": "from 0 to 1",
        "max_length": "from 2 to 1,048,576",
    },
    "speech.Config": {
        "vocabulary_size bands d_model num_heads d_ff": "from 1 to 16,777,216",
        "encoder_layers decoder_layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
        "stem_layers": "from 0 to 1,000",
        "max_length": "from 1 to 1,048,576",
    },
    "transformer.Config": {
        "source_size target_size d_model num_heads d_ff": "from 1 to 16,777,216",
        "d_k d_v num_kv_heads farthest": "from 1 to 16,777,216",
        "encoder_layers decoder_layers": "from 1 to 1,000",
        "dropout attention_dropout": "at least 0 and below 1",
        "max_length": "from 2 to 1,048,576",
        "norm_epsilon": "above 0 and below 1",
        "first_position": "from 0 to 16,777,216",
        "buckets": "from 4 to 16,777,216",
    },
    "vit.Config": {
        "labels": "from 2 to 16,777,216",
        "image_size": "from 1 to 8,192",
        "patch_size backbone_depth d_model num_heads d_ff": "from 1 to 16,777,216",
        "layers": "from 1 to 1,000",
        "dropout": "at least 0 and below 1",
    },
    "image_classification.LabelledImagesConfig": {
        "size": "from 1 to 8,192",
        "hold_out": "at least 0 and below 1",
    },
    "language_modeling.TextConfig": {"context": "at least 2"},
    "language_modeling.WritingConfig": {"length": "at least 1"},
    "object_detection.AnnotatedImagesConfig": {
        "side": "from 1 to 8,192",
    },
    "object_detection.DetectionConfig": {"threshold": "from 0 to 1"},
    "options.PredictConfig": {"batch_tokens": "at least 1"},
    "speech_recognition.RecordingsConfig": {
        "ctc": "at least 0 and below 1",
    },
    "speech_recognition.DecodingConfig": {
        "beam validation_beam": "from 1 to 1,000",
        "length_penalty": "from -20 to 20",
        "ctc_weight": "at least 0 and below 1",
        "contrast": "at least 0",
        "batch_tokens": "at least 1",
    },
    "text_to_image.CaptionedConfig": {
        "max_length": "at least 1",
        "drop_captions": "at least 0 and below 1",
    },
    "text_to_image.PaintingConfig": {"guidance": "from 0 to 100", "samples": "from 1 to 1,000"},
    "sources.FiltersConfig": {
        "length_ratio": "0, or at least 1",
        "near_duplicates": "0, or from 0.5 to 1",
        "unlikely": "at least 0",
    },
    "text.TextTraining": {"r_drop": "at least 0"},
    "config.TrainingConfig": {
        "steps batch_tokens accumulate batches_per_step log_every": "from 1 to 1,000,000,000,000",
        "checkpoint_every keep_checkpoints average": "from 1 to 1,000,000,000,000",
        "learning_rate epsilon timeout": "above 0",
        "warmup validate_every patience divergence_tries": "from 0 to 1,000,000,000,000",
        "label_smoothing betas ema": "at least 0 and below 1",
        "clip weight_decay": "at least 0",
        "validation_share": "above 0 and at most 1",
    },
}


def name_of(cls):
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def records():
    """Every record of the package that declares ranges."""
    for path in (ROOT / "transduct").rglob("*.py"):
        if "from transduct.records import" in path.read_text(encoding="utf-8"):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    waiting = [Checked]
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            if cls.__module__.startswith("transduct."):
                yield cls


RECORDS = {name_of(cls): cls for cls in records()}
KEYS = [(name, key) for name, cls in RECORDS.items() for key in ranges_of(cls)]


def inherited(cls):
    return {key: kept for base in cls.__mro__[1:] for key, kept in ranges_of(base).items()}


def test_every_record_declares_the_ranges_listed_here():
    listed = {
        name: {key: words for keys, words in ranges.items() for key in keys.split()}
        for name, ranges in RANGES.items()
    }
    declared = {
        name: {
            key: str(kept)
            for key, kept in ranges_of(cls).items()
            if kept != inherited(cls).get(key)
        }
        for name, cls in RECORDS.items()
    }
    assert {name: own for name, own in declared.items() if own} == listed


def next_to(bound, to):
    """A number a little below or above a bound. Not the nearest: PyTorch may take that for zero."""
    return (
        copysign(1e300, bound) if isinf(bound) else bound + copysign(1e-6, to) * max(1, abs(bound))
    )


def inside(kept):
    """The extreme values of a range."""
    least, most = max(kept.least, kept.above), min(kept.most, kept.below)
    return [
        least if kept.least > -inf else next_to(least, inf),
        most if kept.most < inf else next_to(most, -inf),
        *([] if kept.also is None else [kept.also]),
    ]


def outside(kept, whole):
    """The values next to a range, and those that are no numbers to compute with."""
    least, most = max(kept.least, kept.above), min(kept.most, kept.below)
    step = (lambda x, to: x + (1 if to > 0 else -1)) if whole else next_to
    found = [] if whole else [nan, inf, -inf]
    if least > -inf:
        found.append(step(least, -inf) if kept.least > -inf else least)
    if most < inf:
        found.append(step(most, inf) if kept.most < inf else most)
    return [value for value in found if value != kept.also]


def made(cls, **values):
    """A record with all its other keys inside their range, put together without checks."""
    record = object.__new__(cls)
    for key, kept in ranges_of(cls).items():
        object.__setattr__(record, key, values.get(key, inside(kept)[0]))
    return record


@pytest.mark.parametrize("name, key", KEYS, ids=str)
def test_every_record_keeps_to_its_ranges(name, key):
    cls = RECORDS[name]
    kept, hint = ranges_of(cls)[key], str(cls.__mro__[0].__annotations__.get(key, ""))
    for value in inside(kept):
        Checked.__post_init__(made(cls, **{key: value}))
        Checked.__post_init__(made(cls, **{key: [value, value]}))
    wrong = outside(kept, whole="int" in hint)
    assert wrong
    for value in wrong:
        message = re.escape(f"{key} is {value}, must be {kept}")
        with pytest.raises(ValueError, match=f"^{message}(; .+)?$"):
            cls.__post_init__(made(cls, **{key: value}))
        with pytest.raises(ValueError, match=rf"^{key}\[1\] is {re.escape(str(value))}, must be"):
            cls.__post_init__(made(cls, **{key: [inside(kept)[0], value]}))


@pytest.mark.parametrize(
    "kept, words",
    [
        (Range(1), "at least 1"),
        (Range(most=0.3), "at most 0.3"),
        (Range(above=0), "above 0"),
        (Range(0, below=1), "at least 0 and below 1"),
        (Range(above=0, most=1), "above 0 and at most 1"),
        (Range(-20.0, 1 << 20), "from -20 to 1,048,576"),
        (Range(0.001, also=0), "0, or at least 0.001"),
    ],
)
def test_a_range_is_shown_in_words(kept, words):
    assert str(kept) == words


@dataclass(frozen=True)
class Planted(Checked):
    """A record of our own, with ranges in a union and in a list."""

    size: Annotated[int, Range(1, 8, why="try 4")] | None = None
    rates: list[Annotated[float, Range(0, below=1)]] = field(default_factory=list)

    def __post_init__(self):
        super().__post_init__()
        refuse_if(self.size == len(self.rates), "size is the number of rates")


def test_a_record_checks_each_field_each_item_and_then_its_rules():
    assert Planted(8, [0.0, 0.5]) == Planted(size=8, rates=[0.0, 0.5])
    assert Planted().size is None
    for arguments, message in (
        ([0], "size is 0, must be from 1 to 8; try 4"),
        ([1, [0.5, 1.0]], "rates[1] is 1.0, must be at least 0 and below 1"),
        ([1, [0.5]], "size is the number of rates"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            Planted(*arguments)
