"""Real text for small models: words and pieces as ids, hidden words to guess, and pairs of short
sentences to translate.

Let N be tokens of a batch, V the vocabulary.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from transduct.data.lines import read_lines
from transduct.data.tokenizer import Tokenizer
from transduct.evaluation.text import corpus_scores
from transduct.training.distributed import Terms
from transduct_course import small

# The words of a text, with each mark of punctuation as a word of its own.
words_of = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]").findall
HIDDEN = 0.2  # the share of words that are hidden

Texts = list[tuple[str, str]]  # a sentence and its translation


def commonest(texts: Iterable[Sequence[str]], count: int) -> list[str]:
    """The words that occur most often; of equally many, the ones that come first."""
    return [word for word, _ in Counter(chain.from_iterable(texts)).most_common(count)]


def hidden(rows: Sequence[small.Ids], mask: int, seed: int, size: int) -> Iterator[small.Labelled]:
    """Batches of texts in which a fifth of the words, at least one, is the mask; they are the
    labels."""
    random = Random(f"masked {seed}")
    while True:
        pairs = []
        for ids in random.choices(rows, k=size):
            places = {
                random.randrange(len(ids)),
                *(i for i in range(len(ids)) if random.random() < HIDDEN),
            }
            tokens = [mask if i in places else token for i, token in enumerate(ids)]
            pairs.append((tokens, [ids[i] if i in places else -1 for i in range(len(ids))]))
        yield small.labelled(pairs)


def hidden_loss(model: Any, batch: small.Labelled) -> Terms:
    """The cross-entropy of the hidden words, by a BERT whose head is "masked"."""
    there = batch.labels >= 0
    x = model.encode(batch.tokens, torch.zeros_like(batch.tokens), batch.segments)
    return small.summed(model.masked_logits(x[there]), batch.labels[there], "labels")


def short_pairs(paths: tuple[Path, Path], longest: int, most: int) -> Texts:
    """The first pairs of two files, `most` of them, whose sides have `longest` words or fewer."""
    found = (
        (source, target)
        for source, target in zip(*map(read_lines, paths), strict=True)
        if 0 < len(source.split()) <= longest and 0 < len(target.split()) <= longest
    )
    return list(islice(found, most))


class Translation(NamedTuple):
    """Pairs as ids of pieces that both languages share.

    Attributes:
        texts: the test pairs, in words.
    """

    tokenizer: Tokenizer
    train: list[small.Pair]
    test: list[small.Pair]
    texts: Texts

    @property
    def vocabulary(self) -> int:
        """V without the special tokens, as `small.transformer_of` takes it."""
        return self.tokenizer.size - small.FIRST


def captions(folder: Path, count: int, tested: int) -> Translation:
    """English captions of at most 12 words and their German translations (Multi30k), in 2,000
    pieces."""
    parts = [
        short_pairs((folder / f"{part}.en.gz", folder / f"{part}.de.gz"), 12, most)
        for part, most in (("train", count), ("val", tested))
    ]
    tokenizer = Tokenizer.train(chain.from_iterable(parts[0]), "bpe", 2000)
    train, test = (
        list(zip(*(tokenizer.encode(side) for side in zip(*part, strict=True)), strict=True))
        for part in parts
    )
    return Translation(tokenizer, train, test, parts[1])


def scored(model: Any, data: Translation) -> dict[str, float]:
    """The loss on the test pairs, and the chrF of what the model writes for them by itself."""
    written = small.answers(model, [source for source, _ in data.test])
    references = [[target] for _, target in data.texts]
    found = corpus_scores(data.tokenizer.decode(written), references, ("chrf",), intervals=False)
    return {"loss": small.loss_on(model, data.test), "chrf": found.scores["chrf"]}
