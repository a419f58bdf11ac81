"""Vector arithmetic of the searches for scales."""

from llvmlite.ir import IntType

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.jit.builder import ROUND

BITS = 0x4B400000  # of ROUND: integer n has the bits BITS + n


def nearest_step(k: Builder, x: Val, low: int, high: int) -> Val:
    """Compute `nearest_between` as f32, in fewer instructions; beyond 2^22 the result is the nearer end.

    NaN gives one of the ends.
    """
    bits = (x + ROUND).bits(k.vi)
    return k.min(k.max(bits, BITS + low), BITS + high).bits(k.vf) - ROUND


def to_integers(k: Builder, x: Val) -> Val:
    """Convert f32 vectors of small integers to i32."""
    return (x + ROUND).bits(k.vi) - BITS


def where(k: Builder, mask: Val, yes: Val | float, no: Val | float) -> Val:
    """Select from f32 vectors, where either side may be a number."""
    return k.select(mask, *(side if isinstance(side, Val) else k.const(k.vf, side) for side in (yes, no)))


def any_lane(k: Builder, mask: Val) -> Val:
    """Return whether any lane of a vector of i1 is set."""
    return mask.bits(IntType(k.lanes)).differs(0)
