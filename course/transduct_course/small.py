"""Small models on generated sequences, trained by the package's own step: what experiments share.

Let N be source tokens and M target tokens of a batch, B its pairs, V the vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from transduct.data.tokenizer import Tokenizer
from transduct.functional.losses import label_smoothed_cross_entropy
from transduct.inference.engine import generate
from transduct.inference.settings import DecodingConfig
from transduct.models import bert, rnn, transformer
from transduct.segments import Movable, Segments
from transduct.tasks.translation import Batch, losses_of, make_batch
from transduct.training.combining import Terms
from transduct.training.config import TrainingConfig
from transduct.training.distributed import Ranks
from transduct.training.machine import training_alone
from transduct.training.optim import rate
from transduct.training.step import Diverged, Stepper

FIRST = 3  # ids below it are the tokenizer's special tokens
Ids = list[int]
Pair = tuple[Ids, Ids]
Draw = Callable[[Random], Pair]
Watch = Callable[[int, float, nn.Module], object]


def transformer_of(
    vocabulary: int, kind: type[transformer.Transformer] = transformer.Transformer, **changes: Any
) -> transformer.Transformer:
    """A Transformer of two layers on each side, 64 wide, over so many symbols, or a subclass."""
    shape: dict[str, Any] = {
        "d_model": 64,
        "num_heads": 4,
        "d_ff": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
        "max_length": 600,
    }
    size = vocabulary + FIRST
    return kind(transformer.Config(size, size, **{**shape, **changes}))


def rnn_of(vocabulary: int, **changes: Any) -> rnn.RNN:
    """A recurrent encoder-decoder with about as many parameters as `transformer_of`."""
    shape: dict[str, Any] = {"d_model": 64, "d_hidden": 128, "dropout": 0.0, "max_length": 600}
    size = vocabulary + FIRST
    return rnn.RNN(rnn.Config(size, size, **{**shape, **changes}))


def seeded(seed: int, build: Callable[[], Any]) -> Any:
    """A model whose weights are drawn from this seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def pairs(draw: Draw, count: int, seed: int | str) -> list[Pair]:
    """So many pairs, the same for the same seed."""
    random = Random(f"pairs {seed}")
    return [draw(random) for _ in range(count)]


def batches(draw: Draw, size: int, seed: int | str) -> Iterator[Batch]:
    """Batches of new pairs without end."""
    number = 0
    while True:
        yield batch_of(pairs(draw, size, f"{seed} {number}"))
        number += 1


def batch_of(rows: Sequence[Pair]) -> Batch:
    """The batch of these pairs."""
    return make_batch([source for source, _ in rows], [target for _, target in rows])


def text_loss(model: nn.Module, batch: Batch) -> Terms:
    """The cross-entropy of the target tokens."""
    return {"tokens": (losses_of(model, batch, 0.0)[0], batch.counts["tokens"], 1.0)}


def train(
    model: nn.Module,
    data: Iterator[Any],
    steps: int,
    learning_rate: float = 2e-3,
    warmup: int | None = None,
    loss: Callable[[nn.Module, Any], Terms] = text_loss,
    seed: int = 1,
    watch: Watch | None = None,
    clip: float = 1.0,
) -> list[float]:
    """Train in place with Adam; the rate rises over `warmup` steps and then falls to 0.

    Returns the loss of each step. It ends early, with NaN, when the loss is no longer finite.

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
    model.eval()
    return losses


def until(loss: float, half_way: tuple[int, float] | None = None, steps: int = 50) -> Watch:
    """Ends training once the mean loss of so many steps is below this one, or is above that of
    half_way at its step."""
    last: deque[float] = deque(maxlen=steps)

    def watch(step: int, now: float, model: nn.Module) -> bool:  # noqa: ARG001
        last.append(now)
        average = sum(last) / len(last)
        hopeless = half_way is not None and step == half_way[0] and average > half_way[1]
        return hopeless or (len(last) == steps and average < loss)

    return watch


def loss_on(model: Any, rows: Sequence[Pair]) -> float:
    """The cross-entropy per target token."""
    with torch.inference_mode():
        batch = batch_of(rows)
        return float(losses_of(model, batch, 0.0)[1]) / batch.tokens


def predicted(model: Any, batch: Batch) -> Tensor:
    """The likeliest token at each place of the target, given the true ones before it: (M,)."""
    return forced_logits(model, batch).argmax(-1)


def forced_logits(model: Any, batch: Batch) -> Tensor:
    """The logits at each place of the target, given the true tokens before it: (M, V)."""
    memory = model.encode(batch.source, batch.source_segments)
    hidden = model.decode(batch.inputs, batch.target_segments, memory, batch.source_segments)
    logits: Tensor = model.logits(hidden)
    return logits


def losses_by_token(model: Any, batch: Batch) -> Tensor:
    """(M,) the cross-entropy of each target token."""
    return label_smoothed_cross_entropy(forced_logits(model, batch), batch.outputs, 0.0)


def accuracy(model: Any, rows: Sequence[Pair]) -> float:
    """The share of target tokens predicted right, given the true ones before them."""
    with torch.inference_mode():
        batch = batch_of(rows)
        return float((predicted(model, batch) == batch.outputs).float().mean())


def answers(model: Any, sources: Sequence[Ids], longest: int | None = None) -> list[Ids]:
    """What the model writes by itself for each source: the likeliest token again and again."""
    rows = [[*source, Tokenizer.END] for source in sources]
    limits = [longest or len(row) + 8 for row in rows]
    greedy = DecodingConfig(beam=1, workers=1)
    found = generate(model, rows, limits, greedy, Tokenizer.BEGIN, Tokenizer.END)
    return [[*best.tokens] for best, *_ in found]


def exact(model: Any, rows: Sequence[Pair]) -> float:
    """The share of sources to which the model writes exactly the target by itself."""
    found = answers(model, [source for source, _ in rows])
    return sum(got == target for got, (_, target) in zip(found, rows, strict=True)) / len(rows)


def entropy(weights: Tensor) -> float:
    """The mean entropy of rows that sum to one, in bits: 0 where one weight is all."""
    return float(-(weights * weights.clamp_min(1e-12).log2()).sum(-1).mean())


def attention_of(model: Any, batch: Batch) -> dict[str, Tensor]:
    """The attention weights (B, H, T, S) of a batch, by name."""
    weights: list[Tensor] = []
    with torch.inference_mode():
        memory = model.encode(batch.source, batch.source_segments, weights)
        segments = batch.target_segments, batch.source_segments
        model.decode(batch.inputs, segments[0], memory, segments[1], weights)
    return dict(zip(model.attention_names, weights, strict=True))


def gradient_norms(model: nn.Module, names: Sequence[str]) -> dict[str, float]:
    """For each name the norm of the gradients of all parameters whose names begin with it."""
    norms = {}
    for name in names:
        squares = [
            float(weight.grad.square().sum())
            for own, weight in model.named_parameters()
            if own.startswith(name) and weight.grad is not None
        ]
        norms[name] = sum(squares) ** 0.5
    return norms


@dataclass(frozen=True)
class Labelled(Movable):
    """Sequences whose tokens, or some of them, have labels.

    Attributes:
        tokens: (N,).
        labels: (N,), -1 for a token without one.
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
    shape: dict[str, Any] = {
        "d_model": 64, "num_heads": 4, "d_ff": 128, "layers": 2, "dropout": 0.0, "head": "tokens",
        "max_length": 64,
    }  # fmt: skip
    size = vocabulary + FIRST
    return bert.Bert(bert.Config(size, labels=labels, **{**shape, **changes}))


def label_logits(model: Any, batch: Labelled, weights: list[Tensor] | None = None) -> Tensor:
    """The logits of each token's label, by a `bert_of`: (N, labels)."""
    types = torch.zeros_like(batch.tokens)
    logits: Tensor = model.tag(model.encode(batch.tokens, types, batch.segments, weights))
    return logits


def label_loss(model: nn.Module, batch: Labelled) -> Terms:
    """The cross-entropy of the labels that there are."""
    return of_labels(label_logits(model, batch), batch)


def next_loss(model: Any, batch: Labelled) -> Terms:
    """The cross-entropy of a language model; the labels are the next tokens."""
    return of_labels(model.logits(model.hidden(batch.tokens, batch.segments)), batch)


def label_accuracy(model: Any, batch: Labelled) -> float:
    """The share of labels that are right."""
    with torch.inference_mode():
        right = label_logits(model, batch).argmax(-1) == batch.labels
    return float(right[batch.labels >= 0].float().mean())


def of_labels(logits: Tensor, batch: Labelled) -> Terms:
    """The cross-entropy of the labels that there are, given all logits."""
    there = batch.labels >= 0
    losses = label_smoothed_cross_entropy(logits[there], batch.labels[there], 0.0)
    return {"labels": (losses.sum(), batch.counts["labels"], 1.0)}
