"""The registry of lowerings: which function turns a call of an op into launches of kernels.

A function is registered with `@lowers`. It lies in the file of `lowering` that has the name of the op's file in
`sporelm.ops`; files of `kernels` have the name of that file, or of an op in it.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from sporelm.backends.op_modules import import_op_modules
from sporelm.backends.opencl.launch_emitter import LaunchEmitter
from sporelm.ops import Call, Op

LowerCall = Callable[[LaunchEmitter, Call], None]


class OpLowering(NamedTuple):
    """How calls of one op are lowered. `supports`: whether there is a kernel for a call; None: for all."""

    lower: LowerCall
    supports: Callable[[Call], bool] | None


_REGISTERED: dict[str, OpLowering] = {}


def lowers(*ops: Op, supports: Callable[[Call], bool] | None = None) -> Callable[[LowerCall], LowerCall]:
    """Register the function that lowers calls of these ops."""

    def register(lower: LowerCall) -> LowerCall:
        for op in ops:
            _REGISTERED[op.name] = OpLowering(lower, supports)
        return lower

    return register


@cache
def op_lowerings() -> Mapping[str, OpLowering]:
    """Return all lowerings by the op's name."""
    import_op_modules(f"{__package__}.lowering")
    return _REGISTERED


def find_lowering(call: Call) -> LowerCall | None:
    """Return the function that lowers a call, or None if there is no kernel for it."""
    lowering = op_lowerings().get(call.op.name)
    if lowering is None or (lowering.supports is not None and not lowering.supports(call)):
        return None
    return lowering.lower
