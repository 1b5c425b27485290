"""CTC decoding: the best path, and prefix scores combined with a decoder's in search.

Let B be sources, T their frames, R the rows of a search, V the vocabulary, the blank included.
"""

from itertools import groupby

import torch
from torch import Tensor

from transduct.decoding.filters import Filter
from transduct.segments import Segments, pad, sources_of

NOTHING = float("-inf")
LEAST = -1e4  # a finite stand-in for the logarithm of zero, so low that no path through it counts


def best_path(log_probabilities: Tensor, segments: Segments, blank: int) -> list[list[int]]:
    """The likeliest token of each frame (N, V), with repeats merged and blanks removed (Graves et
    al. 2006, 3.2)."""
    rows = torch.split(log_probabilities.argmax(-1).cpu(), segments.lengths.tolist())
    return [[token for token, _ in groupby(row.tolist()) if token != blank] for row in rows]


class CTCPrefix(Filter):
    """A filter for joint CTC/attention decoding (Watanabe et al. 2017, equation 13; Hori et al.
    2017).

    The log-probability of a token becomes (1 - w) times the decoder's plus w times the token's
    increment of the CTC prefix log-probability: that the output begins with the row's tokens and
    this one or, for the end token, that it consists of the row's tokens. Apply it before filters
    that forbid tokens, because it reads all logits.

    Args:
        log_probabilities: (N, V) CTC log-probabilities of each frame.
        segments: the sources, of at least one frame each.
        weight: w, strictly between 0 (decoder only) and 1 (CTC only).
    """

    def __init__(
        self,
        log_probabilities: Tensor,
        segments: Segments,
        beam: int,
        blank: int,
        end: int,
        weight: float,
    ) -> None:
        if not 0.0 < weight < 1.0:
            raise ValueError(f"the weight of CTC is {weight}, must be between 0 and 1")
        self.blank, self.end, self.weight = blank, end, weight
        frames = pad(log_probabilities.float(), segments)  # (B, T, V)
        if not segments.equal:  # padding becomes certain blanks, which change no output
            padding = ~segments.mask[:, :, None]
            certain = torch.full_like(frames[:1, :1], NOTHING).index_fill(
                2, torch.tensor(blank, device=frames.device), 0.0
            )
            frames = torch.where(padding, certain, frames)
        # (B, T, V) log-probabilities and probabilities, shared by the rows of a source.
        self.beam, self.frames, self.probabilities = beam, frames, frames.double().exp()
        # Forward variables: the log-probability of having output a row's tokens after t frames,
        # over all alignments that end in a blank or in the last token.
        blanks = torch.cat((frames.new_zeros(len(frames), 1), frames[:, :, blank].cumsum(1)), 1)
        self.with_blank = blanks.repeat_interleave(beam, 0)  # (R, T + 1)
        self.with_token = torch.full_like(self.with_blank, NOTHING)
        # (R,) the last token, -1 for none
        self.last = torch.full((len(self.with_blank),), -1, device=frames.device)
        # (R, V) the prefix score of each continuation; at first (R, 1), that of the empty prefix.
        self.scores = frames.new_zeros(len(self.with_blank), 1)

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t), the begin token first -> (R, V)."""
        if history.shape[1] > 1:
            self._append(history[:, -1])
        prefix = (
            self.scores[:, :1] if self.last[0] < 0 else self.scores.gather(1, self.last[:, None])
        )  # (R, 1)
        self.scores = self._extended()
        # some prefixes are impossible
        increment = (self.scores - prefix).masked_fill(prefix.isinf(), NOTHING)
        normaliser = logits.logsumexp(-1, keepdim=True)  # (R, 1)
        return normaliser + (1.0 - self.weight) * (logits - normaliser) + self.weight * increment

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        if len(rows) < len(self.last):
            sources = sources_of(rows, self.beam)
            self.frames = self.frames.index_select(0, sources)
            self.probabilities = self.probabilities.index_select(0, sources)
        self.with_blank, self.with_token, self.last, self.scores = (
            x.index_select(0, rows)
            for x in (self.with_blank, self.with_token, self.last, self.scores)
        )

    def _append(self, newest: Tensor) -> None:
        """Extend each row's prefix by its newest token (R,), updating the forward variables.

        With p the token's probability in each frame, an alignment that ends in it either starts it
        or continues it: w[t + 1] = (w[t] + before[t]) p[t]. Divided by the cumulative product of p
        this recurrence is a cumulative sum. The same holds for the blanks after the token.
        """
        repeated = (newest == self.last)[:, None]  # a repeated token needs a blank in between
        before = torch.logaddexp(self.with_blank, self.with_token.masked_fill(repeated, NOTHING))[
            :, :-1
        ]  # (R, T)
        blank = self.frames[:, :, self.blank].repeat_interleave(self.beam, 0)  # (R, T)
        self.with_token = _recurrence(before, self._frames_of(newest))
        self.with_blank = _recurrence(self.with_token[:, :-1], blank)
        self.last = newest

    def _extended(self) -> Tensor:
        """The log-probability that the output begins with a row's tokens followed by each token:
        (R, V).

        It sums over the frame at which the token starts: a matrix product of forward variables,
        scaled by their maximum in each row, and token probabilities.
        """
        before = torch.logaddexp(self.with_blank, self.with_token)[:, :-1].double()  # (R, T)
        # finite even for an impossible prefix
        best = before.amax(1, keepdim=True).clamp(min=-1e300)
        weights = (before - best).exp().view(len(self.frames), self.beam, -1)  # (B, beam, T)
        scores = ((weights @ self.probabilities).log().flatten(0, 1) + best).float()  # (R, V)
        if self.last[0] >= 0:  # a repeated token needs a blank in between
            repeated = (self.with_blank[:, :-1] + self._frames_of(self.last)).logsumexp(
                1, keepdim=True
            )
            scores = scores.scatter(1, self.last[:, None], repeated)
        scores[:, self.end] = torch.logaddexp(self.with_blank[:, -1], self.with_token[:, -1])
        scores[:, self.blank] = NOTHING
        return scores

    def _frames_of(self, tokens: Tensor) -> Tensor:
        """The log-probability of each row's token in each frame: (R,) -> (R, T)."""
        index = tokens.view(-1, 1, self.beam).expand(-1, self.frames.shape[1], -1)  # (B, T, beam)
        return self.frames.gather(2, index).transpose(1, 2).flatten(0, 1)  # (R, T)


def _recurrence(before: Tensor, frames: Tensor) -> Tensor:
    """w with w[0] = 0 and w[t + 1] = (w[t] + before[t]) frames[t], all as logarithms: (R, T) each
    -> (R, T + 1)."""
    products = frames.double().clamp(min=LEAST).cumsum(1)  # (R, T)
    start = torch.zeros_like(products[:, :1])
    sums = (before - torch.cat((start, products[:, :-1]), 1)).logcumsumexp(1)  # (R, T)
    w = (sums + products).masked_fill(frames.isinf(), NOTHING)
    return torch.cat((start + NOTHING, w), 1).to(frames.dtype)
