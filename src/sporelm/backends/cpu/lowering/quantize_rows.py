"""Lowering of the rounding of activations to int8."""

from sporelm import ops
from sporelm.backends.cpu.formats.activation_records import RECORDS
from sporelm.backends.cpu.kernels import quantize_rows
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_extents, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.runtime.tensor_storage import row_bytes
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.quantize_rows, rowwise=True)
def _lower_quantize_rows(emitter: Emitter, call: Call) -> None:
    (x,) = call.args
    tokens, each, width = row_extents(x)
    kind = spec_of(call.results[0]).dtype
    stride = row_bytes(width, kind)
    fields = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "out": emitter.address(call.results[0]),
        "out_stride": stride,
    }
    fields |= {"blocks": width // kind.values, "padded": stride // RECORDS[kind.name]}
    kernel = quantize_rows.quantize_rows(emitter.context.target, kind.name)
    emitter.emit(kernel, fields, extent_cell(tokens), factor=each, grain=emitter.row_grain(tokens, each))
