"""How much BPE dropout (Provilkov et al. 2020) lengthens texts, so that batches can be planned for
it."""

from collections.abc import Sequence
from random import Random

import numpy as np

from transduct.data.corpus import Corpus, lists_of
from transduct.data.tokenizer import Tokenizer

SAMPLED = 1000  # rows in the sample


def growth(
    corpus: Corpus, columns: Sequence[int], beside: int, tokenizer: Tokenizer, dropout: float
) -> float:
    """Estimate the factor by which BPE dropout lengthens rows, on a sample of the corpus.

    Args:
        columns: the columns that make up a row.
        beside: the number of tokens that are added to each row, such as the end of sentence.
    """
    count = min(len(corpus.lengths), SAMPLED)
    if not dropout or not count:
        return 1.0
    sampled = corpus.columns(np.linspace(0, len(corpus.lengths) - 1, count).astype(np.int64))
    random, before, after = Random(0), beside * count, beside * count
    for column in (sampled[number] for number in columns):
        before += len(column[0])
        after += sum(
            len(tokenizer.resegment(row.tolist(), dropout, random)) for row in lists_of(column)
        )
    return after / before if before else 1.0
