"""Losses over flat tokens, and over sets of boxes.

Let N be tokens, D the model width, V the vocabulary; B pictures, Q object queries, A objects, C
classes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.functional.boxes import generalised_iou, to_corners
from transduct.functional.fast import (
    add_product,
    cpu,
    cpu_training,
    first_only,
    product,
    row_losses,
    takes,
)
from transduct.functional.lookup import lookup
from transduct.segments import Segments, pad

# logits computed at a time on a CPU: 16 MiB of float32, which fit the cache of a small machine
CHUNK = 2**22
# on a GPU: 256 MiB of bfloat16, so that the products are large enough to be efficient
GPU_CHUNK = 2**27
# rows of a chunk at least, however large the vocabulary: every chunk reads the whole table
FEWEST = 512
SET_WEIGHTS = {"labels": 1.0, "l1": 5.0, "giou": 2.0}  # of DETR's costs and losses
NO_OBJECT = 0.1  # weight of the queries without an object in the classification loss


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy against (1 - e) one-hot + e / V (Szegedy et al. 2016; section 5.4 of the
    paper): (N, V) -> (N,)."""
    log_probabilities = logits.log_softmax(-1)  # (N, V)
    nll = -log_probabilities.gather(-1, targets[:, None]).squeeze(-1)  # (N,)
    return (1.0 - smoothing) * nll - smoothing * log_probabilities.mean(-1)  # (N,)


def vector_quantise(
    vectors: Tensor, codebook: Tensor, commitment: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Vector quantisation with the straight-through gradient estimator (van den Oord et al. 2017).

    Args:
        vectors: (N, D).
        codebook: (V, D).
        commitment: beta of their equation 3.

    Returns:
        The nearest codebook vectors (N, D), which pass their gradient on to `vectors`; their
        indices (N,); and the sum of |sg[z] - e|^2 + beta |z - sg[e]|^2, the last two terms of
        equation 3.
    """
    codes = nearest_codes(vectors, codebook)
    nearest = lookup(codebook, codes)  # (N, D)
    codebook_loss = (vectors.detach() - nearest).square().sum()
    commitment_loss = (vectors - nearest.detach()).square().sum()
    return (
        vectors + (nearest - vectors).detach(),
        codes,
        codebook_loss + commitment * commitment_loss,
    )


def nearest_codes(vectors: Tensor, codebook: Tensor) -> Tensor:
    """The index of the nearest codebook vector: (N, D), (V, D) -> (N,)."""
    # (N, V), minus |z|^2, which all codes share
    distances = codebook.square().sum(1) - 2 * vectors @ codebook.T
    return distances.argmin(1)


def gumbel_softmax(logits: Tensor, temperature: float) -> Tensor:
    """softmax((logits + g) / temperature), g from Gumbel(0, 1) (Jang et al. 2017, equation 2): (N,
    V) -> (N, V)."""
    noise = -torch.empty_like(logits).exponential_().log()
    return ((logits + noise) / temperature).softmax(-1)


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """KL(softmax(logits) || uniform), in nats: (N, V) -> (N,)."""
    log_probabilities = logits.log_softmax(-1)  # (N, V)
    # (N,)
    return (log_probabilities.exp() * log_probabilities).sum(-1) + math.log(logits.shape[-1])


def symmetric_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 of softmax(logits) and softmax(others): (N, V), (N, V) ->
    (N,)."""
    one, other = logits.log_softmax(-1), others.log_softmax(-1)  # (N, V)
    return 0.5 * ((one.exp() - other.exp()) * (one - other)).sum(-1)  # (N,)


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float = 0.0,
    counted: Tensor | None = None,
    agreement: float = 0.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output projection and `label_smoothed_cross_entropy` fused, a chunk of the logits at a
    time.

    Args:
        hidden: (N, D); with `agreement`, (2N, D), two readings of the same tokens with different
            dropout.
        weight: (V, D), the output embedding.
        targets: (N,) token ids.
        smoothing: e, the weight of the uniform distribution.
        counted: (N,) 1.0 for a token whose loss counts and 0.0 for filler; all count by default.
        agreement: alpha of R-Drop: adds alpha / 2 times the `symmetric_divergence` of the two
            readings to the mean of their losses (half of equation 4 of Liang et al. 2021).
        bias: (V,), added to the logits.

    Returns:
        The sum of the smoothed losses, and the sum of the negative log-likelihoods, which is for
        reports and has no gradient.
    """
    dtype = (
        torch.get_autocast_dtype(hidden.device.type)
        if torch.is_autocast_enabled(hidden.device.type)
        else None
    )
    # Decided here: parameters have requires_grad even under no_grad, and inside a Function's
    # forward gradients are off.
    wanted = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (hidden, weight, bias)
    )
    loss, nll = _ProjectedCrossEntropy.apply(
        hidden, weight, targets, smoothing, counted, agreement, bias, dtype or hidden.dtype, wanted
    )
    return (loss / 2, nll / 2) if agreement else (loss, nll)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, chunk by chunk, so that the logits need not be
    kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        counted: Tensor | None,
        agreement: float,
        bias: Tensor | None,
        dtype: torch.dtype,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        cast = weight.to(dtype)  # (V, D)
        loss = hidden.new_zeros((), dtype=torch.float32)
        nll = hidden.new_zeros((), dtype=torch.float32)
        hidden_grad = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        weight_grad = torch.zeros_like(weight) if wanted else hidden.new_empty(0)
        bias_grad = torch.zeros_like(bias) if wanted and bias is not None else None
        readings, size = (2 if agreement else 1, -1), hidden.shape[1]
        step = (
            max(FEWEST, (CHUNK if hidden.device.type == "cpu" else GPU_CHUNK) // weight.shape[0])
            // readings[0]
        )
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(targets), step):
                rows = slice(start, start + step)
                # (n, D), all readings
                piece = hidden.view(*readings, size)[:, rows].flatten(0, 1).to(dtype)
                labels = targets[rows].repeat(readings[0])
                weights = None if counted is None else counted[rows].repeat(readings[0])
                logits = product(piece, cast)  # (n, V)
                if bias is not None:
                    logits += bias
                part, part_nll, grad = _losses_of_rows(
                    logits, labels, smoothing, weights, wanted, agreement
                )
                nll = nll + part_nll  # not in place: compiled PyTorch 2.11 takes an output
                loss = loss + part  # that was changed in place to have no gradient
                if grad is not None:
                    hidden_grad.view(*readings, size)[:, rows] = product(grad, cast.T).view(
                        *readings, size
                    )
                    add_product(weight_grad, grad.T, piece.T)
                    if bias_grad is not None:
                        bias_grad += grad.sum(0, dtype=bias_grad.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @first_only
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        bias_grad = None if bias_grad is None else bias_grad * grads[0]
        return (
            hidden_grad * grads[0],
            weight_grad * grads[0],
            None,
            None,
            None,
            None,
            bias_grad,
            None,
            None,
        )


def _agreement_of_rows(
    logits: Tensor, weight: float, counted: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`weight` times the summed `symmetric_divergence` of the two halves of the rows (n, V), and
    its gradient."""
    one, other = logits.float().log_softmax(-1).chunk(2)  # (n / 2, V)
    p, q, ratio = one.exp(), other.exp(), one - other
    # KL(p || q), KL(q || p)
    kl_pq, kl_qp = ((p * ratio).sum(-1, keepdim=True), (q * -ratio).sum(-1, keepdim=True))
    # (n, V)
    grad = torch.cat((p * (ratio - kl_pq) + p - q, q * (-ratio - kl_qp) + q - p)).mul_(0.5 * weight)
    weights = None if counted is None else counted[:, None]  # (n, 1)
    total = 0.5 * weight * _sum(kl_pq + kl_qp, None if weights is None else weights.chunk(2)[0])
    return total, (grad if weights is None else grad.mul_(weights)).to(logits.dtype)


def _losses_of_rows(
    logits: Tensor,
    targets: Tensor,
    smoothing: float,
    counted: Tensor | None,
    wanted: bool,
    agreement: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the sum of the smoothed losses, with the agreement of the two halves, the sum of the
    negative log-likelihoods, and, if `wanted`, the gradient of the logits (n, V). The logits may be
    overwritten."""
    kernel = _fused(logits)
    if kernel is cpu_training.row_losses:  # which knows the agreement itself
        losses, nlls = kernel(logits, targets, smoothing, counted, wanted, agreement)
        return losses.sum(), nlls.sum(), logits if wanted else None
    divergence = _agreement_of_rows(logits, agreement, counted) if agreement else None
    if kernel:
        losses, nlls = kernel(logits, targets, smoothing, counted, wanted)
        loss, nll, grad = losses.sum(), nlls.sum(), logits if wanted else None
    else:
        loss, nll, grad = _losses_by_formula(logits, targets, smoothing, counted, wanted)
    if divergence is None:
        return loss, nll, grad
    return loss + divergence[0], nll, None if grad is None else grad + divergence[1]


def _losses_by_formula(
    logits: Tensor, targets: Tensor, smoothing: float, counted: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`_losses_of_rows` by PyTorch's operations, without agreement."""
    dtype, size, labels = logits.dtype, logits.shape[1], targets[:, None]
    weights = None if counted is None else counted[:, None]  # (n, 1)
    logits = logits.float()
    logits -= logits.amax(-1, keepdim=True)
    chosen = _sum(logits.gather(1, labels), weights)
    total = _sum(logits, weights) if smoothing else chosen
    exponentials = logits.exp_()
    normaliser = exponentials.sum(-1, keepdim=True)  # (n, 1)
    log_normaliser = _sum(normaliser.log(), weights)
    loss = log_normaliser - (1.0 - smoothing) * chosen - (smoothing / size) * total
    if not wanted:
        return loss, log_normaliser - chosen, None
    grad = exponentials.div_(normaliser).sub_(smoothing / size)  # softmax - (1 - e) one-hot - e / V
    grad.scatter_(1, labels, grad.gather(1, labels) + (smoothing - 1.0))
    return (
        loss,
        log_normaliser - chosen,
        (grad if weights is None else grad.mul_(weights)).to(dtype),
    )


def _sum(x: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of all numbers, each row weighted by its weight."""
    return x.sum() if weights is None else (x.sum(-1, keepdim=True) * weights).sum()


def _fused(logits: Tensor) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The kernel that overwrites logits with their gradient, if there is one for this device and
    dtype."""
    if cpu.trainable(logits):
        return cpu_training.row_losses
    taken = logits.device.type == "cuda" and takes("triton_losses", logits)
    return row_losses if taken else None


def matching_costs(
    logits: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, sizes: Sequence[int]
) -> Tensor:
    """The cost of matching each object with each query of its picture: -p(label) + 5 L1 - 2 GIoU.

    Carion et al. 2020, section 3.1.

    Args:
        logits: (B, Q, C + 1); the last class means no object.
        boxes: (B, Q, 4), centre, width and height relative to the picture's.
        labels, targets: (A,) and (A, 4), the classes and boxes of the objects of all pictures, one
            after the other.
        sizes: the number of objects in each picture.

    Returns:
        (A, Q).
    """
    # (A,)
    pictures = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(logits.device)
    probabilities = logits.softmax(-1).index_select(0, pictures)  # (A, Q, C + 1)
    probabilities = probabilities.gather(
        2, labels[:, None, None].expand(-1, logits.shape[1], 1)
    ).squeeze(2)  # (A, Q)
    # (A, Q, 4)
    ours, theirs = (targets[:, None].expand(-1, boxes.shape[1], 4), boxes.index_select(0, pictures))
    distances = (ours - theirs).abs().sum(-1)  # (A, Q)
    overlaps = generalised_iou(to_corners(ours), to_corners(theirs))  # (A, Q)
    weights = SET_WEIGHTS
    return (
        weights["l1"] * distances - weights["labels"] * probabilities - weights["giou"] * overlaps
    )


@torch.no_grad()
def match(
    logits: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Match the objects of each picture with its queries, one to one, at the lowest total cost
    (Kuhn 1955).

    Arguments as for `matching_costs`.

    Returns:
        The indices of the matched queries, counted through all pictures, and of their objects. If a
        picture has more objects than queries, some objects remain unmatched.
    """
    from scipy.optimize import linear_sum_assignment

    costs = matching_costs(logits, boxes, labels, targets, sizes)
    most = torch.finfo(
        costs.dtype
    ).max  # the solver refuses NaN; a diverged model shows in the loss
    tables = np.split(costs.nan_to_num(most, most, most).cpu().numpy(), np.cumsum(sizes)[:-1])
    queries, objects, before = [], [], 0
    for picture, table in enumerate(tables):
        rows, columns = linear_sum_assignment(table)
        queries.append(columns + picture * logits.shape[1])
        objects.append(rows + before)
        before += len(table)
    matched, their_objects = (
        torch.from_numpy(np.concatenate(each)).to(logits.device) for each in (queries, objects)
    )
    return matched, their_objects


def set_losses(
    logits: Tensor,
    boxes: Tensor,
    labels: Tensor,
    targets: Tensor,
    sizes: Sequence[int],
    no_object: float = NO_OBJECT,
) -> dict[str, Tensor]:
    """DETR's set prediction losses, summed (Carion et al. 2020, section 3.1); arguments as for
    `matching_costs`.

    Returns:
        `labels`, the cross-entropy of all queries, with weight `no_object` for those without an
        object; `l1` and `giou` of the matched boxes. `set_counts` returns their divisors.
    """
    logits, boxes = logits.float(), boxes.float()
    queries, objects = match(logits, boxes, labels, targets, sizes)
    none = logits.shape[-1] - 1
    classes = torch.full((len(sizes) * logits.shape[1],), none, device=logits.device)
    classes = classes.index_copy(0, queries, labels.index_select(0, objects))  # (B * Q,)
    nll = -logits.flatten(0, 1).log_softmax(-1).gather(1, classes[:, None]).squeeze(1)  # (B * Q,)
    predicted, expected = (
        boxes.flatten(0, 1).index_select(0, queries),
        targets.index_select(0, objects),
    )  # (A, 4)
    return {
        "labels": torch.where(classes == none, no_object * nll, nll).sum(),
        "l1": (predicted - expected).abs().sum(),
        "giou": (1.0 - generalised_iou(to_corners(predicted), to_corners(expected))).sum(),
    }


def set_counts(
    sizes: Sequence[int], queries: int, no_object: float = NO_OBJECT
) -> dict[str, float]:
    """The divisors of the sums of `set_losses`, from the number of objects in each picture
    alone."""
    matched = float(sum(min(size, queries) for size in sizes))
    labels = matched + no_object * (len(sizes) * queries - matched)
    # a batch may have no objects
    return {"labels": labels, "l1": max(matched, 1e-6), "giou": max(matched, 1e-6)}


def ctc_loss(
    log_probabilities: Tensor,
    segments: Segments,
    targets: Tensor,
    target_segments: Segments,
    blank: int,
) -> Tensor:
    """Minus the log-probability of each target, summed over all its alignments (Graves et al. 2006,
    section 4.1).

    Args:
        log_probabilities: (N, V) of each frame; a sequence has T frames.
        targets: (M,) tokens without blanks; a sequence may be empty.

    Returns:
        (B,); infinite where a sequence has fewer frames than its target needs, which is one per
        token and one between equal neighbours.
    """
    # (B, T, V), (B, L)
    padded, labels = (pad(log_probabilities, segments), pad(targets, target_segments))
    return _CTC.apply(padded, segments.lengths, labels, target_segments.lengths, blank)


class _CTC(torch.autograd.Function):
    """Forward and backward variables in one loop: the backward variables are the forward ones of
    the reversed sequence.

    The states are the tokens with blanks before, between and after them: S = 2 L + 1.
    """

    @staticmethod
    def forward(
        ctx: Any, frames: Tensor, times: Tensor, labels: Tensor, lengths: Tensor, blank: int
    ) -> Tensor:
        (count, longest, size), states = frames.shape, 2 * labels.shape[1] + 1
        frames = frames.to(torch.promote_types(frames.dtype, torch.float32))
        tokens = torch.full((count, states), blank, device=frames.device)
        tokens[:, 1::2] = labels
        emitted = frames.gather(2, tokens[:, None].expand(-1, longest, -1))  # (B, T, S)
        time, state = (torch.arange(n, device=frames.device) for n in (longest, states))
        ends = 2 * lengths + 1  # (B,) states
        valid = (time < times[:, None])[:, :, None] & (state < ends[:, None])[:, None]  # (B, T, S)
        mirrored_time = (times[:, None] - 1 - time).clamp(min=0)[:, :, None].expand_as(emitted)
        mirrored_state = (ends[:, None] - 1 - state).clamp(min=0)  # (B, S)
        places = mirrored_state[:, None].expand_as(emitted)

        def mirrored(x: Tensor) -> Tensor:
            return x.gather(1, mirrored_time).gather(2, places)  # (B, T, S)

        both = torch.cat((emitted, mirrored(emitted)))  # (2 B, T, S)
        alphas = _forward_variables(
            both, torch.cat((tokens, tokens.gather(1, mirrored_state))), blank
        )
        alpha, beta = alphas[:count], mirrored(alphas[count:])
        last = (times - 1).clamp(min=0)[:, None, None].expand(-1, 1, states)
        final = alpha.gather(1, last).squeeze(1)  # (B, S)
        final = final.masked_fill(
            (state < ends[:, None] - 2) | (state >= ends[:, None]), float("-inf")
        )
        total = final.logsumexp(1).masked_fill((times == 0) & (lengths > 0), float("-inf"))  # (B,)
        # the posterior of each state at each time, summed over the states of a token
        if ctx.needs_input_grad[0]:
            expected = (alpha + beta - emitted - total[:, None, None]).exp()
            expected = expected.masked_fill(~valid | total.isinf()[:, None, None], 0.0)
            of_token = (tokens[:, :, None] == torch.arange(size, device=frames.device)).to(
                expected.dtype
            )  # (B, S, V)
            # which would round the posteriors
            with torch.autocast(frames.device.type, enabled=False):
                ctx.save_for_backward(expected @ of_token)  # (B, T, V)
        return -total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (expected,) = ctx.saved_tensors
        return -expected * grads[0][:, None, None], None, None, None, None


def _forward_variables(emitted: Tensor, tokens: Tensor, blank: int) -> Tensor:
    """alpha_t(s), the log-probability of all paths that are in state s at time t: (B, T, S) -> (B,
    T, S)."""
    count, longest, states = emitted.shape
    nothing = float("-inf")
    # the blank between unequal tokens is optional
    skips = torch.full((count, states), nothing, device=emitted.device)
    skips[:, 1:2] = 0.0  # a path may begin with the first token
    skips[:, 2:].masked_fill_((tokens[:, 2:] != blank) & (tokens[:, 2:] != tokens[:, :-2]), 0.0)
    # plus two unreachable states before the first
    alphas = emitted.new_full((longest, count, states + 2), nothing)
    before = emitted.new_full((count, states + 2), nothing)
    before[:, 1] = 0.0  # all paths start just before the first state
    for now, step in zip(alphas, emitted.unbind(1), strict=True):
        paths = torch.stack((before[:, 2:], before[:, 1:-1], before[:, :-2] + skips))  # (3, B, S)
        torch.add(paths.logsumexp(0), step, out=now[:, 2:])
        before = now
    return alphas[:, :, 2:].transpose(0, 1)
