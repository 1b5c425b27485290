"""Small models on generated sequences, trained by the package's own step: what experiments share.

Let N be source tokens and M target tokens of a batch, B its pairs, V the vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import torch
from torch import Tensor

from transduct.data.tokenizer import Tokenizer
from transduct.functional.losses import label_smoothed_cross_entropy
from transduct.inference.engine import generate
from transduct.inference.settings import DecodingConfig
from transduct.models import bert, rnn, transformer
from transduct.segments import Movable, Segments
from transduct.tasks.translation import Batch, losses_of, make_batch
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks, Terms
from transduct.training.machine import training_alone
from transduct.training.optim import rate
from transduct.training.step import Diverged, Stepper

FIRST = 3  # ids below it are the tokenizer's special tokens
Ids = list[int]
Pair = tuple[Ids, Ids]
Draw = Callable[..., Pair]  # of a source of random numbers, and of what else it takes
Model = Any  # a module; what it is made of differs from one to the next
Changes = dict[str, Any]  # of a model's shape
Watch = Callable[[int, float, Model], object]
WIDTH: Changes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.0}


def transformer_of(
    vocabulary: int, kind: type[transformer.Transformer] = transformer.Transformer, **changes: Any
) -> transformer.Transformer:
    """A Transformer of two layers on each side, 64 wide, over so many symbols, or a subclass."""
    stacks = {"encoder_layers": 2, "decoder_layers": 2}
    size = vocabulary + FIRST
    return kind(transformer.Config(size, size, **{**WIDTH, **stacks, "max_length": 600, **changes}))


def rnn_of(vocabulary: int, **changes: Any) -> rnn.RNN:
    """A recurrent encoder-decoder with about as many parameters as `transformer_of`."""
    shape = {"d_model": 64, "d_hidden": 128, "dropout": 0.0, "max_length": 600}
    size = vocabulary + FIRST
    return rnn.RNN(rnn.Config(size, size, **{**shape, **changes}))


def seeded(seed: int, build: Callable[..., Any], *of: Any, **changes: Any) -> Any:
    """A model that is built of these, its weights drawn from this seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*of, **changes)


def pairs(draw: Draw, count: int, seed: int | str, *of: Any) -> list[Pair]:
    """So many pairs, drawn of these; the same for the same seed."""
    random = Random(f"pairs {seed}")
    return [draw(random, *of) for _ in range(count)]


def batch_of(rows: Sequence[Pair]) -> Batch:
    """The batch of these pairs."""
    return make_batch([source for source, _ in rows], [target for _, target in rows])


def batches(
    draw: Draw,
    size: int,
    seed: int | str,
    *of: Any,
    make: Callable[[list[Pair]], Any] = batch_of,
) -> Iterator[Any]:
    """Batches of new pairs, drawn of these, without end."""
    return (make(pairs(draw, size, f"{seed} {number}", *of)) for number in count())


def choices(
    rows: Sequence[Any], size: int, seed: str, make: Callable[[list[Any]], Any] = batch_of
) -> Iterator[Any]:
    """Batches of rows that are there, drawn at random, without end."""
    random = Random(seed)
    while True:
        yield make(random.choices(rows, k=size))


def text_loss(model: Model, batch: Batch) -> Terms:
    """The cross-entropy of the target tokens."""
    return {"tokens": (losses_of(model, batch, 0.0)[0], batch.counts["tokens"], 1.0)}


def train(
    model: Model,
    data: Iterator[Any],
    steps: int,
    learning_rate: float = 2e-3,
    warmup: int | None = None,
    loss: Callable[[Model, Any], Terms] = text_loss,
    seed: int = 1,
    watch: Watch | None = None,
    clip: float = 1.0,
) -> tuple[Model, list[float]]:
    """Train in place with Adam; the rate rises over `warmup` steps and then falls to 0.

    Returns the model and the loss of each step. It ends early, with NaN, when the loss is no longer
    finite.

    Args:
        watch: is called after each step with its number, loss and the model, whose gradients it
            may read. If it returns True, training ends.
        warmup: a tenth of the steps by default.
    """
    warmup = max(1, steps // 10) if warmup is None else warmup
    config = TrainingConfig(steps=steps, clip=clip, seed=seed, device="cpu")
    losses: list[float] = []
    with training_alone():
        stepper = Stepper(model.train(), config, loss, Ranks())
        for step in range(1, steps + 1):
            try:
                now = rate("linear", learning_rate, warmup, steps + 1, step)
                losses.append(stepper.take([next(data)], step, now).loss())
            except Diverged:
                losses.append(float("nan"))
                break
            if watch is not None and watch(step, losses[-1], model) is True:
                break
        stepper.release()
    return model.eval(), losses


def until(loss: float, half_way: tuple[int, float] | None = None, steps: int = 50) -> Watch:
    """Ends training once the mean loss of so many steps is below this one, or is above that of
    half_way at its step."""
    last: deque[float] = deque(maxlen=steps)

    def watch(step: int, now: float, model: Model) -> bool:  # noqa: ARG001
        last.append(now)
        average = sum(last) / len(last)
        hopeless = half_way is not None and step == half_way[0] and average > half_way[1]
        return hopeless or (len(last) == steps and average < loss)

    return watch


@torch.inference_mode()
def mean_loss(loss: Callable[[Any, Any], Terms], model: Model, batch: Any) -> float:
    """A loss of one term, divided by what it is summed over."""
    [(total, over, _)] = loss(model, batch).values()
    return float(total) / over


def loss_on(model: Model, rows: Sequence[Pair]) -> float:
    """The cross-entropy per target token."""
    return mean_loss(text_loss, model, batch_of(rows))


def predicted(model: Model, batch: Batch) -> Tensor:
    """The likeliest token at each place of the target, given the true ones before it: (M,)."""
    return forced_logits(model, batch).argmax(-1)


def forced_logits(model: Model, batch: Batch, weights: list[Tensor] | None = None) -> Tensor:
    """The logits at each place of the target, given the true tokens before it: (M, V). Attention
    weights are appended."""
    memory = model.encode(batch.source, batch.source_segments, weights)
    hidden = model.decode(
        batch.inputs, batch.target_segments, memory, batch.source_segments, weights
    )
    return model.logits(hidden)


def losses_by_token(model: Model, batch: Batch) -> Tensor:
    """(M,) the cross-entropy of each target token."""
    return label_smoothed_cross_entropy(forced_logits(model, batch), batch.outputs, 0.0)


@torch.inference_mode()
def accuracy(model: Model, rows: Sequence[Pair], least: int = 0) -> float:
    """The share of target tokens, of ids from the `least` on, that are predicted right, given the
    true ones before them."""
    batch = batch_of(rows)
    right = predicted(model, batch) == batch.outputs
    return float(right[batch.outputs >= least].float().mean())


def answers(model: Model, sources: Sequence[Ids], longest: int | None = None) -> list[Ids]:
    """What the model writes by itself for each source: the likeliest token again and again."""
    rows = [[*source, Tokenizer.END] for source in sources]
    limits = [longest or len(row) + 8 for row in rows]
    greedy = DecodingConfig(beam=1, workers=1)
    found = generate(model, rows, limits, greedy, Tokenizer.BEGIN, Tokenizer.END)
    return [[*best.tokens] for best, *_ in found]


def exact(model: Model, rows: Sequence[Pair]) -> float:
    """The share of sources to which the model writes exactly the target by itself."""
    found = answers(model, [source for source, _ in rows])
    return sum(got == target for got, (_, target) in zip(found, rows, strict=True)) / len(rows)


def written(predict: Callable[[Batch], Tensor], sources: Sequence[Ids], longest: int) -> list[Ids]:
    """As `answers`, the plain way: what is written is read again for each token, so that it also
    goes without a mask. `predict` gives the likeliest token at each place of a target."""
    rows: list[Ids] = [[] for _ in sources]
    for _ in range(longest):
        found = predict(batch_of([*zip(sources, rows, strict=True)])).view(len(rows), -1)[:, -1]
        rows = [[*row, token] for row, token in zip(rows, found.tolist(), strict=True)]
    return rows


def entropy(weights: Tensor) -> float:
    """The mean entropy of rows that sum to one, in bits: 0 where one weight is all."""
    return float(-(weights * weights.clamp_min(1e-12).log2()).sum(-1).mean())


@torch.inference_mode()
def attention_of(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The attention weights (B, H, T, S) of a batch, by name."""
    weights: list[Tensor] = []
    forced_logits(model, batch, weights)
    return dict(zip(model.attention_names, weights, strict=True))


def gradient_norm(model: Model, name: str) -> float:
    """The norm of the gradients of all parameters whose names begin so."""
    squares = (
        float(weight.grad.square().sum())
        for own, weight in model.named_parameters()
        if own.startswith(name) and weight.grad is not None
    )
    return sum(squares) ** 0.5


@dataclass(frozen=True)
class Labelled(Movable):
    """Sequences whose tokens, or some of them, have labels.

    Attributes:
        tokens: (N,).
        labels: (N,), -1 for a token without one; or (B,), of sequences.
    """

    tokens: Tensor
    labels: Tensor
    segments: Segments

    @property
    def counts(self) -> dict[str, float]:
        """The loss is an average over labelled tokens."""
        return {"labels": float((self.labels >= 0).sum())}


def labelled(rows: Sequence[Pair]) -> Labelled:
    """The batch of these tokens and their labels."""
    tokens, labels = (torch.tensor([each for row in rows for each in row[i]]) for i in (0, 1))
    return Labelled(tokens, labels, Segments.of([len(row) for row, _ in rows]))


def bert_of(vocabulary: int, labels: int, **changes: Any) -> bert.Bert:
    """A BERT of two layers, 64 wide, that labels tokens."""
    shape = {**WIDTH, "layers": 2, "head": "tokens", "max_length": 64, "labels": labels}
    return bert.Bert(bert.Config(vocabulary + FIRST, **{**shape, **changes}))


def label_logits(model: Model, batch: Labelled) -> Tensor:
    """The logits of the label of each token (N, labels), or of each sequence (B, labels)."""
    x = model.encode(batch.tokens, torch.zeros_like(batch.tokens), batch.segments)
    if model.config.head == "sequence":
        return model.classify(x, batch.segments)
    return model.tag(x)


def label_loss(model: Model, batch: Labelled) -> Terms:
    """The cross-entropy of the labels that there are."""
    return of_labels(label_logits(model, batch), batch)


def next_loss(model: Model, batch: Labelled) -> Terms:
    """The cross-entropy of a language model; the labels are the next tokens."""
    return of_labels(model.logits(model.hidden(batch.tokens, batch.segments)), batch)


@torch.inference_mode()
def label_accuracy(model: Model, batch: Labelled) -> float:
    """The share of labels that are right."""
    right = label_logits(model, batch).argmax(-1) == batch.labels
    return float(right[batch.labels >= 0].float().mean())


def of_labels(logits: Tensor, batch: Labelled) -> Terms:
    """The cross-entropy of the labels that there are, given all logits."""
    there = batch.labels >= 0
    return summed(logits[there], batch.labels[there], "labels")


def summed(logits: Tensor, labels: Tensor, term: str) -> Terms:
    """The cross-entropy of these labels as a term of a loss."""
    losses = label_smoothed_cross_entropy(logits, labels, 0.0)
    return {term: (losses.sum(), float(len(labels)), 1.0)}
