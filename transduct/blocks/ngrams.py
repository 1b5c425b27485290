"""What a text's n-grams say of its label: a linear model of the runs of tokens in it (Joulin et al. 2017)."""

import torch
from torch import Tensor, nn

from transduct.functional.lookup import lookup
from transduct.functional.segments import Segments, pad

BITS = 20  # of a row's number
MULTIPLIER = 6364136223846793005  # Knuth's, of linear congruences: its products spread over their high bits
STRENGTH = 20.0  # of a vote: Adam moves each by the learning rate, and few n-grams come often


class NGrams(nn.Module):
    """The votes of all n-grams of a sequence's tokens, from single tokens up to the `longest`.

    The votes of n-grams lie in one table, by their hash (Weinberger et al. 2009); two that share a row share a vote.
    Let n be the longest n-gram.
    """

    def __init__(self, longest: int, labels: int) -> None:
        super().__init__()
        self.longest = longest
        self.votes = nn.Parameter(torch.zeros(labels, 2**BITS))

    def forward(self, tokens: Tensor, segments: Segments) -> Tensor:
        """The score of each label, the sum of votes over the root of their number: (N,) -> (B, labels)."""
        votes = lookup(self.votes.T, self.rows(tokens).flatten()).view(len(tokens), self.longest, -1)  # (N, n, labels)
        whole = segments.positions[:, None] >= torch.arange(self.longest, device=tokens.device)  # (N, n)
        votes = (votes * whole[:, :, None]).sum(1)  # (N, labels)
        count = pad(whole.sum(1), segments).sum(1, keepdim=True)  # (B, 1)
        return STRENGTH * pad(votes, segments).sum(1) / count.sqrt()

    def rows(self, tokens: Tensor) -> Tensor:
        """The row of each n-gram by its last token, in a column for each n: (N,) -> (N, n)."""
        codes = [tokens + 1]
        for _ in range(1, self.longest):
            codes.append(codes[-1].roll(1) * MULTIPLIER + tokens + 1)  # modulo 2^64
        return (torch.stack(codes, 1) * MULTIPLIER >> (64 - BITS)) & (2**BITS - 1)
