"""Model directories: read one for use, on a device and in a precision, by a predictor that needs no
more than its model and the parts beside it; and what all of them check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from transduct import storage
from transduct.data.tokenizer import TOKENIZER, Tokenizer, check_sizes, tokenizers_of
from transduct.devices import forget_shapes, keep_freed_memory
from transduct.errors import NotFinite, TransductError, require
from transduct.inference.fused import fuse
from transduct.inference.packed import fuse_projections, pack_layers, remember_positions
from transduct.inference.quantised import STEPS, QuantisedLinear, pack_quantised, quantise
from transduct.kernels import cpu
from transduct.predictors.base import Predictor
from transduct.records import record, refusal

Record = TypeVar("Record")
SHOWN, LONGEST = 12, 40  # the most labels in a message, and characters of each


@dataclass(frozen=True)
class Family:
    """A family of models: its configuration record, its named sizes, and the function that builds a
    model."""

    config: type
    sizes: Mapping[str, Mapping[str, Any]]
    build: Callable[[Any], Any]


def blank(build: Callable[[Any], nn.Module], config: Any, source: str | None = None) -> Any:
    """Build a model on the meta device, without memory for its weights; `read_weights` fills it.

    Args:
        source: the file of the configuration, for errors; None for a recipe.

    Raises:
        TransductError: the configuration is inconsistent.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except ValueError as error:
        raise refusal(error, vars(config), "model", source) from error


def section(settings: Mapping[str, Any], name: str, kind: type[Record], directory: Path) -> Record:
    """A section of the settings in a model directory's `config.json`, as a record.

    Raises:
        TransductError: it is missing or wrong.
    """
    return record(kind, settings.get(name), name, str(directory / storage.CONFIG))


def require_fit(fits: bool, directory: Path, found: str) -> None:
    """Check that a `config.json` is that of the model beside it; else `found` says what is not.

    Raises:
        TransductError: it is not.
    """
    advice = "they do not belong together: copy the model again"
    require(fits, f"{found}; {advice}", file=str(directory / storage.CONFIG))


def blank_of(
    settings: Mapping[str, Any], build: Callable[[Any], nn.Module], kind: type, directory: Path
) -> Any:
    """Like `blank`, from the settings in a model directory's `config.json`; `kind` is the
    configuration record."""
    return blank(
        build, section(settings, "model", kind, directory), str(directory / storage.CONFIG)
    )


def prepare(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and replace its layers by faster ones, in place."""
    if device.type != "cpu":
        fuse_projections(model)
        remember_positions(model, torch.float32)
    model.to(device, dtype).eval()
    if device.type == "cpu":
        pack_layers(model)
        if any(isinstance(module, QuantisedLinear) for module in model.modules()):
            pack_quantised(model)
        if cpu.library() is not None:
            fuse(model)  # last, because it takes only what is packed


def read_weights(model: nn.Module, directory: Path, device: torch.device, precision: str) -> None:
    """Fill a blank model with the weights of a model directory and make it ready for inference on a
    device."""
    path = directory / storage.WEIGHTS
    # others copy by themselves
    storage.fill(model, storage.read_tensors(path), path, copy=device.type == "cpu")
    if device.type == "cpu":
        keep_freed_memory()
        forget_shapes()
    else:  # cuDNN's attention plans anew for every shape, and shapes rarely repeat here
        torch.backends.cuda.enable_cudnn_sdp(False)
    prepare(model, device, torch.bfloat16 if precision == "bfloat16" else torch.float32)


def read_translator(
    directory: Path,
    config: dict[str, Any],
    families: Mapping[str, Any],
    device: torch.device,
    precision: str,
) -> tuple[Any, list[Tokenizer], bool]:
    """Load the translation model in a directory, of one of the families, its tokenizers (the
    source's first), and whether it writes backwards."""
    source = str(directory / storage.CONFIG)
    if not isinstance(backwards := config.get("backwards", False), bool):
        found = f"backwards is {backwards!r:.40}, expected true or false"
        raise TransductError(f"{source}: {found}; copy the model again")
    name = config.get("family", "transformer")
    require(
        isinstance(name, str) and name in families,
        f"unknown family '{name}'; known are: {', '.join(families)}",
        file=source,
    )
    family = families[name]
    model = blank_of(config, family.build, family.config, directory)
    if quantised := config.get("quantised"):
        require(
            quantised == "int8" and precision == "float32",
            f"quantised to {quantised!r} and asked for {precision}; ask for float32",
            file=source,
        )
        quantise(model)
    tokenizers = tokenizers_of(directory, (model.config.source_size, model.config.target_size))
    read_weights(model, directory, device, precision)
    least = (
        min(int(x.min()) for x in model.parameters() if x.dtype is torch.int8) if quantised else 0
    )
    require(  # a kernel would multiply it wrongly
        least >= -STEPS,
        f"has an 8-bit weight of {least}, expected -{STEPS} to {STEPS}; convert the model again",
        file=str(directory / storage.WEIGHTS),
    )
    return model, tokenizers, backwards


class OneModel(Predictor):
    """Loads itself: made of its model and the parts beside it, in order.

    Attributes:
        family: what its model is built by.
        sections: those of `config.json` that it is made of, with their record types.
    """

    family: ClassVar[Family]
    sections: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def load(
        cls, directory: Path, config: dict[str, Any], device: torch.device, precision: str
    ) -> Self:
        """Load the model in a directory whose `config.json` has been read."""
        model = blank_of(config, cls.family.build, cls.family.config, directory)
        parts = cls.parts(directory, config, model)
        read_weights(model, directory, device, precision)
        return cls(model, *parts)

    @classmethod
    def parts(
        cls,
        directory: Path,
        config: Mapping[str, Any],
        model: Any,  # noqa: ARG003
    ) -> list[Any]:
        """What it is made of beside its model.

        Raises:
            TransductError: a part is missing, or does not belong to the model.
        """
        return [section(config, name, kind, directory) for name, kind in cls.sections.items()]


class TextModel(OneModel):
    """A model of texts with one vocabulary; its tokenizer comes first of the parts."""

    tokenizer: Tokenizer

    def __init__(self, model: Any, tokenizer: Tokenizer, decoding: Any) -> None:
        super().__init__(model)
        self.tokenizer, self.decoding = tokenizer, decoding

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        tokenizer = Tokenizer.load(directory / TOKENIZER).in_use()
        check_sizes(directory, [tokenizer.size], [model.config.vocabulary_size])
        return [tokenizer, *super().parts(directory, config, model)]

    def token_counts(self, inputs: Sequence[str]) -> list[int]:
        """The number of tokens of each text, an end token counted."""
        return [len(ids) + 1 for ids in self.tokenizer.encode(inputs)]

    def unknown(self, text: str) -> list[str]:
        """What the vocabulary lacks of a text; see `Predictor`."""
        return self.tokenizer.unknown(text)


def check_labels_fit(directory: Path, labels: Sequence[str], model: Any) -> None:
    """Check that a model has an output for each label.

    Raises:
        TransductError: there are more or fewer.
    """
    count = model.config.labels
    found = f"names {len(labels)} labels, its model tells {count} apart"
    require_fit(len(labels) == count, directory, found)


def three_of(count: int) -> range:
    """Up to three evenly spaced indices below `count`, of examples to show as samples."""
    return range(0, count, max(1, count // 3))[:3]


def require_finite(*answers: Tensor) -> None:
    """Check a model's answers.

    Raises:
        NotFinite: one holds NaN or infinity.
    """
    if not all(bool(each.isfinite().all()) for each in answers):
        raise NotFinite


def shown_labels(labels: Sequence[str]) -> str:
    """Labels for a message, abridged: there may be many, and wrong columns may hold whole
    sentences."""
    shown = [
        label if len(label) <= LONGEST else f"{label[:LONGEST]}..." for label in labels[:SHOWN]
    ]
    return ", ".join([*shown, "..."] if len(labels) > SHOWN else shown)


def unknown_label(label: str, known: Sequence[str]) -> str:
    """What is wrong with a label that is not among those of a model."""
    return f"unknown label '{label}'; training has: {shown_labels(known)}"
