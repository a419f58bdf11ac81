"""Lowering of selection and concatenation of rows and columns."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import row_selection
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.select_rows)
def _lower_select_rows(emitter: Emitter, call: Call) -> None:
    x, wanted = call.args
    fields = {
        "x": emitter.address(x),
        "rows": emitter.address(wanted),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(x),
    }
    fields["vectors"] = emitter.vectors(require_fixed(spec_of(x).shape[1]))
    count = spec_of(wanted).shape[0]
    emitter.emit(
        row_selection.select_rows(emitter.context.target), fields, extent_cell(count), grain=emitter.row_grain(count)
    )


@lowers(ops.select_columns)
def _lower_select_columns(emitter: Emitter, call: Call) -> None:
    x, columns = call.args
    out = call.results[0]
    count, width = spec_of(x).shape[0], require_fixed(spec_of(columns).shape[0])
    fields = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "columns": emitter.address(columns),
        "out": emitter.address(out),
    }
    fields |= {"out_stride": row_stride(out), "width": width}
    fields |= {"padded": emitter.vectors(width) * emitter.context.target.lanes}
    emitter.emit(
        row_selection.select_columns(emitter.context.target), fields, extent_cell(count), grain=emitter.row_grain(count)
    )


@lowers(ops.join_columns, rowwise=True)
def _lower_join_columns(emitter: Emitter, call: Call) -> None:
    tokens, out = spec_of(call.args[0]).shape[0], call.results[0]
    fields: dict[str, Any] = {"out": emitter.address(out), "out_stride": row_stride(out)}
    parts = [part for part in call.args if part is not None]
    for number, part in enumerate(parts):
        fields |= {f"x{number}": emitter.address(part), f"stride{number}": row_stride(part)}
        fields[f"width{number}"] = require_fixed(spec_of(part).shape[1])
    fields["padded"] = emitter.vectors(require_fixed(spec_of(out).shape[1])) * emitter.context.target.lanes
    kernel = row_selection.join_columns(emitter.context.target, len(parts))
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
