"""The gradient of a table whose rows were looked up, in Triton: the sums of the gradients of each
row's copies.

The ids are sorted, and each run of equal ids is summed in order by one program, so the result is
deterministic. A frequent id would keep its program busy for long; so a first kernel sums the full
chunks of `CHUNK` sorted places that hold one id alone, and the program of an id adds these to what
lies before and after them. It reads fewer than 2 * `CHUNK` rows itself.

Let N be ids, V the rows of the table, D their width. With 25,600 ids, 32,000 rows and a width of
512 in float32 the kernels read 50 MiB and write 62 MiB. Ids of up to 15 bits are sorted as 16-bit
numbers: in two passes instead of the eight for 64 bits.
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from transduct.kernels.triton import Pair, waves

CHUNK = 64  # sorted places that are summed together where they have one id
ROWS, COLUMNS = 8, 512  # read at once: 32 numbers for each of 128 threads


def row_sums(grad: Tensor, index: Tensor, count: int) -> Tensor:
    """The gradient (V, D) of a table of `count` rows from that of its rows (N, D) at `index`
    (N,)."""
    grad, size = grad.contiguous(), grad.shape[1]
    kind = torch.int16 if count < 2**15 else torch.int32
    ids, order = torch.sort(index.to(kind), stable=True)
    bounds = torch.zeros((2, count), dtype=torch.int32, device=grad.device)
    chunks = triton.cdiv(len(ids), CHUNK)
    parts = grad.new_empty((chunks, size), dtype=torch.float32)
    table = grad.new_empty((count, size))
    block = min(COLUMNS, max(16, triton.next_power_of_2(size)))
    pieces, warps = triton.cdiv(size, block), max(1, block // 128)
    shape = {"CHUNK": CHUNK, "ROWS": ROWS, "COLUMNS": block, "num_warps": warps}
    with torch.cuda.device_of(grad):  # Triton launches on the current device
        if chunks:
            _chunk_kernel[(chunks, pieces)](
                grad, ids, order, bounds, parts, len(ids), count, size, **shape
            )
        if count:
            _run_kernel[(count, pieces)](grad, order, bounds, parts, table, count, size, **shape)
    return table


def trial(device: torch.device, dtype: torch.dtype) -> Iterator[Pair]:
    """The sums, and those of PyTorch in float64."""
    numbers = torch.arange(5 * CHUNK, device=device)
    index, grad = (numbers**2 % 7) * (numbers % 3), waves(device, dtype, 5 * CHUNK, 24)
    expected = torch.zeros(15, 24, dtype=torch.float64, device=device)
    expected.index_add_(0, index, grad.double())
    yield row_sums(grad, index, 15), expected, 1e-5 if dtype == torch.float32 else 2e-2


@triton.jit
def _summed(pointer, rows, order, inside, columns, size, GATHERED: tl.constexpr):
    """The sum of rows (R,) of a tensor of this width, or of those at these places of the order."""
    if GATHERED:
        rows = tl.load(order + rows, mask=inside, other=0)
    mask = inside[:, None] & (columns < size)[None, :]
    x = tl.load(
        pointer + rows.to(tl.int64)[:, None] * size + columns[None, :], mask=mask, other=0.0
    )
    return tl.sum(x.to(tl.float32), 0)


@triton.jit(do_not_specialize=["total"])
def _chunk_kernel(
    grad, ids, order, bounds, parts, total, count, size,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Where runs begin and end within a chunk; and the sum of the chunk, if it is of one run."""
    chunk = tl.program_id(0)
    places = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = places < total
    own = tl.load(ids + places, mask=inside, other=-1).to(tl.int32)
    if tl.program_id(1) == 0:
        before = tl.load(ids + places - 1, mask=inside & (places > 0), other=-1).to(tl.int32)
        after = tl.load(ids + places + 1, mask=places + 1 < total, other=-1).to(tl.int32)
        tl.store(bounds + own, places, mask=inside & (before != own))
        tl.store(bounds + count + own, places + 1, mask=inside & (after != own))
    if tl.min(own, 0) == tl.max(own, 0):
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        sums = tl.zeros([COLUMNS], tl.float32)
        for start in range(0, CHUNK, ROWS):
            rows = chunk * CHUNK + start + tl.arange(0, ROWS)
            sums += _summed(grad, rows, order, rows < total, columns, size, True)
        row = chunk.to(tl.int64) * size
        tl.store(parts + row + columns, sums, mask=columns < size)


@triton.jit
def _run_kernel(
    grad, order, bounds, parts, table, count, size,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sum of a run: what precedes its first full chunk, its full chunks, and what follows."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin, end = tl.load(bounds + row), tl.load(bounds + count + row)
    first, last = tl.cdiv(begin, CHUNK), end // CHUNK
    head = tl.where(first < last, first * CHUNK, end)
    tail = tl.where(first < last, last * CHUNK, end)
    sums = tl.zeros([COLUMNS], tl.float32)
    for start in range(begin, head, ROWS):
        rows = start + tl.arange(0, ROWS)
        sums += _summed(grad, rows, order, rows < head, columns, size, True)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        sums += _summed(parts, rows, order, rows < last, columns, size, False)
    for start in range(tail, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        sums += _summed(grad, rows, order, rows < end, columns, size, True)
    place = row.to(tl.int64) * size
    tl.store(table + place + columns, sums.to(table.dtype.element_ty), mask=columns < size)
