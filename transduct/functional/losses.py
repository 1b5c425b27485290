"""Losses over flat tokens, and over sets of boxes.

Let N be tokens, D the model width, V the vocabulary; B pictures, Q object queries, A objects, C classes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduct.functional import training_kernels
from transduct.functional.boxes import generalised_iou, to_corners
from transduct.functional.lookup import lookup
from transduct.functional.products import product
from transduct.functional.segments import Segments, pad
from transduct.functional.trials import trusted

CHUNK = 2**21  # logits that exist at a time: 8 MiB of float32, which a small machine's cache still holds,
GPU_CHUNK = 2**27  # of bfloat16 256 MiB, in products large enough for a GPU;
FEWEST = 256  # but no fewer rows, for with each piece the whole table is read
SET_WEIGHTS = {"labels": 1.0, "l1": 5.0, "giou": 2.0}  # of DETR's costs and losses
NO_OBJECT = 0.1  # the weight of a query without an object among the labels


def label_smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy against (1 - e) one-hot + e / V (Szegedy et al. 2016; the paper's section 5.4): (N, V) -> (N,)."""
    log_probabilities = logits.log_softmax(-1)  # (N, V)
    nll = -log_probabilities.gather(-1, targets[:, None]).squeeze(-1)  # (N,)
    return (1.0 - smoothing) * nll - smoothing * log_probabilities.mean(-1)  # (N,)


def vector_quantise(vectors: Tensor, codebook: Tensor, commitment: float) -> tuple[Tensor, Tensor, Tensor]:
    """Each vector's nearest of a codebook, through which gradients pass straight (van den Oord et al. 2017).

    Args:
        vectors: (N, D).
        codebook: (V, D).
        commitment: beta of their equation 3.

    Returns:
        The nearest vectors (N, D), their gradient that of `vectors`; their numbers (N,); and the sum of
        |sg[z] - e|^2 + beta |z - sg[e]|^2, the last two terms of equation 3.
    """
    codes = nearest_codes(vectors, codebook)
    nearest = lookup(codebook, codes)  # (N, D)
    moved = (vectors.detach() - nearest).square().sum()
    committed = (vectors - nearest.detach()).square().sum()
    return vectors + (nearest - vectors).detach(), codes, moved + commitment * committed


def nearest_codes(vectors: Tensor, codebook: Tensor) -> Tensor:
    """The numbers (N,) of the nearest vectors of a codebook (V, D) to vectors (N, D)."""
    distances = codebook.square().sum(1) - 2 * vectors @ codebook.T  # (N, V), less |z|^2, the same for all
    return distances.argmin(1)


def gumbel_softmax(logits: Tensor, temperature: float) -> Tensor:
    """softmax((logits + g) / temperature) with g from Gumbel(0, 1) (Jang et al. 2017, equation 2): (N, V) -> (N, V)."""
    noise = -torch.empty_like(logits).exponential_().log()
    return ((logits + noise) / temperature).softmax(-1)


def divergence_from_uniform(logits: Tensor) -> Tensor:
    """KL(softmax(logits) || uniform), in nats: (N, V) -> (N,)."""
    log_probabilities = logits.log_softmax(-1)  # (N, V)
    return (log_probabilities.exp() * log_probabilities).sum(-1) + math.log(logits.shape[-1])  # (N,)


def symmetric_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """(KL(p || q) + KL(q || p)) / 2 of softmax(logits) and softmax(others): (N, V), (N, V) -> (N,)."""
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
    """The output projection and `label_smoothed_cross_entropy` in one, with never more than a piece of the logits.

    Args:
        hidden: (N, D); (2N, D) where the same tokens were read twice, with a dropout of its own each time.
        weight: (V, D), the output embedding.
        targets: (N,) token ids.
        smoothing: e, the weight of the uniform distribution.
        counted: (N,) 1.0 for a token whose loss counts and 0.0 for filler; all count if not given.
        agreement: alpha of R-Drop, for tokens read twice: adds alpha / 2 of their `symmetric_divergence` to the mean
            loss of the two (half of equation 4 of Liang et al. 2021).
        bias: (V,), added to the logits.

    Returns:
        The sum of the smoothed losses, to be differentiated, and the sum of the plain negative log-likelihoods (a
        number to report: it carries no gradient).
    """
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
    # A parameter wants its gradient even where none is made, and in there it is never made.
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, weight, bias))
    loss, nll = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, smoothing, counted, agreement, bias, dtype or hidden.dtype, wanted
    )
    return (loss / 2, nll / 2) if agreement else (loss, nll)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, piece by piece: the logits are needed nowhere else."""

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
        step = max(FEWEST, (CHUNK if hidden.device.type == "cpu" else GPU_CHUNK) // weight.shape[0]) // readings[0]
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(targets), step):
                rows = slice(start, start + step)
                piece = hidden.view(*readings, size)[:, rows].flatten(0, 1).to(dtype)  # (n, D), each reading's rows
                labels = targets[rows].repeat(readings[0])
                shares = None if counted is None else counted[rows].repeat(readings[0])
                logits = product(piece, cast)  # (n, V)
                if bias is not None:
                    logits += bias
                part, part_nll, grad = _losses_of_rows(logits, labels, smoothing, shares, wanted, agreement)
                nll = nll + part_nll  # what is given back is never changed in place: PyTorch 2.11, compiled, would
                loss = loss + part  # take it to have no gradient
                if grad is not None:
                    hidden_grad.view(*readings, size)[:, rows] = product(grad, cast.T).view(*readings, size)
                    if weight_grad.dtype == dtype:
                        weight_grad.addmm_(grad.T, piece)  # reads a matrix that lies turned, as `product` does not
                    else:
                        weight_grad += product(grad.T, piece.T)
                    if bias_grad is not None:
                        bias_grad += grad.sum(0, dtype=bias_grad.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors
        of_bias = None if bias_grad is None else bias_grad * grads[0]
        return hidden_grad * grads[0], weight_grad * grads[0], None, None, None, None, of_bias, None, None


def _agreement_of_rows(logits: Tensor, weight: float, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """`weight` times the sum of `symmetric_divergence` between the halves of the rows (n, V), and its gradient."""
    one, other = logits.float().log_softmax(-1).chunk(2)  # (n / 2, V)
    p, q, ratio = one.exp(), other.exp(), one - other
    there, back = (p * ratio).sum(-1, keepdim=True), (q * -ratio).sum(-1, keepdim=True)  # KL(p || q), KL(q || p)
    grad = torch.cat((p * (ratio - there) + p - q, q * (-ratio - back) + q - p)).mul_(0.5 * weight)  # (n, V)
    shares = None if counted is None else counted[:, None]  # (n, 1)
    total = 0.5 * weight * _sum(there + back, None if shares is None else shares.chunk(2)[0])
    return total, (grad if shares is None else grad.mul_(shares)).to(logits.dtype)


def _losses_of_rows(
    logits: Tensor, targets: Tensor, smoothing: float, counted: Tensor | None, wanted: bool, agreement: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The sums of the smoothed losses, with the agreement of the halves, and of the plain ones, and the gradient of the
    logits (n, V), which are used up."""
    fused = _fused(logits)
    if agreement and fused is not training_kernels.row_losses:
        apart, pull = _agreement_of_rows(logits, agreement, counted)
        loss, nll, grad = _losses_of_rows(logits, targets, smoothing, counted, wanted, 0.0)
        return loss + apart, nll, None if grad is None else grad + pull
    if fused:
        also = (agreement,) if agreement else ()
        losses, nlls = fused(logits, targets, smoothing, counted, wanted, *also)
        return losses.sum(), nlls.sum(), logits if wanted else None
    dtype, size, labels = logits.dtype, logits.shape[1], targets[:, None]
    shares = None if counted is None else counted[:, None]  # (n, 1)
    logits = logits.float()
    logits -= logits.amax(-1, keepdim=True)
    chosen = _sum(logits.gather(1, labels), shares)
    total = _sum(logits, shares) if smoothing else chosen
    exponentials = logits.exp_()
    mass = exponentials.sum(-1, keepdim=True)  # (n, 1)
    log_mass = _sum(mass.log(), shares)
    loss = log_mass - (1.0 - smoothing) * chosen - (smoothing / size) * total
    if not wanted:
        return loss, log_mass - chosen, None
    grad = exponentials.div_(mass).sub_(smoothing / size)  # softmax - (1 - e) one-hot - e / V
    grad.scatter_(1, labels, grad.gather(1, labels) + (smoothing - 1.0))
    return loss, log_mass - chosen, (grad if shares is None else grad.mul_(shares)).to(dtype)


def _sum(x: Tensor, shares: Tensor | None) -> Tensor:
    """The sum of all numbers, each row with its share."""
    return x.sum() if shares is None else (x.sum(-1, keepdim=True) * shares).sum()


def _fused(logits: Tensor) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The kernel that passes over each row and writes the gradient in its place, if one takes this device and type."""
    if training_kernels.usable(logits):
        return training_kernels.row_losses
    if logits.dtype == torch.float64 or not trusted("row_losses", logits.device, logits.dtype):
        return None
    from transduct.functional.row_losses import row_losses

    return row_losses


def matching_costs(logits: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """What it costs to give each object each query of its picture, -p(label) + 5 L1 - 2 GIoU (Carion et al. 2020,
    equation 2): (A, Q).

    Args:
        logits: (B, Q, C + 1), the last class for no object.
        boxes: (B, Q, 4), centre, width and height as shares of the picture's.
        labels, targets: (A,) and (A, 4), the objects of all pictures one after the other.
        sizes: how many objects each picture holds.
    """
    pictures = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(logits.device)  # (A,)
    probabilities = logits.softmax(-1).index_select(0, pictures)  # (A, Q, C + 1)
    probabilities = probabilities.gather(2, labels[:, None, None].expand(-1, logits.shape[1], 1)).squeeze(2)  # (A, Q)
    ours, theirs = targets[:, None].expand(-1, boxes.shape[1], 4), boxes.index_select(0, pictures)  # (A, Q, 4)
    distances = (ours - theirs).abs().sum(-1)  # (A, Q)
    overlaps = generalised_iou(to_corners(ours), to_corners(theirs))  # (A, Q)
    weights = SET_WEIGHTS
    return weights["l1"] * distances - weights["labels"] * probabilities - weights["giou"] * overlaps


@torch.no_grad()
def match(
    logits: Tensor, boxes: Tensor, labels: Tensor, targets: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The cheapest way to give each object of a picture a query of its own (Kuhn 1955); arguments as above.

    Returns:
        Queries, counted through all pictures, and the objects they are given, one by one. Where a picture holds more
        objects than there are queries some objects have none.
    """
    from scipy.optimize import linear_sum_assignment

    costs = matching_costs(logits, boxes, labels, targets, sizes)
    most = torch.finfo(costs.dtype).max  # a diverged model is the trainer's affair: the loss will tell
    tables = np.split(costs.nan_to_num(most, most, most).cpu().numpy(), np.cumsum(sizes)[:-1])
    queries, objects, before = [], [], 0
    for picture, table in enumerate(tables):
        rows, columns = linear_sum_assignment(table)
        queries.append(columns + picture * logits.shape[1])
        objects.append(rows + before)
        before += len(table)
    found, given = (torch.from_numpy(np.concatenate(each)).to(logits.device) for each in (queries, objects))
    return found, given


def set_losses(
    logits: Tensor,
    boxes: Tensor,
    labels: Tensor,
    targets: Tensor,
    sizes: Sequence[int],
    no_object: float = NO_OBJECT,
) -> dict[str, Tensor]:
    """DETR's losses of matched boxes, summed (Carion et al. 2020, section 3.1); arguments as for `matching_costs`.

    Returns:
        `labels`, the cross-entropy of all queries, those without an object with the weight `no_object`; `l1` and `giou`
        of the matched boxes. What each is to be divided by, `set_counts` says.
    """
    logits, boxes = logits.float(), boxes.float()
    queries, objects = match(logits, boxes, labels, targets, sizes)
    none = logits.shape[-1] - 1
    wanted = torch.full((len(sizes) * logits.shape[1],), none, device=logits.device)
    wanted = wanted.index_copy(0, queries, labels.index_select(0, objects))  # (B * Q,)
    nll = -logits.flatten(0, 1).log_softmax(-1).gather(1, wanted[:, None]).squeeze(1)  # (B * Q,)
    found, right = boxes.flatten(0, 1).index_select(0, queries), targets.index_select(0, objects)  # (A, 4)
    return {
        "labels": torch.where(wanted == none, no_object * nll, nll).sum(),
        "l1": (found - right).abs().sum(),
        "giou": (1.0 - generalised_iou(to_corners(found), to_corners(right))).sum(),
    }


def set_counts(sizes: Sequence[int], queries: int, no_object: float = NO_OBJECT) -> dict[str, float]:
    """What the sums of `set_losses` are divided by, for pictures with so many objects: known before any is found."""
    matched = float(sum(min(size, queries) for size in sizes))
    labels = matched + no_object * (len(sizes) * queries - matched)
    return {"labels": labels, "l1": max(matched, 1e-6), "giou": max(matched, 1e-6)}  # a batch may hold no object


def ctc_loss(
    log_probabilities: Tensor, segments: Segments, targets: Tensor, target_segments: Segments, blank: int
) -> Tensor:
    """Minus the log-probability of each target, summed over all its alignments (Graves et al. 2006, section 4.1).

    Args:
        log_probabilities: (N, V) of each frame, T of them in a sequence.
        targets: (M,) tokens without blanks; a sequence of no token is allowed.

    Returns:
        (B,), infinite where a target needs more frames than there are: one a token, and one between equal neighbours.
    """
    padded, labels = pad(log_probabilities, segments), pad(targets, target_segments)  # (B, T, V), (B, L)
    return _CTC.apply(padded, segments.lengths, labels, target_segments.lengths, blank)  # type: ignore[no-untyped-call]


class _CTC(torch.autograd.Function):
    """Forward and backward variables in one loop over time: the latter are the former of what is read backwards.

    The states are the tokens with a blank before, between and after: S = 2 L + 1.
    """

    @staticmethod
    def forward(ctx: Any, frames: Tensor, times: Tensor, labels: Tensor, lengths: Tensor, blank: int) -> Tensor:
        (count, longest, size), states = frames.shape, 2 * labels.shape[1] + 1
        frames = frames.to(torch.promote_types(frames.dtype, torch.float32))
        tokens = torch.full((count, states), blank, device=frames.device)
        tokens[:, 1::2] = labels
        emitted = frames.gather(2, tokens[:, None].expand(-1, longest, -1))  # (B, T, S)
        time, state = (torch.arange(n, device=frames.device) for n in (longest, states))
        ends = 2 * lengths + 1  # (B,) states
        held = (time < times[:, None])[:, :, None] & (state < ends[:, None])[:, None]  # (B, T, S)
        mirrored_time = (times[:, None] - 1 - time).clamp(min=0)[:, :, None].expand_as(emitted)
        mirrored_state = (ends[:, None] - 1 - state).clamp(min=0)  # (B, S)
        places = mirrored_state[:, None].expand_as(emitted)

        def mirrored(x: Tensor) -> Tensor:
            return x.gather(1, mirrored_time).gather(2, places)  # (B, T, S)

        both = torch.cat((emitted, mirrored(emitted)))  # (2 B, T, S)
        alphas = _forward_variables(both, torch.cat((tokens, tokens.gather(1, mirrored_state))), blank)
        alpha, beta = alphas[:count], mirrored(alphas[count:])
        last = (times - 1).clamp(min=0)[:, None, None].expand(-1, 1, states)
        final = alpha.gather(1, last).squeeze(1)  # (B, S)
        final = final.masked_fill((state < ends[:, None] - 2) | (state >= ends[:, None]), float("-inf"))
        total = final.logsumexp(1).masked_fill((times == 0) & (lengths > 0), float("-inf"))  # (B,)
        if ctx.needs_input_grad[0]:  # what is expected of each state at each time, put together by token
            expected = (alpha + beta - emitted - total[:, None, None]).exp()
            expected = expected.masked_fill(~held | total.isinf()[:, None, None], 0.0)
            of_token = (tokens[:, :, None] == torch.arange(size, device=frames.device)).to(expected.dtype)  # (B, S, V)
            with torch.autocast(frames.device.type, enabled=False):  # which would round it
                ctx.save_for_backward(expected @ of_token)  # (B, T, V)
        return -total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (expected,) = ctx.saved_tensors
        return -expected * grads[0][:, None, None], None, None, None, None


def _forward_variables(emitted: Tensor, tokens: Tensor, blank: int) -> Tensor:
    """alpha_t(s), the log-probability of all ways to stand at state s at time t: (B, T, S) -> (B, T, S)."""
    count, longest, states = emitted.shape
    nothing = float("-inf")
    skips = torch.full((count, states), nothing, device=emitted.device)  # a blank between other tokens may be left out
    skips[:, 1:2] = 0.0  # only the start stands two states before the first token
    skips[:, 2:].masked_fill_((tokens[:, 2:] != blank) & (tokens[:, 2:] != tokens[:, :-2]), 0.0)
    alphas = emitted.new_full((longest, count, states + 2), nothing)  # two states before the first, never reached
    before = emitted.new_full((count, states + 2), nothing)
    before[:, 1] = 0.0  # as if it stood just before the first state
    for now, step in zip(alphas, emitted.unbind(1), strict=True):
        ways = torch.stack((before[:, 2:], before[:, 1:-1], before[:, :-2] + skips))  # (3, B, S)
        torch.add(ways.logsumexp(0), step, out=now[:, 2:])
        before = now
    return alphas[:, :, 2:].transpose(0, 1)
