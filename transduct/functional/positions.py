"""Positional encodings: those of the lecture notes, and newer ones.

Let N be tokens, `positions` (N,) their indices from 0, D a width, H heads, T queries and S keys of
a sequence.
"""

import math
from functools import cache

import torch
from torch import Tensor

from transduct.functional.fast import cpu, cpu_training

BASE = 10000.0  # of the wavelengths of sinusoidal and rotary positions, as in both papers
LONGEST_TABLE = 1 << 16  # positions whose sines and cosines are cached
# schemes that depend on the sequence's length: no table holds them
LENGTH_DEPENDENT = frozenset({"normalised_index"})


def index(positions: Tensor) -> Tensor:
    """The index itself: (N,) -> (N, 1)."""
    return positions[:, None].float()  # (N, 1)


def normalised_index(positions: Tensor, lengths: Tensor) -> Tensor:
    """The index divided by the length of its sequence, in [0, 1): (N,), (N,) -> (N, 1)."""
    return (positions / lengths)[:, None]  # (N, 1)


def binary(positions: Tensor, bits: int) -> Tensor:
    """The index in binary, lowest bit first: (N,) -> (N, bits)."""
    return (
        positions[:, None] >> torch.arange(bits, device=positions.device) & 1
    ).float()  # (N, bits)


def one_hot(positions: Tensor, max_length: int) -> Tensor:
    """One-hot vectors: (N,) -> (N, max_length). Multiplied by a learned table they are learned
    position embeddings."""
    return (
        positions[:, None] == torch.arange(max_length, device=positions.device)
    ).float()  # (N, max_length)


def frequencies(width: int, device: torch.device | None = None) -> Tensor:
    """(width / 2,): w_k = 10000^(-2k / width), a geometric sequence from 1 down to 10000^(2 / width
    - 1), nearly 1 / 10000 for wide vectors."""
    return BASE ** (-torch.arange(0, width, 2, device=device) / width)  # (width / 2,)


def sinusoidal(positions: Tensor, width: int) -> Tensor:
    """PE(t, 2k) = sin(w_k t), PE(t, 2k + 1) = cos(w_k t), as in section 3.5 of the paper: (N,) ->
    (N, width)."""
    angles = positions[:, None] * frequencies(width + width % 2, positions.device)  # (N, width / 2)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]  # (N, width)


def sinusoidal_concatenated(positions: Tensor, width: int) -> Tensor:
    """All sines, then all cosines, as in Hugging Face's Marian: (N,) -> (N, width)."""
    angles = positions[:, None] * frequencies(width + width % 2, positions.device)  # (N, width / 2)
    return torch.cat((angles.sin(), angles.cos()), -1)[:, :width]  # (N, width)


def sinusoidal_inclusive(positions: Tensor, width: int) -> Tensor:
    """All sines, then all cosines, of frequencies from 1 down to 1 / 10000 itself, as in M2M-100:
    (N,) -> (N, width), with a zero at the end of an odd width."""
    half = width // 2
    steps = torch.arange(half, device=positions.device) * (-math.log(BASE) / max(half - 1, 1))
    angles = positions[:, None] * steps.exp()  # (N, width / 2)
    vectors = torch.cat((angles.sin(), angles.cos()), -1)  # (N, width)
    return torch.nn.functional.pad(vectors, (0, width - 2 * half))


def sinusoidal_2d(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Sinusoids of the row in the first half, of the column in the second: (P,), (P,) -> (P,
    width).

    Rows and columns may be fractions, as for boxes (Carion et al. 2020, appendix A.4).
    """
    halves = sinusoidal(rows, width - width // 2), sinusoidal(columns, width // 2)
    return torch.cat(halves, -1)  # (P, width)


def dot_product_by_distance(distances: Tensor, width: int) -> Tensor:
    """PE(t) . PE(t + d) = sum_k cos(w_k d), which depends only on the distance d: (...,) ->
    (...,)."""
    return (distances[..., None] * frequencies(width, distances.device)).cos().sum(-1)


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate each pair (x_k, x_{k + K/2}) of a query or key by the angle w_k t: (N, H, K) -> (N, H,
    K).

    The dot product of a rotated query and a rotated key depends only on their distance (RoPE; Su et
    al. 2021).
    """
    if cpu.trainable(x) and positions.dtype == torch.int64 and 0 < len(positions) == len(x):
        least, most = map(int, positions.aminmax())
        if least >= 0 and most < LONGEST_TABLE:
            return cpu_training.turned(x, positions, turns(1 << most.bit_length(), x.shape[-1]))
    angles = positions[:, None] * frequencies(x.shape[-1], x.device)  # (N, K / 2)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)  # (N, 1, K / 2)
    first, second = x.chunk(2, -1)  # (N, H, K / 2) each
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)  # (N, H, K)


@cache
def turns(length: int, width: int) -> Tensor:
    """(length, width): the sines and then the cosines of the rotary angles of the first `length`
    positions, in float32 on the CPU, whatever the default dtype and device of PyTorch."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width
    angles = torch.arange(length, device="cpu")[:, None] * BASE**-exponents  # (length, width / 2)
    return torch.cat((angles.sin(), angles.cos()), 1)


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """(T, S): key position minus query position; the last query is aligned with the last key."""
    places = torch.arange(keys, device=device)
    return places - places[keys - queries :, None]  # (T, S)


def alibi_slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """(H,): the geometric sequence 2^(-8/H), 2^(-16/H), ... of Press et al. 2022."""
    return 2.0 ** (-8.0 * torch.arange(1, num_heads + 1, device=device) / num_heads)


def alibi(num_heads: int, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """ALiBi (H, T, S): minus slope times distance, to be added to the scores (Press et al.
    2022)."""
    return (
        -alibi_slopes(num_heads, device)[:, None, None] * distances(queries, keys, device).abs()
    )  # (H, T, S)


def buckets_of(distances: Tensor, buckets: int, farthest: int, causal: bool) -> Tensor:
    """The bucket of each distance, key position minus query position (Raffel et al. 2020, section
    2.1): (...,) -> (...,).

    Half of the buckets hold one distance each. The others grow with the logarithm of the distance
    up to `farthest`, and the last holds all beyond it. Unless `causal`, half of all are for keys
    after the query; if `causal`, these share the bucket of distance zero.
    """
    after = torch.zeros_like(distances)
    if causal:
        far = -distances.clamp(max=0)
    else:
        buckets //= 2
        after, far = (distances > 0).long() * buckets, distances.abs()
    exact = buckets // 2
    ratio = torch.log(far.clamp(min=1).float() / exact) / math.log(farthest / exact)
    grown = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return after + torch.where(far < exact, far, grown)


def bucketed(table: Tensor, queries: int, keys: int, farthest: int, causal: bool) -> Tensor:
    """The learned number of each head for the bucket of each distance, to be added to the scores:
    (buckets, H) -> (H, T, S)."""
    found = buckets_of(distances(queries, keys, table.device), len(table), farthest, causal)
    return table.t()[:, found]  # (H, T, S)


def relative(query: Tensor, table: Tensor, keys: int) -> Tensor:
    """Relative positions, q . a_{j-i} / sqrt(K), with a learned vector for each clipped distance j
    - i.

    This is the second term of equation 5 of Shaw et al. 2018. Their second table, added to the
    values, made no difference in their ablation and is left out.

    Args:
        query: (B, H, T, K).
        table: (2 c + 1, K), a vector for each distance from -c to c.
        keys: S.

    Returns:
        (B, H, T, S), to be added to the scores.
    """
    reach = table.shape[0] // 2
    rows = distances(query.shape[2], keys, query.device).clamp(-reach, reach) + reach  # (T, S)
    scores = (query * query.shape[-1] ** -0.5) @ table.T  # (B, H, T, 2 c + 1)
    return scores.gather(-1, rows.expand(*query.shape[:2], *rows.shape))  # (B, H, T, S)
