"""Our side of `transduct bench`: functions that train and decode with translation models, to be
timed."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from transduct.data.batching import plan
from transduct.data.lines import read_lines
from transduct.data.tokenizer import TOKENIZER, Tokenizer
from transduct.decoding.filters import Filter, FixedLength
from transduct.devices import pick_device
from transduct.errors import TransductError
from transduct.inference import engine
from transduct.inference.batches import device_of
from transduct.inference.settings import DecodingConfig, longest_output
from transduct.inference.settings import Sentence as Searched
from transduct.models.transformer import SIZES, Config, Transformer
from transduct.predictors.base import load
from transduct.segments import Shape
from transduct.tasks.model import write_model
from transduct.tasks.translation import losses_of, make_batch
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks, Terms
from transduct.training.machine import prepare_machine
from transduct.training.step import Stepper, seed_generators

Sentence = Sequence[int]
Batches = list[tuple[list[Sentence], list[Sentence]]]  # of sources and targets


def untrained(directory: Path, size: str, vocabulary: int) -> None:
    """Write the directory of a translation model with random weights and the vocabulary w0, w1,
    ..."""
    seed_generators(1)
    model = Transformer(Config(vocabulary, vocabulary, **SIZES[size]))
    tokenizer = Tokenizer.train(
        [f"w{number}" for number in range(vocabulary - 3)], "word", vocabulary
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TOKENIZER
        tokenizer.save(path)
        write_model(
            directory,
            "translation",
            model,
            {"family": "transformer", "decoding": asdict(DecodingConfig())},
            [path],
            "Of drawn weights.\n",
        )


def read_sentences(model: str, path: Path) -> list[list[int]]:
    """Encode the lines of a file as source tokens, truncated to what the model takes.

    Raises:
        TransductError: the file cannot be read, or no line holds a word.
    """
    translator = load(model, "cpu", verb="translate")
    found = [ids[: translator.longest] for ids in translator.encode(list(read_lines(path))) if ids]
    if not found:
        raise TransductError(f"{path}: holds no sentence; give a text to translate")
    return found


def decoding(
    model: str,
    sources: Sequence[Sentence],
    lengths: Sequence[int] | None,
    beam: int,
    precision: str,
    device: str,
    threads: int | None = None,
    **settings: Any,
) -> Callable[[], int]:
    """Returns a function that decodes the sources once and returns the number of generated tokens.

    Args:
        lengths: the number of tokens in each output; by default the model ends them.
        threads: of this process; PyTorch's default if not given.
        settings: other fields of `DecodingConfig`.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    translator = load(
        model, device, "bfloat16" if precision == "bfloat16" else "float32", "translate"
    )
    ended = [[*source, Tokenizer.END] for source in sources]
    config = replace(DecodingConfig(beam=beam, **settings), expansion=translator.decoding.expansion)
    place = device_of(translator.model)
    most = translator.longest + 1
    limits = (
        [min(most, longest_output(len(source), config.expansion)) for source in ended]
        if lengths is None
        else list(lengths)
    )

    def constrain(some: Sequence[Searched]) -> Filter:
        rows = [one.limit for one in some for _ in range(beam)]
        return FixedLength(Tokenizer.END, rows, place)

    def run() -> int:
        found = engine.generate(
            translator.model, ended, limits, config, Tokenizer.BEGIN, Tokenizer.END,
            Tokenizer.UNWRITTEN, None if lengths is None else constrain,
        )  # fmt: skip
        return sum(len(hypotheses[0].tokens) + 1 for hypotheses in found)

    return run


def training_batches(
    sources: Sequence[Sentence], lengths: Sequence[int], vocabulary: int, tokens: int, most: int
) -> Batches:
    """Up to `most` batches as training makes them, of sentences of like length, at least nine
    tenths full if there are such.

    Args:
        lengths: the number of tokens of each target, its end included, which are drawn at random.
        tokens: the budget of a batch, ends included.
    """
    random = Random(2)
    targets = [[random.randrange(3, vocabulary) for _ in range(length - 1)] for length in lengths]
    both = np.array(
        [
            (len(source) + 1, len(target) + 1)
            for source, target in zip(sources, targets, strict=True)
        ]
    )
    planned = plan(both, 1, 0, tokens)
    full = [numbers for numbers in planned if both[numbers].sum(0).max() > 0.9 * tokens] or planned
    return [
        ([sources[i] for i in numbers], [targets[i] for i in numbers]) for numbers in full[:most]
    ]


def training(
    size: str,
    vocabulary: int,
    batches: Batches,
    precision: Any,
    device: str,
    threads: int | None = None,
    compiled: bool = False,
    captured: bool = False,
    deterministic: bool = True,
) -> Callable[[], int]:
    """Returns a function that takes one training step on each batch and returns the number of
    target tokens.

    Args:
        threads: of this process; PyTorch's default if not given.
        compiled, captured: as in `TrainingConfig`; batches are then filled up to one shape.
        deterministic: as in training; False measures what that costs.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    place = pick_device(device)
    prepare_machine()
    torch.use_deterministic_algorithms(deterministic)
    model: Any = Transformer(Config(vocabulary, vocabulary, **SIZES[size])).to(place).train()
    most = max(sum(map(len, source)) for source, _ in batches) * 2
    config = TrainingConfig(
        precision=precision, batch_tokens=most, compile=compiled, capture=captured
    )

    def loss(model: Any, batch: Any) -> Terms:
        total, _ = losses_of(model, batch, config.label_smoothing)
        return {"tokens": (total, batch.counts["tokens"], 1.0)}

    stepper = Stepper(model, config, loss, Ranks.join(place))
    shape = _around(batches) if compiled or captured else None
    made = [make_batch(*batch, shape) for batch in batches]

    def run() -> int:
        for batch in made:
            stepper.take([batch], 1, config.learning_rate / config.warmup).loss()
        if place.type == "cuda":
            torch.cuda.synchronize()
        return sum(batch.tokens for batch in made)

    return run


def _around(batches: Batches) -> Shape:
    """The shape that holds every batch, end tokens included."""
    lengths = [[len(sentence) + 1 for sentence in side] for batch in batches for side in batch]
    return Shape.around(max(map(sum, lengths)), max(map(len, lengths)), max(map(max, lengths)))
