"""Rounding of rows for weights that multiply int8."""

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Amount
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, columns_of, rows_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.quantize_rows import INT8_32, ROW_FORMATS


@lowers(ops.quantize_rows)
def lower_quantize_rows(emit: LaunchEmitter, call: Call) -> None:
    (x,) = call.args
    values = ROW_FORMATS[call.options.get("activation", INT8_32.name)].values
    groups = Amount(rows_of(x), columns_of(x) // values)
    program = emit.program("quantize_rows", options={"GROUP": values})
    emit.launch(program, "quantize_groups", [emit.real(x), emit.result(call.results[0]), groups], [groups])
