"""Lowering of argmax and top-k."""

from sporelm import ops
from sporelm.backends.cpu.kernels import logit_selection
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.argmax)
def _lower_argmax(emitter: Emitter, call: Call) -> None:
    (logits,) = call.args
    count, vocab = spec_of(logits).shape
    fields = {
        "x": emitter.address(logits),
        "stride": row_stride(logits),
        "vocab": require_fixed(vocab),
        "out": emitter.address(call.results[0]),
    }
    emitter.emit(logit_selection.argmax(emitter.context.target), fields, extent_cell(count))


@lowers(ops.top_k)
def _lower_top_k(emitter: Emitter, call: Call) -> None:
    (logits,) = call.args
    count, vocab = spec_of(logits).shape
    values, ids = call.results
    fields = {
        "x": emitter.address(logits),
        "stride": row_stride(logits),
        "vocab": require_fixed(vocab),
        "k": call.options["k"],
    }
    fields |= {
        "values": emitter.address(values),
        "values_stride": row_stride(values),
        "ids": emitter.address(ids),
        "ids_stride": row_stride(ids),
    }
    emitter.emit(logit_selection.top_k(emitter.context.target), fields, extent_cell(count))
