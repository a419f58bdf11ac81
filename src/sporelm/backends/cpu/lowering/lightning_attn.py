"""Lowering of lightning attention."""

from sporelm import ops
from sporelm.backends.cpu.kernels.lightning_attn import lightning_attention as lightning_kernel
from sporelm.backends.cpu.lowering.emitter import Emitter, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import emit_sequences, state_shape
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.lightning_attention)
def _lower_lightning_attention(emitter: Emitter, call: Call) -> None:
    x, decay, *held = call.args
    heads = require_fixed(spec_of(decay).shape[0])
    shape = state_shape(held[0], heads, "each")
    fields = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "decay": emitter.address(decay),
        "shared": heads,
        "heads": heads,
    }
    fields |= {"out": emitter.address(call.results[0]), "out_stride": row_stride(call.results[0])}
    kernel = lightning_kernel(emitter.context.target, shape)
    emit_sequences(emitter, kernel, fields, held, heads * shape.tiles(emitter.context.target))
