"""CTC beside search: the best path alone, and prefix scores that join those of a decoder.

Let B be sources, T their frames, R the rows of a search, V the vocabulary, the blank included.
"""

from itertools import groupby

import torch
from torch import Tensor

from transduct.functional.segments import Segments, pad

NOTHING = float("-inf")
LEAST = -1e4  # for what never happens, where it must be a number: a way through it is worth that much, or less


def best_path(log_probabilities: Tensor, segments: Segments, blank: int) -> list[list[int]]:
    """The likeliest token of each frame (N, V), repeats made one and blanks left out (Graves et al. 2006, 3.2)."""
    rows = torch.split(log_probabilities.argmax(-1).cpu(), segments.lengths.tolist())
    return [[token for token, _ in groupby(row.tolist()) if token != blank] for row in rows]


class CTCPrefix:
    """A filter that lets CTC have its say in a search (Watanabe et al. 2017, equation 13; Hori et al. 2017).

    The log-probability of a token becomes (1 - w) times the decoder's plus w times what it adds to the log-probability
    under CTC that the output begins with the row's tokens and this one; for the end, that it is these tokens and no
    more. It comes before filters that forbid, for it reads all logits.

    Args:
        log_probabilities: (N, V) of each frame.
        segments: the sources, one frame at least each.
        weight: w, between 0 and 1: at 0 there is nothing to add, at 1 nothing but CTC.
    """

    def __init__(
        self, log_probabilities: Tensor, segments: Segments, beam: int, blank: int, end: int, weight: float
    ) -> None:
        if not 0.0 < weight < 1.0:
            raise ValueError(f"the weight of CTC is {weight}, must be between 0 and 1")
        self.blank, self.end, self.weight = blank, end, weight
        frames = pad(log_probabilities.float(), segments)  # (B, T, V)
        if not segments.equal:  # blanks for sure, and nothing else, change no output
            over = ~segments.mask[:, :, None]
            sure = torch.full_like(frames[:1, :1], NOTHING).index_fill(
                2, torch.tensor(blank, device=frames.device), 0.0
            )
            frames = torch.where(over, sure, frames)
        self.beam, self.frames, self.shares = beam, frames, frames.double().exp()  # (B, T, V), for all rows of a source
        # Log-probabilities of all ways to have put out a row's tokens after t frames, ending in a blank or in the last.
        blanks = torch.cat((frames.new_zeros(len(frames), 1), frames[:, :, blank].cumsum(1)), 1)
        self.with_blank = blanks.repeat_interleave(beam, 0)  # (R, T + 1)
        self.with_token = torch.full_like(self.with_blank, NOTHING)
        self.last = torch.full((len(self.with_blank),), -1, device=frames.device)  # (R,) the last token, -1 for none
        self.scores = frames.new_zeros(len(self.with_blank), 1)  # of the prefixes a row could be; here of none

    def __call__(self, logits: Tensor, history: Tensor) -> Tensor:
        """Logits (R, V) after the tokens (R, t), the begin token first -> (R, V)."""
        if history.shape[1] > 1:
            self._append(history[:, -1])
        prefix = self.scores[:, :1] if self.last[0] < 0 else self.scores.gather(1, self.last[:, None])  # (R, 1)
        self.scores = self._extended()
        gained = (self.scores - prefix).masked_fill(prefix.isinf(), NOTHING)  # some rows no way leads to
        normaliser = logits.logsumexp(-1, keepdim=True)  # (R, 1)
        return normaliser + (1.0 - self.weight) * (logits - normaliser) + self.weight * gained

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        if len(rows) < len(self.last):
            sources = rows[:: self.beam] // self.beam
            self.frames, self.shares = self.frames.index_select(0, sources), self.shares.index_select(0, sources)
        self.with_blank, self.with_token, self.last, self.scores = (
            x.index_select(0, rows) for x in (self.with_blank, self.with_token, self.last, self.scores)
        )

    def _append(self, newest: Tensor) -> None:
        """Each row's newest token (R,) joins what it has put out.

        With s the frames of a token, a way that ends in it is begun or continued: w[t + 1] = (w[t] + ways[t]) s[t].
        Divided by the product of s so far that is a sum, and so it is, once more, for a blank after the token.
        """
        of_a_kind = (newest == self.last)[:, None]  # between two of a kind stands a blank
        ways = torch.logaddexp(self.with_blank, self.with_token.masked_fill(of_a_kind, NOTHING))[:, :-1]  # (R, T)
        token = self._frames_of(newest)
        blank = self.frames[:, :, self.blank].repeat_interleave(self.beam, 0)  # (R, T)
        self.with_token = _carried(ways, token)
        self.with_blank = _carried(self.with_token[:, :-1], blank)
        self.last = newest

    def _extended(self) -> Tensor:
        """The log-probability that the output begins with a row's tokens and then each token: (R, V).

        A token is put out at whichever frame, after all ways to come there: a product of matrices, each row divided by
        its best way.
        """
        ways = torch.logaddexp(self.with_blank, self.with_token)[:, :-1].double()  # (R, T)
        best = ways.amax(1, keepdim=True).clamp(min=-1e300)  # a number also where no way leads to the row
        weights = (ways - best).exp().view(len(self.frames), self.beam, -1)  # (B, beam, T)
        scores = ((weights @ self.shares).log().flatten(0, 1) + best).float()  # (R, V)
        if self.last[0] >= 0:  # between two of a kind stands a blank
            again = (self.with_blank[:, :-1] + self._frames_of(self.last)).logsumexp(1, keepdim=True)
            scores = scores.scatter(1, self.last[:, None], again)
        scores[:, self.end] = torch.logaddexp(self.with_blank[:, -1], self.with_token[:, -1])
        scores[:, self.blank] = NOTHING
        return scores

    def _frames_of(self, tokens: Tensor) -> Tensor:
        """What the frames say of each row's token: (R,) -> (R, T)."""
        places = tokens.view(-1, 1, self.beam).expand(-1, self.frames.shape[1], -1)  # (B, T, beam)
        return self.frames.gather(2, places).transpose(1, 2).flatten(0, 1)  # (R, T)


def _carried(ways: Tensor, frames: Tensor) -> Tensor:
    """w with w[0] = 0 and w[t + 1] = (w[t] + ways[t]) frames[t], all as logarithms: (R, T) each -> (R, T + 1)."""
    products = frames.double().clamp(min=LEAST).cumsum(1)  # (R, T)
    start = torch.zeros_like(products[:, :1])
    sums = (ways - torch.cat((start, products[:, :-1]), 1)).logcumsumexp(1)  # (R, T)
    carried = (sums + products).masked_fill(frames.isinf(), NOTHING)
    return torch.cat((start + NOTHING, carried), 1).to(frames.dtype)
