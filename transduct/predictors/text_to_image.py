"""Inference for text to image: generates pictures from texts.

Let B be the pictures, P the codes of a picture, N the tokens of a batch, H the heads, T the tokens
of a text and its picture.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct.config import Recipe
from transduct.data.captioned_images import (
    Examples,
    PicturesConfig,
    Unread,
    pictures_given,
    read_examples,
)
from transduct.data.files import Refused
from transduct.data.images import Picture
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.filters import Filter, FixedLength, Observed
from transduct.drawing.plots import SHOWN, sheet
from transduct.errors import count_warning, require
from transduct.inference import engine
from transduct.inference.batches import answered, device_of, flat
from transduct.inference.settings import BeamWidth, DecodingConfig, Sentence
from transduct.models.dalle import DALLE, SIZES, Config, Guided
from transduct.predictors.base import Attention, Panel, Predictor, Report
from transduct.predictors.image_codes import (
    CODE_ERRORS,
    GeneratedPicture,
    code_scores,
    codes_of,
    pictures_of,
    right_of,
    scene_scores,
)
from transduct.predictors.model_directory import Family, TextModel
from transduct.predictors.options import (
    check_inputs,
    data_with_test,
    for_draws,
    policy_of,
    tell_unknown,
)
from transduct.records import AtLeastOne, Range, Rate, refuse_if
from transduct.segments import Axis, FlatBatch, Segments, Shape

SEEN = 64  # how often at most a picture is shown while it is drawn


@dataclass(frozen=True)
class CaptionedConfig(PicturesConfig):
    """The `data` section of a recipe for pictures and their captions.

    Attributes:
        max_length: the most tokens of a caption; longer ones are truncated.
        drop_captions: the probability of training on a picture without its caption, which guidance
            needs.
    """

    captioned = True

    max_length: AtLeastOne = 64
    drop_captions: Rate = 0.1


@dataclass(frozen=True)
class Batch(FlatBatch):
    """Captions and codes.

    Attributes:
        tokens_in: (N,) for each example its caption, the begin token, and all codes but the last.
        places: (A,) the positions at which a code is predicted.
        codes: (A,) the codes to predict there.
        counted: (A,) 1.0 for a code and 0.0 for filler; None without filler.
    """

    terms = {"codes": "codes"}
    tokens_in: Annotated[Tensor, Axis("tokens")]
    segments: Annotated[Segments, Axis("tokens")]
    places: Annotated[Tensor, Axis("codes", within="tokens")]
    codes: Annotated[Tensor, Axis("codes")]
    counted: Annotated[Tensor | None, Axis("codes", marks=True)] = None


def make_batch(captions: Sequence[Any], pictures: Sequence[Any], begin: int) -> Batch:
    """Make a batch of the tokens of captions and the codes of their pictures."""
    rows = [[*words, begin, *codes[:-1]] for words, codes in zip(captions, pictures, strict=True)]
    places = [range(len(words), len(row)) for words, row in zip(captions, rows, strict=True)]
    return Batch.of(tokens_in=rows, places=places, codes=pictures)


def fill_up(batch: Batch, tokens: int, caption: int) -> Batch:
    """The batch filled up to one of a few shapes, for a captured graph; see `Shape.near`. As it is
    if its lengths are uncommon.

    Args:
        caption: the most tokens of a caption.
    """
    lengths, codes = batch.segments.lengths.tolist(), len(batch.codes)
    picture = codes // len(lengths)
    # filler is codes without a caption, of which there may be no more than a picture has
    shape = Shape.near(lengths, tokens, caption + picture, picture)
    return batch if shape is None else batch.filled(tokens=shape, codes=shape.rounded_up(codes))


@dataclass(frozen=True)
class PaintingConfig(DecodingConfig):
    """How pictures are generated from texts; see `DecodingConfig`.

    Attributes:
        guidance: the scale of classifier-free guidance towards the text; 1 is none.
        samples: how many pictures are drawn for each text, of which one is kept; odd numbers have a
            median.
        batch_tokens: the most tokens in a batch, those of every sample counted.
    """

    beam: int = 1
    temperature: float = 0.7
    batch_tokens: int = 16384
    guidance: Annotated[float, Range(0, 100)] = 1.5
    samples: BeamWidth = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(
            self.beam != 1,
            f"beam is {self.beam}, must be 1: set samples to draw several pictures of a text",
        )
        self.refuse_options_of_memories()


def word_panels(found: Attention, picture: Picture) -> list[Panel]:
    """For each word, how much each code of the picture attended to it when it was chosen.

    The weights are means over all layers and heads.
    """
    mean = torch.stack([weights.mean(0) for weights in found.weights.values()]).mean(0)  # (T, T)
    words = found.source
    looks = mean[len(words) : -1, : len(words)]  # (P, words): row p predicts code p
    side = math.isqrt(len(looks))
    maps = looks.T.reshape(-1, side, side)  # (words, side, side)
    return [Panel(word, weights, picture=picture) for word, weights in zip(words, maps)]


class Painter(TextModel):
    """Generates pictures from texts, with one model and its tokenizer."""

    paints = tells = True  # its answers are pictures, which a terminal cannot show
    verbs = Predictor.verbs | {"attention", "picture"}
    family, sections = Family(Config, SIZES, DALLE), {"decoding": PaintingConfig}

    def __init__(self, model: DALLE, tokenizer: Tokenizer, decoding: PaintingConfig) -> None:
        super().__init__(model, tokenizer, decoding)
        self.device = device_of(model)
        self.places = model.config.vae.places  # codes of a picture

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> Examples | Unread:
        """Pictures (`source`) and their captions (`reference`), or the recipe's test set."""
        if files:
            return pictures_given(files, CaptionedConfig, policy_of(refused))
        data = data_with_test(
            CaptionedConfig, recipe, "--source, a folder or archive of pictures, and --reference"
        )
        return read_examples(data.test, replace(data, broken=policy_of(refused, data.broken)))

    def token_counts(self, inputs: Sequence[str]) -> list[int]:
        """The tokens of each text and of its picture, which is computed with and without it."""
        return [len(ids) + 1 + 2 * self.places for ids in self.tokenizer.encode(inputs)]

    def predict(
        self,
        inputs: Sequence[str],
        follow: Callable[[GeneratedPicture], None] | None = None,
        **options: Any,
    ) -> list[GeneratedPicture]:
        """Generate a picture for each text.

        Args:
            follow: called with the first picture so far, a few dozen times.
            options: fields of `PaintingConfig`, such as guidance=3.0, samples=8, temperature=0.8,
                top_k=50, seed=2.

        Raises:
            TransductError: the inputs are not a list of texts, or an option is unknown or has a
                wrong value.
        """
        check_inputs(inputs)
        tell_unknown(inputs, self.unknown)
        decoding = for_draws(self.decoding, options)
        texts, cut = text_tokens(self.tokenizer, self.model, inputs)
        longer = f"longer than {self.model.config.max_length} tokens: their ends are left out"
        count_warning(f"%d of %d captions are {longer}", cut, len(texts))
        empty = "%d of %d captions are empty: anything may be drawn"
        count_warning(empty, texts.count([]), len(texts))
        codes = self._codes(texts, decoding, follow)
        # decoded one by one, so that a picture does not depend on its batch
        return [GeneratedPicture(each) for each in pictures_of(self.model.vae, codes, at_once=1)]

    def picture(self, given: str, output: GeneratedPicture) -> Picture:  # noqa: ARG002 (no text)
        """The pixels of an answer, to be saved."""
        return output.pixels

    def measured(self, data: Examples | Unread, options: Mapping[str, Any]) -> Report:
        """Score the pictures drawn from captions, and the codes of the pictures given.

        The scores are `attributes_right` for the captions of generated scenes, `nats_per_code` of
        the given pictures' codes given their captions, and those of `code_scores`.
        """
        vae, decoding = self.model.vae, for_draws(self.decoding, options)
        shown = data.at(vae.config.picture_size)
        pictures = np.stack(shown.pictures)
        codes = codes_of(vae, pictures)
        texts, _ = text_tokens(self.tokenizer, self.model, shown.captions)
        likely = log_likelihoods(self.model, texts, codes.tolist(), decoding.batch_tokens)
        scores = {"nats_per_code": -sum(likely) / codes.size}
        scores |= code_scores(vae, pictures, codes, pictures_of(vae, codes))
        painted = self.predict(shown.captions, **options)
        ruled = scene_scores(shown, painted)
        details = {"pictures": len(painted), "left_out": shown.left_out, **ruled.details}
        lower = CODE_ERRORS | {"nats_per_code"}
        return Report(ruled.scores | scores, details, painted, lower, right_of(ruled))

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def attention(self, text: str, **options: Any) -> Attention:
        """Every attention weight of a text and the picture generated from it."""
        tell_unknown([text], self.unknown)
        [tokens], _ = text_tokens(self.tokenizer, self.model, [text])
        require(tokens, "found no words to attend to; give a text that holds some")
        decoding = for_draws(self.decoding, options)
        codes = self._codes([tokens], decoding)
        begin = self.model.config.begin
        ids, segments = flat([[*tokens, begin, *codes[0].tolist()]], self.device)
        weights: list[Tensor] = []
        self.model.hidden(ids, segments, weights)
        words = self.tokenizer.pieces([token - begin - 1 for token in tokens])
        draw = partial(word_panels, picture=pictures_of(self.model.vae, codes)[0])
        return Attention.of(self.model, weights, words, draw=draw)

    def grid(self, captions: Sequence[str]) -> Picture:
        """A sheet of pictures generated from up to `SHOWN` distinct captions, each above its
        caption."""
        distinct = list(dict.fromkeys(captions))
        shown = distinct[:: max(1, len(distinct) // SHOWN)][:SHOWN]
        return sheet([[each.pixels] for each in self.predict(shown)], shown)

    def _codes(
        self,
        texts: Sequence[list[int]],
        decoding: PaintingConfig,
        follow: Callable[[GeneratedPicture], None] | None = None,
    ) -> np.ndarray:
        """Generate the codes (B, P) of a picture for each text.

        Of several samples, the one with the median gain, log p(codes | text) - log p(codes), is
        kept. All pictures that show the text have about the same gain; it is smaller where
        something is missing, and larger where there is too much, which guidance favours. On 300
        validation captions, 7 samples get 99.7 % right, and one 97.7 %.
        """
        model, config = self.model, self.model.config
        places, begin = config.vae.places, config.begin
        options = {name: getattr(decoding, name) for name in DecodingConfig.__dataclass_fields__}
        search = DecodingConfig(**{**options, "beam": decoding.samples})
        drawing = model if decoding.guidance == 1.0 else Guided(model, decoding.guidance)

        def observe(codes: list[int]) -> None:
            if follow is not None and codes and len(codes) % -(-places // SEEN) == 0:
                rest = [codes[-1]] * (places - len(codes))
                [picture] = pictures_of(model.vae, np.array([codes + rest]))
                follow(GeneratedPicture(picture, codes))

        def fixed(sentences: Sequence[Sentence]) -> Filter:
            rows = [places + 1] * (len(sentences) * decoding.samples)
            length = FixedLength(begin, rows, self.device)
            return Observed(length, observe) if follow else length

        def sampled(numbers: list[int]) -> list[list[int]]:
            some = [texts[i] for i in numbers]
            limits = [places + 1] * len(some)
            found = engine.generate(drawing, some, limits, search, begin, begin, (), fixed)
            samples = [[hypothesis.tokens for hypothesis in each] for each in found]
            return [
                each[0] if len(each) == 1 else each[self._best(text, each, decoding.batch_tokens)]
                for text, each in zip(some, samples)
            ]

        sizes = [len(text) + decoding.samples * (places + 1) for text in texts]
        codes = answered(sampled, sizes, decoding.batch_tokens)
        return np.array(codes, np.int64).reshape(-1, places)

    def _best(self, text: list[int], samples: list[list[int]], budget: int) -> int:
        texts = [text] * len(samples) + [[]] * len(samples)
        given, alone = np.split(
            np.array(log_likelihoods(self.model, texts, samples * 2, budget)), 2
        )
        gains = given - alone
        return int(np.abs(gains - np.median(gains)).argmin())


def text_tokens(
    tokenizer: Tokenizer, model: DALLE, texts: Sequence[str]
) -> tuple[list[list[int]], int]:
    """The model's tokens for each text, truncated to the longest it takes, and how many texts were
    truncated."""
    first, longest = model.config.begin + 1, model.config.max_length
    coded = tokenizer.encode(texts)
    return [[first + token for token in ids[:longest]] for ids in coded], sum(
        len(ids) > longest for ids in coded
    )


@torch.inference_mode()
def log_likelihoods(
    model: DALLE, texts: Sequence[Sequence[int]], codes: Sequence[Sequence[int]], budget: int
) -> list[float]:
    """log p(codes | text) of each picture, in nats (forced decoding)."""
    device, begin = device_of(model), model.config.begin

    def likely(numbers: list[int]) -> list[float]:
        tokens, segments = flat([[*texts[i], begin, *codes[i][:-1]] for i in numbers], device)
        targets = torch.tensor([codes[i] for i in numbers], device=device)  # (B, P)
        hidden = model.hidden(tokens, segments).index_select(0, places_of(tokens, begin))
        chosen = model.logits(hidden).float().log_softmax(-1).gather(1, targets.view(-1, 1))
        return chosen.view(targets.shape).double().sum(1).tolist()

    return answered(likely, [len(t) + len(c) for t, c in zip(texts, codes)], budget)


def places_of(tokens: Tensor, begin: int) -> Tensor:
    """The positions (B * P,) in tokens (N,) at which codes are predicted: from `begin` on."""
    return (tokens <= begin).nonzero().squeeze(1)
