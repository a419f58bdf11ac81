"""Embedding lookup."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.lowering.quantized_linear import get_format_snippet, make_scale_options
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.backends.opencl.weight_formats import RUN
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.embedding)
def lower_embedding(emit: LaunchEmitter, call: Call) -> None:
    ids, table = call.args
    vocab, width = spec_of(table).bound
    first = call.options.get("first")
    flags = {"FILLS": call.options.get("fills", False), "IS_PART": first is not None} | make_scale_options(table)
    program = emit.make_program("token_embedding", [get_format_snippet(table)], flags)
    arguments = [
        *(emit.get_int_buffer(ids), *emit.get_weight_arguments(table), emit.get_result_buffer(call.results[0])),
        *(ScaledExtent(rows_of(ids)), np.int32(vocab), np.int32(width), np.int32(first or 0)),
    ]
    emit.launch(program, "embed_tokens", arguments, [ScaledExtent(rows_of(ids), -(-width_of(table) // RUN))])
