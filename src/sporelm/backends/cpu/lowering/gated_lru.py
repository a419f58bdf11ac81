"""Lowering of Griffin's gated linear recurrent unit."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import gated_lru
from sporelm.backends.cpu.kernels.recurrent_state import StateShape
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import sequence_fields
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.gated_lru)
def _lower_gated_lru(emitter: Emitter, call: Call) -> None:
    x, recurrence_gate, input_gate, decay, recurrence_bias, input_bias, *held = call.args
    _, heads, columns = held[0].shape
    shape = StateShape(1, columns, "each")
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "recurrence_gate": emitter.address(recurrence_gate),
        "input_gate": emitter.address(input_gate),
    }
    fields |= {
        "gate_stride": row_stride(recurrence_gate),
        "decay": emitter.address(decay),
        "bias_stride": row_stride(recurrence_bias),
    }
    fields |= {
        "recurrence_bias": emitter.address(recurrence_bias),
        "input_bias": emitter.address(input_bias),
        "out": emitter.address(call.results[0]),
    }
    fields |= {
        "out_stride": row_stride(call.results[0]),
        "heads": heads,
        "shared": heads,
        **sequence_fields(emitter, *held),
    }
    tiles = shape.tiles(emitter.context.target)
    kernel = gated_lru.gated_lru(emitter.context.target, shape)
    emitter.emit(kernel, fields, extent_cell(spec_of(held[2]).shape[0]), factor=heads * tiles)
