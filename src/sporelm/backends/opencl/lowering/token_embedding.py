"""Embedding lookup."""

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Amount
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.lowering.quantized_linear import format_snippet, scale_options
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.backends.opencl.weight_formats import RUN
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.embedding)
def lower_embedding(emit: LaunchEmitter, call: Call) -> None:
    ids, table = call.args
    vocab, width = spec_of(table).bound
    first = call.options.get("first")
    flags = {"FILLS": call.options.get("fills", False), "IS_PART": first is not None} | scale_options(table)
    program = emit.program("token_embedding", [format_snippet(table)], flags)
    arguments = [
        *(emit.ints(ids), *emit.weight(table), emit.result(call.results[0])),
        *(Amount(rows_of(ids)), np.int32(vocab), np.int32(width), np.int32(first or 0)),
    ]
    emit.launch(program, "embed_tokens", arguments, [Amount(rows_of(ids), -(-width_of(table) // RUN))])
