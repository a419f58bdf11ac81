"""The registry of lowerings: which function turns a call of an op into entries of kernels.

A function is registered with `@lowers`. It lies in the file of this folder that has the name of the op's file in
`sporelm.ops`; its kernels lie in the file of that name in `kernels`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from sporelm.backends.cpu.lowering.emitter import Emitter
from sporelm.backends.op_modules import import_op_modules
from sporelm.errors import BackendError
from sporelm.ops import Call, Op

LowerCall = Callable[[Emitter, Call], None]


class OpLowering(NamedTuple):
    """How calls of one op are lowered.

    is_rowwise   item i reads only item i of the call before: a series of such calls over the same rows needs no barrier
    supports     whether there is a kernel for a call, of ops that have kernels for some calls only
    """

    lower: LowerCall
    is_rowwise: bool
    supports: Callable[[Call], bool] | None


_REGISTERED: dict[str, OpLowering] = {}


def lowers(
    *ops: Op, rowwise: bool = False, supports: Callable[[Call], bool] | None = None
) -> Callable[[LowerCall], LowerCall]:
    """Register the function that lowers calls of these ops; see `OpLowering` for the options."""

    def register(lower: LowerCall) -> LowerCall:
        for op in ops:
            _REGISTERED[op.name] = OpLowering(lower, rowwise, supports)
        return lower

    return register


@cache
def op_lowerings() -> Mapping[str, OpLowering]:
    """Return all lowerings by the op's name."""
    import_op_modules(__name__.rpartition(".")[0])
    return _REGISTERED


@cache
def rowwise_ops() -> frozenset[str]:
    """Return the names of the ops whose calls may follow one another without a barrier."""
    return frozenset(name for name, lowering in op_lowerings().items() if lowering.is_rowwise)


def find_lowering(call: Call) -> OpLowering | None:
    """Return the lowering of a call, or None if the CPU has no kernel for it."""
    lowering = op_lowerings().get(call.op.name)
    if lowering is None or (lowering.supports is not None and not lowering.supports(call)):
        return None
    return lowering


def lower_call(emitter: Emitter, call: Call) -> None:
    """Add the entries of a call. Raises BackendError if the CPU has no kernel for it."""
    lowering = find_lowering(call)
    if lowering is None:
        raise BackendError(f"the CPU has no kernel for {call.op.name}. Set the option backend to reference.")
    emitter.rowwise = lowering.is_rowwise
    lowering.lower(emitter, call)
