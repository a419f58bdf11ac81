"""Lowering of rows joined from, and split for, a token's experts."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import expert_slots
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.join_slots, rowwise=True)
def _lower_join_slots(emitter: Emitter, call: Call) -> None:
    y, columns = call.args
    out, (tokens, count, width) = call.results[0], spec_of(y).shape
    wanted = require_fixed(spec_of(columns).shape[0])
    fields: dict[str, Any] = {
        "x": emitter.address(y),
        "x_stride": row_stride(y),
        "token_bytes": require_fixed(count) * row_stride(y),
    }
    fields |= {
        "width": require_fixed(width),
        "columns": emitter.address(columns),
        "out": emitter.address(out),
        "out_stride": row_stride(out),
    }
    fields |= {"wanted": wanted, "padded": emitter.vectors(wanted) * emitter.context.target.lanes}
    emitter.emit(
        expert_slots.join_slots(emitter.context.target), fields, extent_cell(tokens), grain=emitter.row_grain(tokens)
    )


@lowers(ops.cut_slots, rowwise=True)
def _lower_cut_slots(emitter: Emitter, call: Call) -> None:
    x, columns = call.args
    out, (tokens, count, width) = call.results[0], spec_of(call.results[0]).shape
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "columns": emitter.address(columns),
        "out": emitter.address(out),
    }
    fields |= {
        "token_bytes": require_fixed(count) * row_stride(out),
        "out_stride": row_stride(out),
        "slots": require_fixed(count),
    }
    fields |= {
        "width": require_fixed(width),
        "padded": emitter.vectors(require_fixed(width)) * emitter.context.target.lanes,
    }
    emitter.emit(
        expert_slots.cut_slots(emitter.context.target), fields, extent_cell(tokens), grain=emitter.row_grain(tokens)
    )
