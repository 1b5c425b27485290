"""Every family, for the tests they share: a model that generates as search sees it, and a recipe
that trains it."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.helpers import BEGIN, SIZE, TINY, randomise, tiny
from tests.pictures import SIDE, write_pictures
from tests.recipes import tiny_recipe
from tests.tones import PATTERN, RATE, write_tones
from transduct.config import Recipe
from transduct.inference.batches import encode, flat
from transduct.inference.ensemble import Ensemble
from transduct.models import gpt, rnn
from transduct.runs import train
from transduct.segments import Segments


@dataclass(frozen=True)
class Generator:
    """A model that generates, and what it is given of each input."""

    model: Any
    prompted: bool = False  # goes on from its input instead of encoding it

    def inputs(self, sequences):
        """The sources of some sequences, and the token each output begins after."""
        if self.prompted:
            return [ids[:-1] for ids in sequences], [ids[-1] for ids in sequences]
        return sequences, [BEGIN] * len(sequences)

    @torch.inference_mode()
    def logits(self, sequence, output):
        """(T, V): what is predicted after each token, all tokens given at once: no cache, no
        search, no batch."""
        if self.prompted:
            tokens, segments = flat([[*sequence, *output]], "cpu")
            return self.model.logits(self.model.hidden(tokens, segments))[len(sequence) - 1 :]
        memory, memory_segments = encode(self.model, [sequence], torch.device("cpu"))
        tokens, segments = flat([[BEGIN, *output]], "cpu")
        return self.model.logits(self.model.decode(tokens, segments, memory, memory_segments))


def tiny_rnn(**changes):
    torch.manual_seed(1)
    shape = {
        "source_size": SIZE,
        "target_size": SIZE,
        "d_model": 12,
        "d_hidden": 16,
        "dropout": 0.0,
        "max_length": 16,
    }
    return randomise(rnn.RNN(rnn.Config(**{**shape, **changes})).eval())


def tiny_gpt(**changes):
    torch.manual_seed(1)
    shape = {**TINY, "vocabulary_size": SIZE, "layers": 2, "dropout": 0.0, "max_length": 32}
    return randomise(gpt.GPT(gpt.Config(**{**shape, **changes})).eval())


GENERATORS = {
    "transformer": lambda: Generator(tiny()),
    "rnn without attention": lambda: Generator(tiny_rnn(attention="none", cell="lstm")),
    "rnn dot": lambda: Generator(tiny_rnn(attention="dot", decoder_layers=2)),
    "rnn general": lambda: Generator(
        tiny_rnn(attention="general", cell="lstm", bidirectional=False)
    ),
    "rnn concat": lambda: Generator(tiny_rnn(attention="concat")),
    "rnn additive": lambda: Generator(tiny_rnn(attention="additive")),
    "ensemble": lambda: Generator(Ensemble([tiny(), tiny_rnn(attention="general")])),
    "gpt": lambda: Generator(tiny_gpt(), prompted=True),
    "gpt rotary": lambda: Generator(tiny_gpt(positions="rotary"), prompted=True),
}

TRAINING = {
    "steps": 8, "batch_tokens": 120, "warmup": 2, "learning_rate": 0.01, "log_every": 1,
    "validate_every": 4, "checkpoint_every": 3, "average": 2,
}  # fmt: skip
SHORT = {"steps": 4, "warmup": 2, "validate_every": 2, "checkpoint_every": 2}
WIDTHS = {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.1}


def rnn_recipe(**changes: Any) -> Recipe:
    recipe = tiny_recipe(training=TRAINING)
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
    return replace(recipe, model={"family": "rnn", **shape, **changes})


def text_recipe(task: str, data: dict[str, Any], tokenizer: dict[str, Any], **model: Any) -> Recipe:
    """A recipe of a task with one encoder or decoder, over generated or written text."""
    return Recipe(
        task, {"workers": 0, **data}, tokenizer, {**WIDTHS, "layers": 1, **model}, TRAINING
    )


def labelled(kind: str, corpus: str) -> dict[str, Any]:
    parts = {part: {"generate": corpus, "part": part, "count": 12} for part in ("valid", "test")}
    return {"kind": kind, "train": [{"generate": corpus, "count": 60}], "max_length": 60, **parts}


WORDS = {"kind": "word", "size": 60}
PICTURES = {"images": "pictures.tar"}
AUGMENTATION = {"crop": 2, "flip": True, "operations": 1, "erase": 0.3, "mix": 0.3}
SCENES = {"images": "pictures.tar", "collage": {"count": 20, "objects": [1, 3], "sizes": [8, 16]}}
DRAWN = {
    "train": [{"generate": "scenes", "count": 24}],
    "size": 8,
    **{part: {"generate": "scenes", "part": part, "count": 3} for part in ("valid", "test")},
}


def image_codes_recipe(**model: Any) -> Recipe:
    shape = {"channels": [8, 8], "codes": 6, "d_code": 4, **model}
    return Recipe(
        "image_codes", {**DRAWN, "workers": 0}, {}, shape, {**TRAINING, "batch_tokens": 16}
    )


TONES = {"sounds": "tones.tar", "pattern": PATTERN, "join": [2, 3]}
LINES, LABELS = {"text": "lines.txt"}, {"pairs": "labels.tsv"}
RECIPES = {
    "transformer": tiny_recipe(training=TRAINING),
    "rnn without attention": rnn_recipe(attention="none"),
    "rnn general": rnn_recipe(attention="general", cell="lstm"),
    "rnn additive, scheduled sampling": rnn_recipe(attention="additive", scheduled_sampling=0.3),
    "gpt": text_recipe(
        "language_modeling",
        {"train": [LINES], "valid": LINES, "test": LINES, "context": 12},
        {"kind": "character", "size": 40},
    ),
    "masked tokens": text_recipe(
        "masked_language_modeling",
        {"train": [LINES], "valid": LINES, "test": LINES},
        {"kind": "bpe", "size": 60},
    ),
    "masked tokens and next sentence": text_recipe(
        "masked_language_modeling",
        {"train": [LINES], "valid": LINES, "next_sentence": True},
        {"kind": "bpe", "size": 60},
    ),
    "sequence": text_recipe("text_classification", labelled("sequence", "brackets"), WORDS),
    "sequence, BPE dropout": text_recipe(
        "text_classification",
        {"kind": "sequence", "train": [LABELS], "max_length": 60},
        {"kind": "bpe", "size": 60, "dropout": 0.3},
    ),
    "tokens": text_recipe("text_classification", labelled("tokens", "seen_before"), WORDS),
    "span": text_recipe("text_classification", labelled("span", "spans"), WORDS),
    "pictures": text_recipe(
        "image_classification",
        {
            "train": [PICTURES],
            "test": PICTURES,
            "hold_out": 0.2,
            "size": SIDE,
            "augmentation": AUGMENTATION,
        },
        {},
        patch_size=4,
    ),
    "scenes": Recipe(
        "object_detection",
        {"train": [SCENES], "valid": SCENES, "test": SCENES, "side": 32, "workers": 0},
        {},
        {**WIDTHS, "channels": [8, 16], "encoder_layers": 1, "decoder_layers": 2, "queries": 4},
        {**TRAINING, "batch_tokens": 256},
        {"threshold": 0.1},
    ),
    "image codes": image_codes_recipe(quantiser="vq"),
    "image codes, drawn": image_codes_recipe(quantiser="gumbel", beta=0.01),
    "text to image": Recipe(
        "text_to_image",
        {**DRAWN, "max_length": 12, "drop_captions": 0.3, "workers": 0},
        WORDS,
        {**WIDTHS, "layers": 1, "start_from": "codes/model"},
        TRAINING,
        {"samples": 2},
    ),
    "speech": Recipe(
        "speech_recognition",
        {
            "train": [{**TONES, "strings": 40}],
            **{part: {**TONES, "strings": 6} for part in ("valid", "test")},
            "features": {"rate": RATE, "bands": 20},
            "leave_out": ["bela"],
            "workers": 0,
        },
        {"kind": "character", "size": 20},
        {**WIDTHS, "encoder_layers": 1, "decoder_layers": 1, "heads": "bands"},
        TRAINING,
    ),
}


def in_folder(recipe: Recipe, folder) -> Recipe:
    """The recipe with the files it names written."""
    words = [
        "to be or not",
        "that is the question",
        "whether tis nobler",
        "in the mind to suffer",
        "the slings",
        "and",
    ]
    lines = [f"{words[i % 6]} {words[i * i % 5]} {i % 7}" for i in range(60)]
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "labels.tsv").write_text(
        "".join(f"{line}\t{'odd' if i % 2 else 'even'}\n" for i, line in enumerate(lines))
    )
    write_pictures(folder / "pictures.tar", 60)
    write_tones(folder / "tones.tar", 2, 4)
    if recipe.task == "text_to_image":
        train.train(RECIPES["image codes"], folder / "codes", notify=str)
        recipe = replace(
            recipe, model={**recipe.model, "start_from": str(folder / "codes" / "model")}
        )
    return replace(recipe, data={**recipe.data, "root": str(folder)})


def segments_of(sequences):
    return Segments.of([len(ids) for ids in sequences])
