"""Beam search that remembers what each step considered, to be shown as a tree.

A file of its own, because no search in use pays for it.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from transduct.decoding.search import Beam, continuations, length_penalty


@dataclass(frozen=True)
class Node:
    """A token with which a step of the search could go on.

    Attributes:
        parent: the number of the node before it; -1 at the beginning.
        score: the log-probability of all tokens up to here.
        place: by score, among what its step considered; from 0.
        fate: whether the search went on from it, it ended an output, or why it was dropped: as many
            others are likelier, or it ends an output but is not among the `beam` best.
        divisor: the length penalty of an output that ends here; else None.
    """

    parent: int
    token: int
    score: float
    place: int
    fate: Literal["kept", "ended", "outranked", "late"]
    divisor: float | None = None


class RecordedBeam(Beam):
    """The same search as `Beam`, for one source, with all that it considered.

    Attributes:
        nodes: in the order of the steps: the 2 * beam best of each.
    """

    def __init__(self, *given: Any, **rules: Any) -> None:
        super().__init__(*given, **rules)
        self.nodes: list[Node] = []
        self._of_rows = [-1] * self.beam  # the node that each row ends with

    def choose(self, logits: Tensor, normaliser: Tensor) -> Tensor | None:
        """One step of the search; see `Strategy`."""
        before, length = self.scores, self.history.shape[1]
        limits = self._limits if length >= self._first_limit else None
        found = continuations(logits, normaliser, before, self.end, limits, length)
        alive = zip(found.rows.tolist(), found.newest.tolist(), found.live[0].tolist())
        kept = [(row, token) if score > float("-inf") else None for row, token, score in alive]
        ended = {*zip(found.origin[0].tolist(), found.tokens[0].tolist())}
        if limits is not None:  # only an end is allowed
            others = torch.arange(logits.shape[1], device=logits.device) != self.end
            logits = logits.masked_fill(others, float("-inf"))
        totals = before.reshape(-1, 1) + (logits.double() - normaliser.double()[:, None])  # (R, V)
        best, places = totals.flatten().topk(min(2 * self.beam, totals.numel()))
        numbers = dict[tuple[int, int], int]()
        for place, (score, at) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
            if score == float("-inf"):
                break
            row, token = divmod(at, totals.shape[1])
            numbers[row, token] = len(self.nodes)
            given = self._of_rows[row], token, score, place
            if token == self.end and (row, token) in ended:
                counted = min(length, self._longest(0))
                divisor = length_penalty(counted, self.alpha, self.rule)
                self.nodes.append(Node(*given, "ended", divisor))
            elif token == self.end:
                self.nodes.append(Node(*given, "late"))
            else:
                self.nodes.append(Node(*given, "kept" if (row, token) in kept else "outranked"))
        self._of_rows = [-1 if each is None else numbers[each] for each in kept]
        return self.take(found)

    @property
    def winner(self) -> int:
        """The node at which the best output ends."""
        ends = [number for number, node in enumerate(self.nodes) if node.fate == "ended"]
        return max(ends, key=lambda n: self.nodes[n].score / (self.nodes[n].divisor or 1.0))

    def tokens(self, number: int) -> list[int]:
        """The tokens up to a node, without an end."""
        found = list[int]()
        while number >= 0:
            found.append(self.nodes[number].token)
            number = self.nodes[number].parent
        return [token for token in reversed(found) if token != self.end]
