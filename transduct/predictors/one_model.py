"""A predictor with one model of one family, which is all that its directory holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from transduct.data.tokenizer import TOKENIZER, Tokenizer, check_sizes
from transduct.errors import NotFinite
from transduct.predictors.base import Predictor
from transduct.predictors.model_directory import Family, blank_of, read_weights, section, unfit


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
    if len(labels) != model.config.labels:
        found = f"names {len(labels)} labels, its model tells {model.config.labels} apart"
        raise unfit(directory, found)


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
