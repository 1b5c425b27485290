"""Recurrent layers over segments, and the attention of recurrent decoders.

Let G be the number of directions of a layer (1 or 2), D the output width of a direction, B_t the
number of sequences with a token at time t, R the rows of a running search. In shapes, `state` is D
for a plain cell and a GRU, 2 D for an LSTM (output and cell concatenated); `gates` is D, 3 D and
4 D in that order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduct.blocks.attention import Memory
from transduct.blocks.linear import Linear
from transduct.functional.attention import additive_scores, dot_scores, general_scores, padding_bias
from transduct.functional.dropout import dropout
from transduct.functional.lookup import lookup
from transduct.segments import Segments, pad

CellKind = Literal["tanh", "gru", "lstm"]
ScoreKind = Literal["dot", "general", "concat", "additive"]


class Tanh:
    """The plain recurrent cell (Elman 1990), with nothing that could keep its state unchanged:
    h' = tanh(x + p), where x = W_ih x_t + b_ih and p = W_hh h + b_hh."""

    gates, states = 1, 1

    @staticmethod
    def forward(
        x: Tensor,
        p: Tensor,
        h: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(..., D), (..., D), (..., D) -> the next state (..., D), and the tensors to keep for
        `backward`."""
        after = (x + p).tanh()
        return after, (after,)

    @staticmethod
    def backward(grad: Tensor, h: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the next state -> those of x, of p, and of h except through p."""
        [after] = kept
        inner = grad * (1.0 - after * after)
        return inner, inner, torch.zeros_like(h)


class GRU:
    """The gated recurrent unit (Cho et al. 2014), with PyTorch's order of gates and position of the
    reset gate.

    r = sigmoid(x_r + p_r), z = sigmoid(x_z + p_z), n = tanh(x_n + r p_n), h' = (1 - z) n + z h
    where x = W_ih x_t + b_ih and p = W_hh h + b_hh.
    """

    gates, states = 3, 1

    @staticmethod
    def forward(x: Tensor, p: Tensor, h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(..., 3 D), (..., 3 D), (..., D) -> the next state (..., D), and the tensors to keep for
        `backward`."""
        x_rz, x_n = x.tensor_split([2 * h.shape[-1]], -1)
        p_rz, p_n = p.tensor_split([2 * h.shape[-1]], -1)
        r, z = (x_rz + p_rz).sigmoid().chunk(2, -1)  # (..., D) each
        n = torch.addcmul(x_n, r, p_n).tanh()
        return n + z * (h - n), (r, z, n, p_n)

    @staticmethod
    def backward(grad: Tensor, h: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the next state -> those of x, of p, and of h except through p."""
        r, z, n, p_n = kept
        h_grad = grad * z
        n_grad = (grad - h_grad) * (1.0 - n * n)
        r_grad = n_grad * p_n * r * (1.0 - r)
        z_grad = h_grad * (h - n) * (1.0 - z)
        return (
            torch.cat((r_grad, z_grad, n_grad), -1),
            torch.cat((r_grad, z_grad, n_grad * r), -1),
            h_grad,
        )


class LSTM:
    """Long short-term memory (Hochreiter and Schmidhuber 1997; with the forget gate of Gers et al.
    2000).

    i, f, o = sigmoid(x + p), g = tanh(x_g + p_g), c' = f c + i g, h' = o tanh(c')
    where x = W_ih x_t + b_ih and p = W_hh h + b_hh.
    """

    gates, states = 4, 2

    @staticmethod
    def forward(x: Tensor, p: Tensor, state: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(..., 4 D), (..., 4 D), (..., 2 D) -> the next state (..., 2 D), and the tensors to keep
        for `backward`."""
        _, c = state.chunk(2, -1)  # (..., D)
        i, f, g, o = (x + p).chunk(4, -1)  # (..., D) each
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = torch.addcmul(f * c, i, g)
        squashed = c.tanh()
        return torch.cat((o * squashed, c), -1), (i, f, g, o, squashed)

    @staticmethod
    def backward(
        grad: Tensor, state: Tensor, kept: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the next state -> those of x, of p, and of the state except through p."""
        i, f, g, o, squashed = kept
        _, c = state.chunk(2, -1)  # (..., D)
        h_grad, c_grad = grad.chunk(2, -1)  # (..., D) each
        c_grad = c_grad + h_grad * o * (1.0 - squashed * squashed)
        i_grad, f_grad = c_grad * g * i * (1.0 - i), c_grad * c * f * (1.0 - f)
        g_grad, o_grad = c_grad * i * (1.0 - g * g), h_grad * squashed * o * (1.0 - o)
        gates_grad = torch.cat((i_grad, f_grad, g_grad, o_grad), -1)
        return gates_grad, gates_grad, torch.cat((torch.zeros_like(h_grad), c_grad * f), -1)


Cell = type[Tanh] | type[GRU] | type[LSTM]
CELLS: dict[CellKind, Cell] = {"tanh": Tanh, "gru": GRU, "lstm": LSTM}


@dataclass(frozen=True)
class Schedule:
    """The order in which a recurrence processes the tokens of a batch, without padding.

    Attributes:
        order: (B,) the sequences, longest first: at time t the first B_t of them have a token.
        places: (N * G,) the permutation that sorts a run (N * G, ...) by time; within a time the
            forward direction comes first, then the backward direction.
        back: (N * G,) the inverse of `places`.
        sizes: G * B_t for each time t.
        padded: whether every sequence takes part at every time, with a row of zeros after its end,
            whose place is N * G; for segments of a fixed shape.
    """

    order: Tensor
    places: Tensor
    back: Tensor
    sizes: list[int]
    padded: bool = False

    @classmethod
    def of(cls, segments: Segments, directions: int = 1) -> "Schedule":
        """Return the schedule of segments that are read in one direction or in both."""
        if segments.fixed:
            return cls._at_every_time(segments, directions)
        order = segments.lengths.argsort(descending=True, stable=True)
        times = torch.arange(segments.longest, device=order.device)
        counts = (segments.lengths > times[:, None]).sum(1)  # B_t
        sizes, time = (
            counts.tolist(),
            torch.repeat_interleave(times, counts, output_size=segments.total),
        )  # (N,)
        first, last = segments.offsets[order], segments.offsets[order + 1] - 1
        starts, ends = (
            torch.cat([end[:0], *(end[:size] for size in sizes)]) for end in (first, last)
        )  # (N,) each
        ways = [
            tokens * directions + way
            for way, tokens in enumerate((starts + time, ends - time)[:directions])
        ]
        of_times = zip(*(torch.split(tokens, sizes) for tokens in ways))
        places = torch.cat([order[:0], *(tokens for both in of_times for tokens in both)])
        return cls(order, places, places.argsort(), [size * directions for size in sizes])

    @classmethod
    def _at_every_time(cls, segments: Segments, directions: int) -> "Schedule":
        """The schedule of L times for all B sequences, found without reading a length."""
        count, outside = len(segments), segments.total * directions
        order = torch.arange(count, device=segments.lengths.device)
        times = torch.arange(segments.longest, device=order.device)[:, None]
        inside = times < segments.lengths  # (L, B)
        left = segments.lengths[segments.sequence] - 1 - segments.positions  # (N,)
        readings = (
            (segments.offsets[:-1] + times, segments.positions),
            (segments.offsets[1:] - 1 - times, left),
        )
        places, back = [], []
        for way, (tokens, time) in enumerate(readings[:directions]):
            places.append(torch.where(inside, tokens * directions + way, outside))  # (L, B)
            back.append((time * directions + way) * count + segments.sequence)  # (N,)
        sizes = [count * directions] * segments.longest
        return cls(
            order, torch.stack(places, 1).flatten(), torch.stack(back, 1).flatten(), sizes, True
        )

    def by_time(self, x: Tensor) -> tuple[Tensor, ...]:
        """A run (N * G, ...), parted by time."""
        x = torch.cat((x, x.new_zeros(1, *x.shape[1:]))) if self.padded else x
        return torch.split(lookup(x, self.places), self.sizes)


class RecurrentLayer(nn.Module):
    """A layer in one or two directions. The second direction has the lower half of the rows of each
    parameter; each half has the layout of `torch.nn.GRU` or `torch.nn.LSTM`."""

    def __init__(self, kind: CellKind, d_input: int, width: int, directions: int) -> None:
        super().__init__()
        self.cell, self.width, self.directions = CELLS[kind], width, directions
        rows = directions * self.cell.gates * width
        self.weight_ih = nn.Parameter(torch.empty(rows, d_input))
        self.weight_hh = nn.Parameter(torch.empty(rows, width))
        self.bias_ih = nn.Parameter(torch.zeros(rows))
        self.bias_hh = nn.Parameter(torch.zeros(rows))
        with torch.no_grad():
            for gate in range(directions * self.cell.gates):
                part = slice(gate * width, (gate + 1) * width)
                nn.init.xavier_uniform_(self.weight_ih[part])
                nn.init.orthogonal_(self.weight_hh[part])
                # the forget gate starts open (Jozefowicz et al. 2015)
                if kind == "lstm" and gate % 4 == 1:
                    self.bias_ih[part] = 1.0

    @torch.no_grad()
    def remember(self, span: int) -> None:
        """Let an LSTM start by remembering over up to `span` tokens, each unit over a length of its
        own: forget biases are log U(1, span - 1), input biases the negative (Tallec and Ollivier
        2018)."""
        biases = self.bias_ih.view(self.directions, 4, self.width)
        biases[:, 1].uniform_(1.0, span - 1.0).log_()
        biases[:, 0] = -biases[:, 1]

    def forward(self, x: Tensor, schedule: Schedule, state: Tensor | None = None) -> Tensor:
        """(N, input), and initial states (B, state) or zeros -> (N, G * D)."""
        if state is None:
            begin = x.new_zeros(self.directions, len(schedule.order), self.cell.states * self.width)
        else:
            begin = state.index_select(0, schedule.order).unsqueeze(0)  # (1, B, state)
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        gates = gates.view(len(x) * self.directions, self.cell.gates * self.width)  # (N * G, gates)
        # (G, gates, D)
        weight = self.weight_hh.view(self.directions, -1, self.width).to(gates.dtype)
        bias = self.bias_hh.view(self.directions, 1, -1).to(gates.dtype)  # (G, 1, gates)
        output = _Recurrence.apply(gates, begin, weight, bias, self.cell, schedule)
        return output.view(len(x), self.directions * self.width)  # (N, G * D)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """One token per row, forward only: (R, input), the states (R, state) -> the states after
        it."""
        gates = F.linear(x, self.weight_ih, self.bias_ih)
        product = F.linear(state[:, : self.width], self.weight_hh, self.bias_hh)
        return self.cell.forward(gates.to(state.dtype), product.to(state.dtype), state)[0]


class Recurrent(nn.Module):
    """A stack of recurrent layers, with dropout between them."""

    def __init__(
        self,
        kind: CellKind,
        d_input: int,
        width: int,
        layers: int,
        bidirectional: bool = False,
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.width, self.rate, self.directions = width, rate, 1 + bidirectional
        inputs = [d_input] + [width * self.directions] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentLayer(kind, d, width, self.directions) for d in inputs)

    def forward(
        self, x: Tensor, segments: Segments, states: Sequence[Tensor] | None = None
    ) -> Tensor:
        """(N, input), and initial states (B, state) of each layer or zeros -> (N, G * D)."""
        schedule = Schedule.of(segments, self.directions)
        for number, layer in enumerate(self.layers):
            x = layer(
                self._between(x, number), schedule, None if states is None else states[number]
            )
        return x

    def step(self, x: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One token per row, forward only: (R, input), states (R, state) of each layer -> (R, D),
        the next states."""
        after = []
        for number, layer in enumerate(self.layers):
            after.append(cast(RecurrentLayer, layer).step(self._between(x, number), states[number]))
            x = after[-1][:, : self.width]
        return x, after

    def _between(self, x: Tensor, number: int) -> Tensor:
        """Apply dropout to the input of every layer except the first."""
        return dropout(x, self.rate, self.training) if number else x


class _Recurrence(torch.autograd.Function):
    """The loop over time. Its hand-written gradient computes that of the weights as one product for
    all times."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        begin: Tensor,
        weight: Tensor,
        bias: Tensor,
        cell: Cell,
        schedule: Schedule,
    ) -> Tensor:
        """(N * G, gates), (G, B, state), (G, gates, D), (G, 1, gates) -> outputs (N * G, D).

        Products are computed in the dtype of the gates; the state keeps its own, which under
        autocast is wider.
        """
        directions, _, width = weight.shape
        outputs, state, saved = [begin.new_empty(0, width)], begin, []
        with torch.autocast(gates.device.type, enabled=False):
            for x in schedule.by_time(gates):
                before = state[:, : len(x) // directions]  # (G, B_t, state)
                # (G, B_t, gates)
                product = torch.baddbmm(bias, before[..., :width].to(weight.dtype), weight.mT)
                state, kept = cell.forward(
                    x.view_as(product).to(begin.dtype), product.to(begin.dtype), before
                )
                outputs.append(state[..., :width].flatten(0, 1))  # (G * B_t, D)
                saved += [before, *kept]
        ctx.save_for_backward(weight, begin, *saved)
        ctx.cell, ctx.schedule = cell, schedule
        return torch.cat(outputs).index_select(0, schedule.back)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        (weight, begin, *saved), schedule = ctx.saved_tensors, ctx.schedule
        (directions, gates, width), block = weight.shape, len(saved) // max(1, len(schedule.sizes))
        gates_grads = [weight.new_empty(0, gates)]  # in reverse order of time
        # gradients of the products
        products = weight.new_empty(directions, sum(schedule.sizes) // directions, gates)
        # the output before each token
        states = weight.new_empty(directions, products.shape[1], width)
        # carried: the gradient from later times
        carried, start = (torch.zeros_like(begin[:, :0]), products.shape[1])
        incoming = schedule.by_time(grads[0])
        for time in reversed(range(len(incoming))):
            before, *kept = saved[time * block : (time + 1) * block]
            grad = incoming[time].view(*before.shape[:2], width)  # (G, B_t, D)
            grad = F.pad(grad, (0, before.shape[2] - width))  # (G, B_t, state)
            grad[:, : carried.shape[1]] += carried
            x_grad, product_grad, carried = ctx.cell.backward(grad, before, kept)
            start -= before.shape[1]
            part = slice(start, start + before.shape[1])
            products[:, part], states[:, part] = product_grad, before[..., :width]
            carried[..., :width] += torch.bmm(products[:, part], weight)
            gates_grads.append(x_grad.to(weight.dtype).flatten(0, 1))  # (G * B_t, gates)
        begin_grad = F.pad(carried, (0, 0, 0, begin.shape[1] - carried.shape[1]))  # (G, B, state)
        gates_grad = torch.cat(gates_grads[::-1]).index_select(0, schedule.back)
        return (
            gates_grad,
            begin_grad,
            products.mT @ states,
            products.sum(1, keepdim=True),
            None,
            None,
        )


class RecurrentAttention(nn.Module):
    """Single-head attention of decoder states over a memory of the same width: scores, softmax,
    weighted sum.

    Luong et al. 2015 use the state after a token, with the scores "dot", "general" or "concat";
    Bahdanau et al. 2015 use the state before it, with the score "additive", which has the formula
    of "concat".
    """

    def __init__(self, kind: ScoreKind, width: int) -> None:
        super().__init__()
        added = kind in ("concat", "additive")
        self.weight = nn.Parameter(torch.empty(width, width)) if kind == "general" else None
        self.query = Linear(width, width, bias=False) if added else None
        self.key = Linear(width, width, bias=False) if added else None
        self.vector = nn.Parameter(torch.randn(width) * width**-0.5) if added else None
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)

    def remember(self, memory: Tensor, segments: Segments) -> Memory:
        """Prepare the memory, once for all steps: (N, D) -> Memory."""
        keys = memory if self.key is None else self.key(memory)
        # (B, 1, S, D)
        dense, values = (pad(keys, segments).unsqueeze(1), pad(memory, segments).unsqueeze(1))
        return Memory(dense, values, padding_bias(segments))

    def forward(self, h: Tensor, memory: Memory, weights: list[Tensor] | None = None) -> Tensor:
        """The decoder states (B, 1, T, D) of each source -> their contexts (B, 1, T, D).

        Args:
            weights: a list to which the attention weights (B, 1, T, S) are appended.
        """
        scores = self.score(h, memory.keys)  # 1. score every position of the source
        if memory.bias is not None:
            scores = scores + memory.bias.to(scores.dtype)
        attention = scores.softmax(-1)  # 2. softmax: the attention weights
        if weights is not None:
            weights.append(attention)
        return attention @ memory.values  # 3. weighted sum: the context c_t

    def score(self, h: Tensor, keys: Tensor) -> Tensor:
        """(B, 1, T, D), (B, 1, S, D) -> (B, 1, T, S)."""
        if self.weight is not None:
            return general_scores(h, keys, self.weight)
        if self.query is not None and self.vector is not None:
            return additive_scores(self.query(h), keys, self.vector)
        return dot_scores(h, keys)
