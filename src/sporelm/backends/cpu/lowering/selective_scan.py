"""Lowering of Mamba 1's selective scan."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import selective_scan
from sporelm.backends.cpu.kernels.recurrent_state import StateShape
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import sequence_fields
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.selective_scan)
def _lower_selective_scan(emitter: Emitter, call: Call) -> None:
    x, dt, write, read, decay, skip, *held = call.args
    _, size, channels = held[0].shape
    shape = StateShape(size, channels, "each")
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "dt": emitter.address(dt),
        "dt_stride": row_stride(dt),
    }
    fields |= {"write": emitter.address(write), "read": emitter.address(read), "size_stride": row_stride(write)}
    fields |= {"decay": emitter.address(decay), "decay_stride": row_stride(decay), "skip": emitter.address(skip)}
    fields |= {"out": emitter.address(call.results[0]), "heads": 1, "shared": 1, **sequence_fields(emitter, *held)}
    tiles = shape.tiles(emitter.context.target)
    emitter.emit(
        selective_scan.selective_scan(emitter.context.target, shape),
        fields,
        extent_cell(spec_of(held[2]).shape[0]),
        factor=tiles,
    )
