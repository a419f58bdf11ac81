"""Rounding of rows for weights that multiply int8."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, columns_of, num_elements, rows_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.errors import UnsupportedOp
from sporelm.ops import Call
from sporelm.ops.quantize_rows import E4M3_128, INT8_32, ROW_FORMATS
from sporelm.ops.spec import spec_of


def rounded_group(call: Call) -> int:
    """Return the numbers that share a scale in a call of quantize_rows. Raise UnsupportedOp for rows in FP8."""
    kind = ROW_FORMATS[call.options.get("activation", INT8_32.name)]
    if kind is E4M3_128:
        raise UnsupportedOp(f"quantize_rows: not supported by opencl (got {kind.name}). Use the back-end cuda.")
    return kind.values


@lowers(ops.quantize_rows)
def lower_quantize_rows(emit: LaunchEmitter, call: Call) -> None:
    (x,) = call.args
    values = rounded_group(call)
    groups = ScaledExtent(rows_of(x), columns_of(x) // values)
    program = emit.make_program(
        "quantize_rows", ["rounding.h"], options={"GROUP": values, "CODES": bool(emit.dot_kind)}
    )
    arguments = [
        emit.get_activation_buffer(x),
        emit.get_result_buffer(call.results[0]),
        groups,
        np.uint64(num_elements(spec_of(x))),
    ]
    emit.launch(program, "quantize_groups", arguments, [groups])
