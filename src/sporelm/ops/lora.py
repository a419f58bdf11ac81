"""Low-rank additions to products (LoRA, Hu et al. 2021): each row of a step may have an adapter of its own."""

from typing import Any

from sporelm.ops.arguments import ints, rows, within
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of

MOST_RANK = 1024  # of an adapter: bounds what a step keeps between the two products


def _added(y: Any, x: Any, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> Spec:
    out, given = rows("y", y), rows("x", x)
    counts = out.shape[0], given.shape[0], ints("which", which).shape[0]
    require(len(set(counts)) == 1, f"y, x and which must have one row for each token, got {counts}")
    require(len(a) == len(b) > 0, f"{len(a)} matrices a and {len(b)} b: give one of each for every adapter")
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        require((down is None) == (up is None), f"adapter {number} has only one of its two matrices")
        if down is not None:
            rank, width = rows(f"a[{number}]", down).shape
            require(width == given.shape[1], f"a[{number}] {spec_of(down)} must have as many columns as x {given}")
            wanted = (rank, out.shape[1])
            require(rows(f"b[{number}]", up).shape == wanted, f"b[{number}] {spec_of(up)} must be {list(wanted)}")
            require(1 <= fixed(rank) <= MOST_RANK, f"adapter {number} has rank {rank}: it must be 1 to {MOST_RANK}")
    return out


def _adapters_known(y: Any, x: Any, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    within("which", which.numpy(), -1, len(a))


@op(_added, indices=_adapters_known, host=("which",))
def add_lora(y, x, which, a, b):  # y [tokens, out], x [tokens, in], which int32 [tokens]
    """y + (x @ a[i].T) @ b[i] with i = which[row]; rows of y where i is -1, or where adapter i has no matrices, as they
    are. a[i] [rank, in], b[i] [rank, out], float32 and each rank as it likes; b[i] holds the adapter's scale.
    """
    result = y.copy()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = which == number
        if down is not None and chosen.any():
            result[chosen] += (x[chosen] @ down.T) @ up
    return result
