"""Low-rank adaptation (LoRA, Hu et al. 2021): each row of a step may have its own adapter."""

from typing import Any

from sporelm.ops.argument_checks import check_argument, check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed, spec_of
from sporelm.tensor.dtype import F32

MAX_RANK = 1024  # of an adapter: bounds the memory of a step between the two products


def _add_lora_spec(y: Any, x: Any, which: Any, a: Any, b: Any) -> Spec:
    out, given = check_rows("y", y), check_rows("x", x)
    counts = out.shape[0], given.shape[0], check_ints("which", which).shape[0]
    require(len(set(counts)) == 1, f"y, x and which must have one row for each token, got {counts}")
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        _check_stacked(out, given, a, b)
        return out
    require(len(a) == len(b) > 0, f"{len(a)} matrices a and {len(b)} b: give one of each for every adapter")
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        require((down is None) == (up is None), f"adapter {number} has only one of its two matrices")
        if down is not None:
            rank, width = check_rows(f"a[{number}]", down).shape
            require(width == given.shape[1], f"a[{number}] {spec_of(down)} must have as many columns as x {given}")
            wanted = (rank, out.shape[1])
            require(check_rows(f"b[{number}]", up).shape == wanted, f"b[{number}] {spec_of(up)} must be {list(wanted)}")
            require(
                1 <= require_fixed(rank) <= MAX_RANK, f"adapter {number} has rank {rank}: it must be 1 to {MAX_RANK}"
            )
    return out


def _check_stacked(out: Spec, given: Spec, a: Any, b: Any) -> None:
    require(not isinstance(a, tuple) and not isinstance(b, tuple), "a and b must both be tuples, or both one tensor")
    slots, rank, width = check_argument("a", a, F32, 3).shape
    require(width == given.shape[1], f"a {spec_of(a)} must have as many columns as x {given}")
    wanted = (slots, rank, out.shape[1])
    require(check_argument("b", b, F32, 3).shape == wanted, f"b {spec_of(b)} must be {list(wanted)}")
    require(require_fixed(slots) > 0, "a and b have no slots")
    require(1 <= require_fixed(rank) <= MAX_RANK, f"the slots have rank {rank}: it must be 1 to {MAX_RANK}")


def _check_adapters(y: Any, x: Any, which: Any, a: Any, b: Any) -> None:
    check_range("which", which.numpy(), -1, len(a) if isinstance(a, tuple) else spec_of(a).bound[0])


@op(_add_lora_spec, indices=_check_adapters, host=("which",))
def add_lora(y, x, which, a, b):  # y [tokens, out], x [tokens, in], which int32 [tokens]
    """Return y + (x @ a[i].T) @ b[i] with i = which[row].

    Rows of y stay as they are where i is -1 or adapter i has no matrices. a[i] [rank, in], b[i] [rank, out], float32;
    ranks may differ; b[i] includes the adapter's scale. a and b are tuples, or one tensor each: a [slots, rank, in] and
    b [slots, rank, out], with zeros in rows that an adapter does not have.
    """
    result = y.copy()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = which == number
        if down is not None and chosen.any():
            result[chosen] += (x[chosen] @ down.T) @ up
    return result
