"""Steps of a running batch by the C kernels: sources that join and leave between steps, each at a
position of its own, over keys and values in one pool of cells for each layer.

Let G be the heads of keys, V the vocabulary. Callers check `cpu.library` first.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor

from transduct.kernels import cpu
from transduct.kernels.cpu import NUMBER, POINTER, Packed, PackedDecoder, empty, structure
from transduct.kernels.cpu_search import TOGETHER, UNKNOWN, WIDEST_BEAM
from transduct.kernels.threads import CORES

STOPPING = ("likeliest", "early", "estimate", "never")  # known to the kernels by index
DOUBLE = ctypes.c_double


# The structures of running.c.
Finished = structure((DOUBLE, "score rank"), (NUMBER, "length"), (POINTER, "tokens"))
Source = structure(
    (NUMBER, "beam active length limit longest span sources end forced free forbidden cut"),
    (NUMBER, "stopping count done"),
    (DOUBLE, "likeliest normaliser"),
    (POINTER, "prefix never penalties memory owned tokens cells scores finished drawn"),
)
_Batch = structure(
    (POINTER, "pools"),
    (NUMBER, "room half rows together"),
    (POINTER, "work logits normalisers news"),
)


class Cells:
    """The memory of a running batch, which never grows.

    Args:
        output: the output projection.
        cells: how many tokens have keys and values.
        rows: the most rows of a step.
        sizes: G, and the widths of a key and of a value.
        dtype: of keys and values, float32 or float16.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        output: Packed,
        cells: int,
        rows: int,
        sizes: tuple[int, int, int],
        dtype: torch.dtype,
    ) -> None:
        (self.groups, *widths), self.decoder, self.output = sizes, decoder, output
        self.cells, self.rows = cells, rows
        self.pools = [
            [empty(self.groups, cells, width, dtype=dtype) for width in widths]
            for _ in range(decoder.native.count)
        ]
        pointers = [pool.data_ptr() for pair in self.pools for pool in pair]
        together = max(TOGETHER, WIDEST_BEAM)
        numbers = cpu.library().layer_room(decoder.layers.native, rows, cells)
        self.drawn = empty(rows, output.size)  # the logits of rows whose tokens are drawn
        self.news = np.zeros(1, np.int64)  # not zero: a call returns after the step under way
        buffers = [empty(numbers + rows * decoder.layers.width), empty(together, output.size)]
        buffers.append(empty(together))
        addresses = (POINTER * len(pointers))(*pointers)
        self.held = addresses, buffers  # keeps alive what `native` points to
        self.native = _Batch(
            ctypes.addressof(addresses),
            cells,
            cpu.CACHED.index(dtype),
            rows,
            together,
            *(buffer.data_ptr() for buffer in buffers),
            self.news.ctypes.data,
        )

    def remember(
        self, layer: int, key: Packed, value: Packed, x: Tensor, cells: np.ndarray
    ) -> None:
        """Project encoded tokens (N, D) to the keys and values of a layer, in these cells (N,)."""
        x = x.contiguous()
        work = empty(len(x) * (max(key.size, value.size) + key.width // 2 + 5))
        where = cells.ctypes.data, len(x), self.groups, x.data_ptr(), work.data_ptr()
        batch = ctypes.byref(self.native)
        cpu.library().remember_cells(key.native, value.native, *where, CORES.sharing, batch, layer)

    def advance(self, sources: ctypes.Array[ctypes.c_void_p], most: int) -> int:
        """Take steps until a source is done or its tokens are drawn, or there are news, `most` at
        most. Returns their number.

        Args:
            sources: the address of each `Source`.

        Raises:
            IndexError: if a token is not in the vocabulary.
        """
        given = self.decoder.native, self.output.native, ctypes.byref(self.native), sources
        taken = cpu.library().advance(*given, len(sources), most, self.cells, CORES.sharing)
        if not taken:
            raise IndexError(UNKNOWN)
        return int(taken)
