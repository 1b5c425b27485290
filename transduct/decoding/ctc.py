"""CTC beside search: the best path alone, and prefix scores that join those of a decoder.

Let B be sources, T their frames, R the rows of a search, V the vocabulary, the blank included.
"""

from itertools import groupby

import torch
from torch import Tensor

from transduct.functional.segments import Segments, pad

NOTHING = float("-inf")


def best_path(log_probabilities: Tensor, segments: Segments, blank: int) -> list[list[int]]:
    """The likeliest token of each frame (N, V), repeats made one and blanks left out (Graves et al. 2006, 3.2)."""
    rows = torch.split(log_probabilities.argmax(-1), segments.lengths.tolist())
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
        self.frames = frames.repeat_interleave(beam, 0)  # (R, T, V)
        # Log-probabilities of all ways to have put out a row's tokens after t frames, ending in a blank or in the last.
        start = self.frames.new_zeros(len(self.frames), 1)
        self.with_blank = torch.cat((start, self.frames[:, :, blank].cumsum(1)), 1)  # (R, T + 1)
        self.with_token = torch.full_like(self.with_blank, NOTHING)
        self.last = torch.full((len(self.frames),), -1, device=self.frames.device)  # (R,) the last token, -1 for none
        self.scores = self.frames.new_zeros(len(self.frames), 1)  # of the prefixes a row could be; here of none

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
        self.frames, self.with_blank, self.with_token, self.last, self.scores = (
            x.index_select(0, rows) for x in (self.frames, self.with_blank, self.with_token, self.last, self.scores)
        )

    def _append(self, newest: Tensor) -> None:
        """Each row's newest token (R,) joins what it has put out."""
        ways = self._ways_before(newest[:, None])[:, :, 0]  # (R, T + 1)
        token = self.frames.gather(2, newest[:, None, None].expand(-1, self.frames.shape[1], 1))[:, :, 0]  # (R, T)
        blank = self.frames[:, :, self.blank]
        with_token, with_blank = torch.full_like(ways, NOTHING), torch.full_like(ways, NOTHING)
        for t in range(token.shape[1]):
            with_token[:, t + 1] = torch.logaddexp(with_token[:, t], ways[:, t]) + token[:, t]
            with_blank[:, t + 1] = torch.logaddexp(with_token[:, t], with_blank[:, t]) + blank[:, t]
        self.with_token, self.with_blank, self.last = with_token, with_blank, newest

    def _extended(self) -> Tensor:
        """The log-probability that the output begins with a row's tokens and then each token: (R, V)."""
        tokens = torch.arange(self.frames.shape[2], device=self.frames.device)
        ways = self._ways_before(tokens.expand(len(self.frames), -1))[:, :-1]  # (R, T, V)
        scores = (ways + self.frames).logsumexp(1)  # (R, V), at whichever frame it is put out
        scores[:, self.end] = torch.logaddexp(self.with_blank[:, -1], self.with_token[:, -1])
        scores[:, self.blank] = NOTHING
        return scores

    def _ways_before(self, tokens: Tensor) -> Tensor:
        """All ways after t frames that tokens (R, n) may follow, with a blank between two of a kind: (R, T + 1, n)."""
        of_a_kind = (tokens == self.last[:, None])[:, None]  # (R, 1, n)
        with_token = self.with_token[:, :, None].masked_fill(of_a_kind, NOTHING)  # (R, T + 1, n)
        return torch.logaddexp(self.with_blank[:, :, None], with_token)
