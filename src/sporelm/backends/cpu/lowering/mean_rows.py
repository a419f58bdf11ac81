"""Lowering of mean pooling."""

from sporelm import ops
from sporelm.backends.cpu.kernels import mean_rows as means
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.mean_rows)
def _lower_mean_rows(emitter: Emitter, call: Call) -> None:
    """An item is a text."""
    x, firsts, stops = call.args
    fields = {
        "x": emitter.address(x),
        "stride": row_stride(x),
        "vectors": emitter.vectors(require_fixed(spec_of(x).shape[1])),
    }
    fields |= {
        "firsts": emitter.address(firsts),
        "stops": emitter.address(stops),
        "out": emitter.address(call.results[0]),
    }
    emitter.emit(means.mean_rows(emitter.context.target), fields, extent_cell(spec_of(firsts).shape[0]))
