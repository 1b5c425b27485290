"""Text classification by a linear model of hashed n-grams of tokens (fastText; Joulin et al.
2017)."""

import torch
from torch import Tensor, nn

from transduct.functional.lookup import lookup
from transduct.segments import Segments, pad

BITS = 20  # of a hash
# Knuth's, of linear congruential generators: the high bits of its products are well mixed
MULTIPLIER = 6364136223846793005
# factor of the votes: Adam moves each by about the learning rate, and few n-grams are frequent
STRENGTH = 20.0


class NGrams(nn.Module):
    """Scores labels by votes of all n-grams of a sequence, from single tokens up to n = `longest`.

    The votes are in one table, indexed by a hash of the n-gram (Weinberger et al. 2009); colliding
    n-grams share votes.
    """

    def __init__(self, longest: int, labels: int) -> None:
        super().__init__()
        self.longest = longest
        self.votes = nn.Parameter(torch.zeros(labels, 2**BITS))

    def forward(self, tokens: Tensor, segments: Segments) -> Tensor:
        """The score of each label: STRENGTH times the sum of votes / sqrt(their count); (N,) -> (B,
        labels)."""
        votes = lookup(self.votes.T, self.rows(tokens).flatten()).view(
            len(tokens), self.longest, -1
        )  # (N, n, labels)
        whole = segments.positions[:, None] >= torch.arange(
            self.longest, device=tokens.device
        )  # (N, n)
        votes = (votes * whole[:, :, None]).sum(1)  # (N, labels)
        count = pad(whole.sum(1), segments).sum(1, keepdim=True)  # (B, 1)
        return STRENGTH * pad(votes, segments).sum(1) / count.sqrt()

    def rows(self, tokens: Tensor) -> Tensor:
        """The table row of each n-gram that ends at each token, a column for each length: (N,) ->
        (N, n)."""
        codes = [tokens + 1]
        for _ in range(1, self.longest):
            codes.append(codes[-1].roll(1) * MULTIPLIER + tokens + 1)  # modulo 2^64
        return (torch.stack(codes, 1) * MULTIPLIER >> (64 - BITS)) & (2**BITS - 1)
