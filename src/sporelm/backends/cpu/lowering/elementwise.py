"""Lowering of elementwise ops."""

from sporelm import ops
from sporelm.backends.cpu.kernels import elementwise
from sporelm.backends.cpu.lowering.emitter import Emitter
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.rowwise_lowering import emit_elementwise
from sporelm.ops import Call


@lowers(ops.add, rowwise=True)
def _lower_add(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, elementwise.add(emitter.context.target))


@lowers(ops.silu_mul, rowwise=True)
def _lower_silu_mul(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, elementwise.silu_mul(emitter.context.target))


@lowers(ops.clamped_swiglu, rowwise=True)
def _lower_clamped_swiglu(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, elementwise.clamped_swiglu(emitter.context.target))
