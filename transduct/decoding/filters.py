"""Filters of search: they forbid tokens, or demand some, before a strategy chooses.

Let R be the rows of the search, V the vocabulary, L the longest output.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from transduct.functional.lookup import log_normaliser

# consecutive opening brackets; the Penn Treebank sample has up to six between two words
MOST_OPENS = 6
BLANK = "▁"  # the word boundary before the pieces of a tokenizer that keeps words whole


class Filter:
    """Rescores the next tokens, or forbids some by minus infinity. May modify the logits in place.

    A search that takes several steps in one call cannot show a filter the logits of each step. So a
    filter declares for which steps that is not needed.

    Attributes:
        until: while the history is shorter than this, the filter does nothing but forbid the tokens
            in `forbidden`. By default it must see all logits.
        forbidden: (F,) these tokens.
        of_rows: the names of the tensors that hold something of each row (R, ...).
    """

    until: float = 0
    of_rows: tuple[str, ...] = ()
    forbidden: Tensor = torch.empty(0, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t) of each row so far -> (R, V)."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        for name in self.of_rows:
            setattr(self, name, vars(self)[name].index_select(0, rows))


class Forbid(Filter):
    """Forbids these tokens."""

    until = inf

    def __init__(self, tokens: Sequence[int], device: Any = None) -> None:
        self.forbidden = torch.tensor(tokens, dtype=torch.int64, device=device)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:  # noqa: ARG002 (as in `Filter`)
        """Logits (R, V) without these tokens."""
        return logits.index_fill_(1, self.forbidden, float("-inf"))


class Prefix(Filter):
    """Makes outputs begin with given tokens, which are scored by the model like any others.

    Args:
        tokens: the prefix of each row.
        free: how many of the first tokens have probability one instead, as no choice of the model.
    """

    of_rows = ("tokens",)

    def __init__(self, tokens: Sequence[Sequence[int]], device: Any = None, free: int = 0) -> None:
        self.free = free
        longest = max(map(len, tokens), default=0)
        padded = [[*row, *[-1] * (longest - len(row))] for row in tokens]  # -1 allows any token
        self.tokens = torch.tensor(padded, dtype=torch.int64, device=device).view(
            len(tokens), longest
        )  # (R, L)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        position = history.shape[1] - 1
        if position >= self.tokens.shape[1]:
            self.until = inf  # the prefix is written: from here on it does nothing
            return logits
        wanted = self.tokens[:, position, None]  # (R, 1)
        if position < self.free:  # a logit equal to the log-normaliser has probability one
            logits = logits.scatter(1, wanted, log_normaliser(logits)[:, None])
        others = torch.arange(logits.shape[1], device=logits.device) != wanted  # (R, V)
        return logits.masked_fill(others & (wanted >= 0), float("-inf"))


class Cut(Filter):
    """Ends an output where it is as long as allowed, at no cost, as if its end had not been needed.

    Args:
        limits: the most tokens of each row's output, this end included; the same for all rows of a
            source.
    """

    of_rows = ("limits",)

    def __init__(self, end: int, limits: Sequence[int], device: Any = None) -> None:
        self.end, self.limits = end, torch.tensor(limits, device=device)
        self.until = min(limits, default=0)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        if history.shape[1] < self.until:
            return logits
        at_limit = history.shape[1] >= self.limits  # (R,)
        if bool(at_limit.any()):  # a logit equal to the log-normaliser has probability one
            certain = log_normaliser(logits)
            logits[:, self.end] = torch.where(at_limit, certain, logits[:, self.end])
        return logits


class FixedLength(Cut):
    """Makes every output exactly as long as its limit: `end` has probability one there and is
    forbidden before."""

    def __init__(self, end: int, limits: Sequence[int], device: Any = None) -> None:
        super().__init__(end, limits, device)
        self.forbidden = torch.tensor([end], device=device)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        logits = super().__call__(logits, history)
        at_limit = history.shape[1] >= self.limits  # (R,)
        logits[:, self.end] = torch.where(at_limit, logits[:, self.end], float("-inf"))
        return logits


class Observed(Filter):
    """Another filter, before each step of which `observe` is called with the tokens of the first
    row."""

    def __init__(self, inner: Filter, observe: Callable[[list[int]], None]) -> None:
        self.inner, self.observe = inner, observe

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        self.observe(history[0, 1:].tolist())
        return self.inner(logits, history)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the other filter, in this order."""
        self.inner.select(rows)


class NoRepeat(Filter):
    """Lets no output hold a run of `size` tokens twice (Paulus et al. 2018, section 2.5), unless
    nothing else is possible, as where another filter allows one token only."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        written = history[:, 1:]  # without the begin token
        if written.shape[1] < self.size:
            return logits
        runs = written.unfold(1, self.size, 1)  # (R, t - size + 1, size)
        newest = written[:, written.shape[1] - self.size + 1 :]  # (R, size - 1)
        rows, starts = (runs[..., :-1] == newest[:, None]).all(-1).nonzero(as_tuple=True)
        bound = logits.clone()
        bound[rows, runs[rows, starts, -1]] = float("-inf")
        return torch.where(bound.amax(1, keepdim=True) > float("-inf"), bound, logits)


class WellFormedTrees(Filter):
    """A search filter that makes outputs linearised trees (Vinyals et al. 2015): "(S (NP XX )NP (VP
    XX )VP )S".

    One constituent spans the whole output. A closing bracket closes the innermost constituent,
    which must not be empty. The output has exactly the given number of words and then ends. Pieces
    that begin with a bracket open and close constituents, special tokens are forbidden, and every
    other piece stands for a word. No constituent is opened that could not be closed within the
    length limit. If the limit is too short for even one flat constituent (words + 3 tokens), the
    output is cut off there.
    """

    of_rows = ("words_left", "limits", "depth", "opens", "stack")

    def __init__(
        self, vocabulary: Sequence[str], end: int, bounds: Sequence[tuple[int, int]]
    ) -> None:
        """
        Args:
            vocabulary: the pieces, by id.
            end: the id of the token that ends an output.
            bounds: for each row, the number of words of its tree and the most tokens of the output,
                its end included.
        """
        pieces = [piece.removeprefix(BLANK) for piece in vocabulary]
        kinds = [_kind(piece) for piece in pieces]
        closing = {piece[1:] for piece, kind in zip(pieces, kinds) if kind == ")"}
        labels = sorted(
            {
                piece[1:]
                for piece, kind in zip(pieces, kinds)
                if kind == "(" and piece[1:] in closing
            }
        )
        numbers = {label: number for number, label in enumerate(labels)}
        self.end = end
        self.label = torch.tensor([numbers.get(piece[1:], -1) for piece in pieces])  # (V,)
        self.opening = torch.tensor([kind == "(" for kind in kinds]) & (self.label >= 0)  # (V,)
        self.closing = torch.tensor([kind == ")" for kind in kinds]) & (self.label >= 0)  # (V,)
        self.word = torch.tensor([kind == "word" for kind in kinds])  # (V,)
        self.words_left, self.limits = (torch.tensor(column) for column in zip(*bounds))  # (R,)
        self.depth = torch.zeros_like(self.limits)  # (R,) open constituents
        # (R,) those opened since the last word or closing bracket
        self.opens = torch.zeros_like(self.limits)
        # (R, L + 1) their labels
        self.stack = torch.zeros(len(bounds), int(self.limits.max()) + 1, dtype=torch.int64)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t) so far -> the same with minus infinity where no
        tree can continue."""
        if self.stack.device != logits.device:
            for name, value in vars(self).items():
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(logits.device))
        if history.shape[1] > 1:
            self._take(history[:, -1])
        left = self.limits - history.shape[1] + 1  # (R,) tokens left, the end included
        begun, unread = self.depth > 0, self.words_left > 0
        # After an opening bracket the words must still fit, and all closing brackets and the
        # end.
        fits = self.words_left + (self.depth + 1) + 1 < left
        may_open = unread & (self.opens < MOST_OPENS) & (fits | ~begun)
        may_close = begun & (self.opens == 0) & ((self.depth > 1) | ~unread)
        innermost = self.stack.gather(1, (self.depth - 1).clamp(min=0)[:, None])  # (R, 1)
        allowed = (
            (may_open[:, None] & self.opening)
            | (may_close[:, None] & self.closing & (self.label == innermost))
            | ((begun & unread)[:, None] & self.word)
        ) & (left > 1)[:, None]  # (R, V)
        allowed[:, self.end] = ~allowed.any(1)
        return logits.masked_fill(~allowed, float("-inf"))

    def _take(self, tokens: Tensor) -> None:
        """Advance by one token per row (R,), which is arbitrary in rows that search has given
        up."""
        opened, closed, word = self.opening[tokens], self.closing[tokens], self.word[tokens]
        place = self.depth.clamp(min=0)[:, None]
        label = torch.where(
            opened[:, None], self.label[tokens][:, None], self.stack.gather(1, place)
        )
        self.stack = self.stack.scatter(1, place, label)
        self.depth = self.depth + opened.long() - closed.long()
        self.words_left = self.words_left - word.long()
        self.opens = torch.where(opened, self.opens + 1, self.opens.masked_fill(closed | word, 0))


def _kind(piece: str) -> str:
    """The kind of a piece: "(" if it opens a constituent, ")" if it closes one, "word", or "" if it
    is special."""
    if not piece or (piece.startswith("<") and piece.endswith(">")):
        return ""
    return piece[0] if piece[0] in "()" and len(piece) > 1 else "word"
