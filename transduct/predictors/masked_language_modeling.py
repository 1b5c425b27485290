"""Inference for masked language modelling: fills in masked tokens, and measures texts.

Let N be the tokens of a batch, B its sequences, K its masked tokens, V the tokenizer's vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transduct.config import Recipe
from transduct.data.files import Refused
from transduct.data.masking import (
    Masking,
    PlainTextConfig,
    check_enough,
    encoded_lines,
    second_lines,
)
from transduct.data.pieces import BLANK
from transduct.data.tokenizer import Tokenizer
from transduct.errors import require
from transduct.evaluation.bootstrap import Ratio
from transduct.inference.batches import answered, device_of
from transduct.models.bert import SIZES, Bert, Config
from transduct.predictors.base import Predictor, Report
from transduct.predictors.isolation import of_input
from transduct.predictors.model_directory import Family, TextModel, require_finite, three_of
from transduct.predictors.options import (
    NoOptions,
    check_inputs,
    check_lengths,
    tell_unknown,
    with_options,
)
from transduct.predictors.text import embed, encoder_input, test_lines
from transduct.segments import Axis, FlatBatch, Segments, Shape

MASK = "[MASK]"
MEASURING_SEED = 0  # chooses the masks of every evaluation, whatever seed a model was trained with
IGNORED = -100  # the target that PyTorch's cross-entropy leaves out
BATCH_TOKENS = 8192  # the most tokens in a batch outside training
SUBSTITUTE = "\x1a"  # the control character SUB, which no text contains, stands for a mask

# the score that belongs to each term of the loss
SCORES = {"tokens": "masked_accuracy", "pairs": "accuracy"}


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Sequences with masked tokens.

    Attributes:
        ids, types: (N,) tokens, and their types: 0 up to the first end token, then 1.
        places: (K,) the positions of the tokens to predict.
        targets: (K,) the original tokens there; those of filler are IGNORED.
        apart: (B,) 1 where the second line does not follow the first; None for single lines.
    """

    terms = {"tokens": "masked", "pairs": "pairs"}
    ids: Annotated[Tensor, Axis("tokens", Tokenizer.END)]
    types: Annotated[Tensor, Axis("tokens")]
    segments: Annotated[Segments, Axis("tokens")]
    places: Annotated[Tensor, Axis("masked", within="tokens")]
    targets: Annotated[Tensor, Axis("masked", IGNORED)]
    apart: Annotated[Tensor | None, Axis("pairs", IGNORED)]


def make_batch(
    numbers: Sequence[int],
    first: Sequence[Any],
    second: Sequence[Any] | None,
    unrelated: Any,
    masking: Masking,
    max_length: int,
) -> Batch:
    """Make the batch of the examples with these numbers from lists of ids, without special
    tokens."""
    tokens, types, segments, _ = encoder_input(first, second, max_length)
    ids, places = masking.hide(tokens.tolist(), segments.offsets.tolist(), numbers)
    following = None if second is None else torch.tensor(unrelated, dtype=torch.int64)
    return Batch(
        torch.tensor(ids), types, segments, torch.tensor(places), tokens[places], following
    )


def fill_up(batch: Batch, tokens: int, longest: int) -> Batch:
    """The batch filled up to one of a few shapes, for a captured graph; see `Shape.near`. As it is
    if its lengths are uncommon."""
    shape = Shape.near(batch.segments.lengths.tolist(), tokens, longest)
    if shape is None:
        return batch
    masked = shape.rounded_up(len(batch.places))
    return batch.filled(tokens=shape, masked=masked, pairs=shape.sequences)


def answers(model: Bert, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits and targets: for "tokens" (K, V + 1) and (K,); for "pairs", if there are any, (B, 2)
    and (B,)."""
    x = model.encode(batch.ids, batch.types, batch.segments)
    found = {
        "tokens": (model.masked_logits(x.index_select(0, batch.places)).float(), batch.targets)
    }
    if batch.apart is not None:
        found["pairs"] = (model.follows(x, batch.segments).float(), batch.apart)
    return found


class MaskedLanguageModel(TextModel):
    """Fills in masked tokens and measures texts, with one model and its tokenizer."""

    verbs, embed = Predictor.verbs | {"embed"}, embed
    family = Family(Config, SIZES, Bert)

    def __init__(self, model: Bert, tokenizer: Tokenizer, mask_rate: float) -> None:
        super().__init__(model, tokenizer, NoOptions())  # nothing is searched for
        self.mask_rate = mask_rate
        self.max_length = model.config.max_length

    @classmethod
    def parts(cls, directory: Path, config: Mapping[str, Any], model: Any) -> list[Any]:
        mask_rate = config.get("mask", PlainTextConfig.mask)
        return [*super().parts(directory, config, model), mask_rate]

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> list[str]:
        """The lines of the file `source`, or of the recipe's test set."""
        return test_lines(PlainTextConfig, files, recipe, refused)

    @property
    def in_pairs(self) -> bool:
        """Whether the model was trained on pairs of lines, to predict whether the second
        follows."""
        return bool(self.model.config.head == "pretraining")

    def unknown(self, text: str) -> list[str]:
        """What the vocabulary lacks of a text; see `Predictor`."""
        return self.tokenizer.unknown(text.replace(MASK, " "))

    @torch.inference_mode()
    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """Replace every "[MASK]" in each text by the most likely token.

        Masks of one text are filled in independently of each other. A text without masks is
        returned unchanged.

        Raises:
            TransductError: a text with a mask is longer than the model takes, or an option is given
                (there are none).
            NotFinite: the model answers with NaN.
        """
        with_options(NoOptions(), options)
        check_inputs(inputs)
        tell_unknown(inputs, self.unknown)
        rows, device = list[tuple[list[int], list[int]]](), device_of(self.model)
        for number, text in enumerate(inputs):
            if MASK in text:
                with of_input(number):
                    rows.append(self._masked(text))
                    check_lengths([rows[-1][0]], self.max_length - 2)

        def filled(numbers: list[int]) -> list[str]:
            ids, masks = zip(*(rows[i] for i in numbers))
            tokens, types, segments, _ = encoder_input(ids, None, self.max_length)
            starts = zip(segments.offsets.tolist(), masks)
            places = torch.tensor([start + 1 + mask for start, each in starts for mask in each])
            x = self.model.encode(*(each.to(device) for each in (tokens, types, segments)))
            logits = self.model.masked_logits(x.index_select(0, places.to(device)))
            require_finite(logits)
            first = Tokenizer.END + 1
            tokens[places] = first + logits[:, first : self.tokenizer.size].argmax(-1).cpu()
            written = torch.split(tokens, segments.lengths.tolist())
            return self.tokenizer.decode([row[1:-1].tolist() for row in written])

        texts = iter(answered(filled, [len(ids) + 2 for ids, _ in rows], BATCH_TOKENS))
        return [next(texts).replace("\n", " ") if MASK in text else text for text in inputs]

    def check_against(self, other: "MaskedLanguageModel", data: Sequence[str]) -> None:
        super().check_against(other, data)
        require(
            other._asked_for == self._asked_for,
            "the other model would be asked for other tokens; compare models of one recipe",
        )

    def _examples(
        self, lines: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]], np.ndarray]:
        """The ids of all lines that are not blank; for each example the ids of its second line
        (empty without pairs), and whether that line does not follow the first."""
        ids = encoded_lines(lines, self.tokenizer)
        count = len(ids) - self.in_pairs
        check_enough(count, self.in_pairs)
        if not self.in_pairs:
            return ids, [[]] * count, np.zeros(count, bool)
        shown = second_lines(count, MEASURING_SEED, 0)
        return ids, [ids[i + 1] for i in shown], shown != np.arange(count)

    @property
    def _asked_for(self) -> tuple[Any, ...]:
        """The settings that decide which tokens of a text are masked."""
        return self.tokenizer.digest, self.max_length, self.mask_rate, self.model.config.head

    def _masked(self, text: str) -> tuple[list[int], list[int]]:
        """The ids of a text with masks, and the positions of the masks.

        Each mask is encoded as a character that the tokenizer does not know and never merges with
        its neighbours. The blank before it becomes part of it, as it would of the token that it
        stands for.

        Raises:
            TransductError: there are more masks than the model takes tokens, or the tokenizer
                merged adjacent masks into one unknown token, as some do.
        """
        count, longest = text.count(MASK), self.max_length - 2
        # first, because encoding takes time for each mask
        require(count <= longest, f"{count} masks, the model takes {longest} tokens; shorten it")
        *befores, whole = accumulate(part + SUBSTITUTE for part in text.split(MASK))
        *befores_ids, ids = self.tokenizer.encode([*befores, whole.removesuffix(SUBSTITUTE)])
        hidden = {len(before) - 1 for before in befores_ids}
        merges_blanks = self.tokenizer.kind in ("bpe", "unigram", "word")
        found: list[int] = []
        places = []
        for place, token in enumerate(ids):
            if place in hidden:
                if merges_blanks and self.tokenizer.pieces(found[-1:]) == [BLANK]:
                    found.pop()
                places.append(len(found))
            found.append(self.tokenizer.size if place in hidden else token)
        require(
            len(places) >= count,
            f"this model sees masks side by side as one; put blanks between them: {text:.60}",
        )
        return found, places

    def _samples(self, lines: Sequence[str]) -> list[tuple[str, str, str]]:
        """A few lines with a word masked, as filled in by the model, and as they are."""
        most = self.max_length - 3  # bytes; a text has no more tokens than bytes
        short = [
            line
            for line in lines
            if len(line.split()) > 1 and len(line.encode()) <= most and MASK not in line
        ]
        shown = [short[i] for i in three_of(len(short))]
        words = [line.split() for line in shown]
        hidden = [" ".join([*w[: len(w) // 2], MASK, *w[len(w) // 2 + 1 :]]) for w in words]
        return list(zip(hidden, self.predict(hidden), shown))

    @torch.inference_mode()
    def measured(self, data: Sequence[str], options: Mapping[str, Any]) -> Report:
        """The scores of the lines of a text; the masks and the pairs of lines are the same in every
        evaluation, and there are no options.

        Raises:
            TransductError: the text is too short, or an option is given.
        """
        with_options(NoOptions(), options)
        tell_unknown(data, self.unknown)
        ids, second, unrelated = self._examples(data)
        masking = Masking(self.mask_rate, self.tokenizer.size, MEASURING_SEED, 0)

        def scored(numbers: list[int]) -> np.ndarray:
            """Of each example its nats, its masked tokens that are right, how many are masked, and
            whether its pair is right: (examples, 4)."""
            first, others = ([side[i] for i in numbers] for side in (ids, second))
            following = others if self.in_pairs else None, unrelated[numbers]
            batch = make_batch(numbers, first, *following, masking, self.max_length)
            found = answers(self.model, batch.to(device_of(self.model)))
            require_finite(*(logits for logits, _ in found.values()))
            right = {
                term: logits.argmax(-1) == expected for term, (logits, expected) in found.items()
            }
            nats = F.cross_entropy(*found["tokens"], reduction="none")
            examples = batch.segments.sequence[batch.places].numpy()
            columns = [
                np.bincount(examples, each.double().cpu().numpy(), len(numbers))
                for each in (nats, right["tokens"], torch.ones(len(examples)))
            ]
            pairs = right.get("pairs", torch.zeros(len(numbers)))
            return np.stack([*columns, pairs.double().cpu().numpy()], 1)

        sizes = [len(a) + len(b) for a, b in zip(ids, second)]
        nats, tokens, masked, pairs = np.array(answered(scored, sizes, BATCH_TOKENS)).T
        right = {SCORES["tokens"]: Ratio(tokens, masked)}
        if self.in_pairs:
            right[SCORES["pairs"]] = Ratio(pairs, np.ones(len(pairs)))
        scores = {name: score.score for name, score in right.items()}
        free = self.max_length - (3 if self.in_pairs else 2)
        details = {
            **{name: {"interval": score.interval()} for name, score in right.items()},
            "masked": int(masked.sum()),
            "empty": len(data) - len(ids),
            "cut": sum(size > free for size in sizes),
            "samples": self._samples(data),
        }
        lower = frozenset({"nats_per_token"})
        per_token = float(nats.sum() / masked.sum())
        return Report({"nats_per_token": per_token, **scores}, details, [], lower, right)
