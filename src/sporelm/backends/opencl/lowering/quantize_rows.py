"""Rounding of rows for weights that multiply int8."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Amount
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, columns_of, number_of, rows_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.quantize_rows import INT8_32, ROW_FORMATS
from sporelm.ops.spec import spec_of


def rounded_group(call: Call) -> int:
    """Return the numbers that share a scale in a call of quantize_rows."""
    return ROW_FORMATS[call.options.get("activation", INT8_32.name)].values


@lowers(ops.quantize_rows)
def lower_quantize_rows(emit: LaunchEmitter, call: Call) -> None:
    (x,) = call.args
    values = rounded_group(call)
    groups = Amount(rows_of(x), columns_of(x) // values)
    program = emit.program("quantize_rows", ["rounding.h"], options={"GROUP": values, "CODES": bool(emit.dots)})
    arguments = [emit.real(x), emit.result(call.results[0]), groups, np.uint64(number_of(spec_of(x)))]
    emit.launch(program, "quantize_groups", arguments, [groups])
