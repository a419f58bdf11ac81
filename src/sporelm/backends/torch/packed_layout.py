"""oneDNN's packed layout of a matrix on the CPU, and whether products with it are faster than with plain rows.

That depends on the CPU and the type: for one row, the packed layout has been measured at 0.8 and at 1.8 times the speed
of plain rows. So it is measured once in a process, at the first product of a type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import pad

LAYOUT_ROWS = 16  # rows for which oneDNN chooses its layout; it is used for any number of rows
PROBE_SIDE = 1024  # rows and columns of the matrices that are multiplied to measure
PROBE_BYTES = 1 << 24  # of all these matrices: more than a core's L2 cache
PROBE_REPEATS = 6  # the fastest counts
MIN_GAIN = 1.1  # of the packed layout: plain rows also serve lookups, and a choice near a tie would vary between runs

Multiply: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_MULTIPLY: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


@dataclass(frozen=True)
class PackedLayout:
    """oneDNN's layout. Products of fewer than `min_rows` rows are filled up, as some CPUs have faster kernels then."""

    min_rows: int = 1

    def pack(self, matrix: Tensor) -> Tensor:
        """Return a matrix [out, in] in the layout. `to_dense` is the inverse."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix, LAYOUT_ROWS)
        return packed

    def multiply(self, x: Tensor, packed: Tensor) -> Tensor:
        """Return x @ matrix.T for rows x [rows, in]."""
        rows = x.shape[0]
        if rows < self.min_rows:
            x = x.expand(self.min_rows, -1) if rows == 1 else pad(x, (0, 0, 0, self.min_rows - rows))
        y: Tensor = _MULTIPLY(x.contiguous(), packed, None, "none", [], "")
        return y[:rows] if rows < self.min_rows else y


LAYOUTS = (PackedLayout(), PackedLayout(min_rows=4))


@cache
def has_packed_layout(dtype: torch.dtype) -> bool:
    """Return whether torch has products with matrices in the packed layout for this type on this CPU."""
    if dtype is torch.float16 or not torch.backends.mkldnn.is_available():
        return False
    try:
        weight, x = torch.ones(16, 16, dtype=dtype), torch.ones(1, 16, dtype=dtype)
        packed = LAYOUTS[0].pack(weight)
        product = LAYOUTS[0].multiply(x, packed)
        return bool((product == 16).all()) and torch.equal(packed.to_dense(), weight)
    except (RuntimeError, AttributeError):  # a build without it, or a CPU without the instructions
        return False


@cache
def choose_layout(dtype: torch.dtype) -> PackedLayout | None:
    """Return the layout with the fastest products of one row, or None: plain rows.

    Measures with one thread: with several, waiting for a thread whose core is busy would take longer than the products.
    """
    if not has_packed_layout(dtype):
        return None
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain, *others = _measure_products(dtype)
    finally:
        torch.set_num_threads(num_threads)
    fastest = min(others)
    return LAYOUTS[others.index(fastest)] if fastest * MIN_GAIN < plain else None


def _measure_products(dtype: torch.dtype) -> list[float]:
    """Return the seconds of products of one row with plain rows and with each of LAYOUTS."""
    count = PROBE_BYTES // (PROBE_SIDE**2 * dtype.itemsize)
    rows = [torch.ones(PROBE_SIDE, PROBE_SIDE, dtype=dtype) for _ in range(count)]
    packed = [LAYOUTS[0].pack(matrix) for matrix in rows]
    products: list[tuple[Multiply, list[Tensor]]] = [(torch_linear, rows)]
    products += [(layout.multiply, packed) for layout in LAYOUTS]
    x = torch.ones(1, PROBE_SIDE, dtype=dtype)
    rounds = [[_time_products(multiply, x, held) for multiply, held in products] for _ in range(PROBE_REPEATS)]
    return [min(seconds) for seconds in zip(*rounds, strict=True)]


def _time_products(multiply: Multiply, x: Tensor, matrices: list[Tensor]) -> float:
    """Return the seconds that a product with each matrix takes, all together."""
    began = perf_counter()
    for matrix in matrices:
        multiply(x, matrix)
    return perf_counter() - began
