"""Argmax and top-k of rows of logits."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call

MAX_TOP_K = 256  # each number takes a pass over the row


@lowers(ops.argmax)
def lower_argmax(emit: LaunchEmitter, call: Call) -> None:
    (logits,) = call.args
    local = emit.tuning.row_group
    numbers, narrow = emit.get_stored_buffer(logits)
    arguments = [numbers, emit.get_result_buffer(call.results[0]), np.int32(width_of(logits))]
    program = emit.make_program("argmax", options=narrow, local=local)
    emit.launch(program, "find_argmax", arguments, [ScaledExtent(rows_of(logits), local)], [local])


@lowers(ops.top_k, supports=lambda call: call.options["k"] <= MAX_TOP_K)
def lower_top_k(emit: LaunchEmitter, call: Call) -> None:
    (logits,) = call.args
    local = emit.tuning.row_group
    numbers, narrow = emit.get_stored_buffer(logits)
    arguments = [
        *(numbers, *(emit.get_result_buffer(result) for result in call.results)),
        *(np.int32(width_of(logits)), np.int32(call.options["k"])),
    ]
    program = emit.make_program("top_k", options=narrow, local=local)
    emit.launch(program, "find_greatest", arguments, [ScaledExtent(rows_of(logits), local)], [local])
