"""Inference for language modelling: continues prompts, and measures the perplexity of texts.

A text is a sequence of lines. The end token stands for the line feed after each of them, and one
more precedes the text. The model sees at most `context` tokens at once. Let N be the tokens of a
batch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from transduct.blocks.embeddings import numbers_of
from transduct.config import Recipe
from transduct.data.batching import Indices
from transduct.data.files import DataSection, Refused
from transduct.data.sources import TextSource, require_width
from transduct.data.tokenizer import Tokenizer
from transduct.decoding.filters import FixedLength
from transduct.decoding.search import pause
from transduct.errors import WrongData, count_warning, require
from transduct.functional.losses import projected_cross_entropy
from transduct.inference import engine
from transduct.inference.batches import device_of, flat, in_batches, shared
from transduct.inference.settings import DecodingConfig, Sentence
from transduct.models.gpt import GPT, SIZES, Config
from transduct.predictors.base import Attention, Report, Trace
from transduct.predictors.long_texts import likeliest
from transduct.predictors.model_directory import Family, TextModel
from transduct.predictors.options import asked_for, check_inputs, tell_unknown
from transduct.predictors.text import test_lines
from transduct.records import AtLeastOne, Range, refuse_if
from transduct.segments import Axis, FlatBatch, Segments

END = Tokenizer.END
NEAR = 16  # tokens that decide how the next is written
SHOWN = 100  # the most tokens of a sample in an evaluation


@dataclass(frozen=True)
class TextConfig(DataSection):
    """The `data` section of a recipe for plain text, given as files of `text` or as one column of
    `pairs`.

    Attributes:
        context: the tokens of a window, the furthest that the model looks back.
        broken: `stop` at a row that is wrong, such as a line that is not UTF-8, or `skip` it.
    """

    train: list[TextSource]
    valid: TextSource | None = None
    test: TextSource | None = None
    context: Annotated[int, Range(2)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        require_width(self, 1, "give text, or name one column")
        for source in self.train:
            refuse_if(
                source.weight != 1.0,
                f"weight is {source.weight}, must be 1: an epoch shows every token once",
            )


@dataclass(frozen=True)
class WritingConfig(DecodingConfig):
    """How a text is continued.

    Attributes:
        length: how many tokens to generate, line feeds included.
    """

    length: AtLeastOne = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_options_of_memories()


@dataclass(frozen=True)
class Continuation:
    """What goes on from a prompt, as a text and as tokens."""

    text: str
    tokens: list[int]


@dataclass(frozen=True)
class Batch(FlatBatch):
    """The tokens of windows (N,), and the token after each (N,)."""

    terms = {"tokens": "tokens"}
    inputs: Annotated[Tensor, Axis("tokens")]
    outputs: Annotated[Tensor, Axis("tokens")]
    segments: Annotated[Segments, Axis("tokens")]


def make_batch(runs: Sequence[Any]) -> Batch:
    """Make a batch of runs of at least two tokens, in which every token predicts the next."""
    return Batch.of(inputs=[run[:-1] for run in runs], outputs=[run[1:] for run in runs])


def windows(total: int, context: int, first: int) -> Indices:
    """Where to cut a run of `total` tokens: window i reads from cuts[i] on and predicts up to
    cuts[i + 1].

    The first window predicts `first` tokens, the others `context`, and the last one the rest, so
    that every token but the first is predicted once.
    """
    return np.concatenate(([0], np.arange(first, total - 1, context), [total - 1]))


def with_ends(tokenizer: Tokenizer, lines: Sequence[str]) -> list[int]:
    """The tokens of some lines, with an end token before each."""
    return [token for ids in tokenizer.encode(lines) for token in (END, *ids)]


def lines_of(ids: Iterable[int]) -> list[list[int]]:
    """Split tokens into lines at end tokens, which are left out."""
    lines: list[list[int]] = [[]]
    for token in ids:
        if token == END:
            lines.append([])
        else:
            lines[-1].append(token)
    return lines


class LanguageModel(TextModel):
    """Continues prompts and measures texts, with one model and its tokenizer."""

    family, sections = Family(Config, SIZES, GPT), {"decoding": WritingConfig}
    verbs = TextModel.verbs | {"attention", "continued"}

    def __init__(self, model: GPT, tokenizer: Tokenizer, decoding: WritingConfig) -> None:
        super().__init__(model, tokenizer, decoding)
        self.context = model.config.max_length

    @classmethod
    def test_set(
        cls, files: Mapping[str, Any], recipe: Recipe | None, refused: Refused | None = None
    ) -> list[str]:
        """The lines of the file `source`, or of the recipe's test set."""
        return test_lines(TextConfig, files, recipe, refused)

    def predict(self, inputs: Sequence[str], **options: Any) -> list[str]:
        """Continue each prompt; returns the continuations without the prompts. An empty prompt
        begins a line.

        Once the context is full, generation goes on from its last half.

        Args:
            options: fields of `WritingConfig`, such as length=500, temperature=0.8, top_k=10,
                seed=3.

        Raises:
            TransductError: an option is unknown or has a wrong value.
        """
        return [each.text for each in self.continued(inputs, **options)]

    def continued(self, inputs: Sequence[str], **options: Any) -> list[Continuation]:
        """As `predict`, with the tokens."""
        prompts, decoding = self.begun(inputs, **options)
        pairs = zip(prompts, self._write(prompts, decoding), strict=True)
        return [self.written(prompt, ids) for prompt, ids in pairs]

    def begun(self, inputs: Sequence[str], **options: Any) -> tuple[list[list[int]], WritingConfig]:
        """The tokens of some prompts, and how to continue them; see `predict`."""
        check_inputs(inputs)
        tell_unknown(inputs, self.unknown)
        decoding = asked_for(self.decoding, options)
        prompts = [with_ends(self.tokenizer, text.split("\n")) for text in inputs]
        long = sum(len(prompt) >= self.context for prompt in prompts)
        rest = f"{self.context} tokens: continued from their last {self.context // 2}"
        count_warning(f"%d of %d prompts do not fit into {rest}", long, len(prompts))
        return prompts, decoding

    def written(self, prompt: Sequence[int], ids: Sequence[int]) -> Continuation:
        """What tokens say after a prompt."""
        return Continuation(self._text(prompt, ids), [*ids])

    @torch.inference_mode()
    def explained(
        self, text: str, target: str, tokens: Sequence[int] = (), top: int = 0
    ) -> list[dict[str, Any]]:
        """The tokens that go on from a prompt, or those of `target` where none are given: the text
        of each, its log-probability and, if they are asked for, the `top` likeliest of its
        place."""
        before, device = with_ends(self.tokenizer, text.split("\n")), device_of(self.model)
        tokens = tokens or with_ends(self.tokenizer, target.split("\n"))[1:]
        chosen, others = list[float](), list[list[tuple[str, float]]]()
        while len(chosen) < len(tokens):  # as far as the context reaches
            pause()
            seen = self._window([*before, *tokens[: len(chosen)]])
            new = [*tokens[len(chosen) :][: self.context - len(seen)]]
            inputs, segments = flat([[*seen, *new]], device)
            logits = self.model.logits(self.model.hidden(inputs, segments)).float()
            logs = logits.log_softmax(-1)[len(seen) - 1 : -1]
            chosen += logs.gather(1, inputs[len(seen) :, None]).squeeze(1).tolist()
            others += likeliest(self.tokenizer, logs, top, "\n")
        run, shown, end = [*before, *tokens], [], 0
        for place, value in enumerate(chosen, len(before)):
            # To decode all before each would take too long for a prompt of many tokens.
            near = run[max(0, place - NEAR) : place]
            parts = near, [*near, run[place]]
            known, longer = (self._text([], part).rstrip("\ufffd") for part in parts)
            start, end = end, end + max(0, len(longer) - len(known))
            written = longer[len(known) :]
            shown.append({"text": written, "log_probability": value, "target": (start, end)})
        return [{**each, "top": more} for each, more in zip(shown, others)] if top else shown

    def measured(self, data: Sequence[str], options: Mapping[str, Any]) -> Report:
        """The scores of a text, given as its lines, and a sample that continues its beginning.

        Raises:
            WrongData: there are no lines.
        """
        if not data:
            raise WrongData("there is no line to measure; give some text")
        tell_unknown(data, self.unknown)
        scores = self.measure(data, asked_for(self.decoding, options))
        length = min(self.decoding.length, SHOWN)
        decoding = asked_for(self.decoding, {"length": length, **options})
        run = with_ends(self.tokenizer, [*data, ""])
        prompt, reference = run[: self.context // 2], run[self.context // 2 :][: decoding.length]
        [written] = self._write([prompt], decoding)
        shown = (
            self._text([], prompt[1:]),
            self._text(prompt, written),
            self._text(prompt, reference),
        )
        details = {
            "tokens": len(run) - 1,
            "unknown": run.count(Tokenizer.UNKNOWN),
            "context": self.context,
            "samples": [shown],
        }
        return Report(scores, details, [shown[1]], frozenset(scores))

    @torch.inference_mode()
    def measure(
        self, lines: Sequence[str], decoding: WritingConfig | None = None
    ) -> dict[str, float]:
        """The negative log-likelihood per token and per character of a text, cut into consecutive
        windows.

        Characters are counted in the given text, line feeds included, whatever the tokenizer does
        to them; one that it does not know is predicted as the unknown token.

        Args:
            decoding: sets the batch size; the model's own by default.
        """
        run = with_ends(self.tokenizer, [*lines, ""])
        cuts = windows(len(run), self.context, self.context)
        device, table = device_of(self.model), self.model.output_table

        def losses(batches: Sequence[list[int]]) -> Iterator[float]:
            for numbers in batches:
                batch = make_batch([run[cuts[i] : cuts[i + 1] + 1] for i in numbers]).to(device)
                hidden = self.model.hidden(batch.inputs, batch.segments)
                yield float(projected_cross_entropy(hidden, numbers_of(table), batch.outputs)[1])

        budget = (decoding or self.decoding).budget(device)
        total = sum(shared(losses, [*in_batches(np.diff(cuts).tolist(), budget)]))
        nats, characters = total / (len(run) - 1), sum(len(line) + 1 for line in lines)
        perplexity = math.exp(min(nats, 100.0))
        return {
            "nats_per_token": nats,
            "nats_per_character": total / characters,
            "perplexity": perplexity,
        }

    def attention(self, text: str) -> Attention:
        """Every attention weight of a text; see `traced`."""
        return self.traced(text).attention

    @torch.no_grad()  # not inference mode, whose tensors could not be changed or trained on
    def traced(self, text: str, target: Sequence[int] | None = None) -> Trace:
        """Every attention weight of a text and every prediction, the last of which is the
        likeliest next token.

        Args:
            target: the tokens of the text, where they are known.

        Raises:
            TransductError: the text is longer than the context.
        """
        check_inputs([text])
        ids = with_ends(self.tokenizer, text.split("\n")) if target is None else [END, *target]
        require(
            len(ids) <= self.context,
            f"{len(ids)} tokens, the model takes {self.context}; shorten the text",
        )
        tell_unknown([text], self.unknown)
        weights: list[Tensor] = []
        tokens, segments = flat([ids], device_of(self.model))
        logits = self.model.logits(self.model.hidden(tokens, segments, weights)).float().cpu()
        labels = self.tokenizer.pieces(ids)
        written = [*ids[1:], int(logits[-1].argmax())]
        seen = Attention.of(self.model, weights, (), labels)
        return Trace(seen, (self.tokenizer, self.tokenizer), (), ids, written, 0, logits)

    def _write(self, prompts: Sequence[list[int]], decoding: WritingConfig) -> list[list[int]]:
        """Generate `decoding.length` tokens after each prompt."""
        runs, budget = [list(prompt) for prompt in prompts], decoding.budget(device_of(self.model))
        goals = [len(prompt) + decoding.length for prompt in prompts]
        while unfinished := [i for i, goal in enumerate(goals) if len(runs[i]) < goal]:
            for batch in in_batches([self.context] * len(unfinished), budget):
                numbers = [unfinished[i] for i in batch]
                sentences = [self.sentence(runs[i], goals[i], decoding) for i in numbers]
                for i, found in zip(numbers, engine.find(self.model, sentences), strict=True):
                    runs[i] += found[0].tokens
        return [run[len(prompt) :] for run, prompt in zip(runs, prompts, strict=True)]

    def sentence(self, run: Sequence[int], goal: int, decoding: WritingConfig) -> Sentence:
        """What the search is asked to continue a run of tokens up to this many, or as far as the
        context reaches.

        The begin token, which no text contains, ends the output, because the end token is a line
        feed here.
        """
        seen = self._window(run)
        limit = min(goal - len(run), self.context - len(seen)) + 1
        around = seen[-1], Tokenizer.BEGIN, [Tokenizer.UNKNOWN]
        return Sentence(seen[:-1], limit, decoding, *around, constrain=self._exact)

    def _window(self, run: Sequence[int]) -> Sequence[int]:
        """What of a run the model looks back over, so that it can go on."""
        return run if len(run) < self.context else run[-(self.context // 2) :]

    def _exact(self, sentences: Sequence[Sentence]) -> FixedLength:
        """The filter that makes outputs as long as they may be."""
        limits = [one.limit for one in sentences for _ in range(one.beam)]
        return FixedLength(Tokenizer.BEGIN, limits, device_of(self.model))

    def _text(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Decode tokens; those before them on the same line decide whether they begin with a new
        word."""
        start, lines = lines_of(before)[-1], lines_of(ids)
        known, first, *rest = self.tokenizer.decode([start, [*start, *lines[0]], *lines[1:]])
        return "\n".join([first[len(known) :], *rest])
