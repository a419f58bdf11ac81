"""Selection and concatenation of rows and columns."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.tensor.dtype import F16


@lowers(ops.select_rows, ops.select_columns)
def lower_selection(emit: LaunchEmitter, call: Call) -> None:
    x, indices = call.args
    (result,) = call.results
    options = {"SOURCE": "ushort" if emit.activation is F16 else "uint", "BY_COLUMN": call.op is ops.select_columns}
    width = width_of(result)
    arguments = [
        *(emit.get_activation_buffer(x), emit.get_int_buffer(indices), emit.get_result_buffer(result)),
        *(ScaledExtent(rows_of(result)), np.int32(width), np.int32(width_of(x))),
    ]
    emit.launch(
        emit.make_program("row_selection", options=options),
        "select_numbers",
        arguments,
        [ScaledExtent(rows_of(result), width)],
    )


@lowers(ops.join_columns)
def lower_join_columns(emit: LaunchEmitter, call: Call) -> None:
    (result,) = call.results
    options = {"SOURCE": "ushort" if emit.activation is F16 else "uint"}
    program, first = emit.make_program("join_columns", options=options), 0
    for part in call.args:
        if part is None:
            continue
        width = width_of(part)
        arguments = [
            *(emit.get_activation_buffer(part), emit.get_result_buffer(result), ScaledExtent(rows_of(part))),
            *(np.int32(width), np.int32(width_of(result)), np.int32(first)),
        ]
        emit.launch(program, "copy_columns", arguments, [ScaledExtent(rows_of(part), width)])
        first += width
