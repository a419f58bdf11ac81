"""Lowering of rows of pictures."""

from sporelm import ops
from sporelm.backends.cpu.kernels import image_rows
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.replace_rows, ops.add_rows)
def _lower_image_rows(emitter: Emitter, call: Call) -> None:
    """Not rowwise: an item may read any row of `values`."""
    x, values, rows = call.args
    tokens, width = spec_of(x).shape
    fields = {
        "x": emitter.address(x),
        "values": emitter.address(values),
        "values_stride": row_stride(values),
        "rows": emitter.address(rows),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(x),
        "width": require_fixed(width),
        "vectors": emitter.vectors(require_fixed(width)),
        "first": call.options.get("first", 0),
    }
    kernel = image_rows.image_rows(emitter.context.target, adds=call.op is ops.add_rows)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
