"""Lowering of activation functions and scales."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import activation
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_extents, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.rowwise_lowering import emit_elementwise
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.scale_by, rowwise=True)
def _lower_scale_by(emitter: Emitter, call: Call) -> None:
    x, factor = call.args
    tokens, each, width = row_extents(x)
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "factor": emitter.address(factor),
        "out": emitter.address(call.results[0]),
    }
    fields |= {"stride": row_stride(x), "vectors": emitter.vectors(width)}
    grain = emitter.row_grain(tokens, each)
    emitter.emit(activation.scale_by(emitter.context.target), fields, extent_cell(tokens), factor=each, grain=grain)


@lowers(ops.xielu, rowwise=True)
def _lower_xielu(emitter: Emitter, call: Call) -> None:
    x, *numbers = call.args
    tokens, each, width = row_extents(x)
    fields: dict[str, Any] = {"x": emitter.address(x), "out": emitter.address(call.results[0])}
    fields |= {"stride": row_stride(x), "vectors": emitter.vectors(width)}
    for name, given in zip(call.op.arguments[1:], numbers, strict=True):
        size = row_stride(given) if len(spec_of(given).shape) == 2 else 4
        fields[name] = emitter.address(given) + call.options["layer"] * size
    grain = emitter.row_grain(tokens, each)
    emitter.emit(activation.xielu(emitter.context.target), fields, extent_cell(tokens), factor=each, grain=grain)


@lowers(ops.activate, rowwise=True)
def _lower_activate(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, activation.activate(emitter.context.target, call.options["kind"]))


@lowers(ops.activate_mul, rowwise=True)
def _lower_activate_mul(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, activation.activate_mul(emitter.context.target, call.options["kind"]))


@lowers(ops.clip, rowwise=True)
def _lower_clip(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, activation.clip(emitter.context.target))


@lowers(ops.scale, rowwise=True)
def _lower_scale(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, activation.scale(emitter.context.target))


@lowers(ops.softcap, rowwise=True)
def _lower_softcap(emitter: Emitter, call: Call) -> None:
    emit_elementwise(emitter, call, activation.softcap(emitter.context.target))
