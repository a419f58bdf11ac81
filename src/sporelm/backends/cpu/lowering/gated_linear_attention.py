"""Lowering of gated linear attention."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import gated_linear_attention
from sporelm.backends.cpu.kernels.recurrent_state import StateShape
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import sequence_fields
from sporelm.backends.cpu.runtime.tensor_storage import row_bytes
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.tensor.dtype import F32


@lowers(ops.gated_linear_attention)
def _lower_gated_linear_attention(emitter: Emitter, call: Call) -> None:
    r, w, k, v, *held = call.args
    tokens, heads = spec_of(r).shape[0], int(call.options["heads"])
    dim = require_fixed(spec_of(r).shape[1]) // heads
    shape, target = StateShape(dim, require_fixed(held[0].shape[2]), "each"), emitter.context.target
    second = row_bytes(heads * dim, F32)
    shared: dict[str, Any] = {
        "prepared": emitter.shared_scratch("gates", 2 * second * max_extent(tokens)),
        "prepared_stride": 2 * second,
    }
    shared |= {"second": second, "heads": heads, "shared": int(call.options["key_heads"]), "stride": row_stride(r)}
    fields = shared | {"w": emitter.address(w), "k": emitter.address(k), "k_stride": row_stride(k)}
    emitter.emit(
        gated_linear_attention.gated_linear_inputs(target, dim),
        fields,
        extent_cell(tokens),
        grain=emitter.row_grain(tokens),
    )
    fields = shared | {
        "r": emitter.address(r),
        "v": emitter.address(v),
        "v_stride": row_stride(v),
        "out": emitter.address(call.results[0]),
    }
    fields |= {"out_stride": row_stride(call.results[0]), "scale": dim**-0.5, **sequence_fields(emitter, *held)}
    sequences = extent_cell(spec_of(held[2]).shape[0])
    emitter.emit(
        gated_linear_attention.gated_linear_attention(target, shape),
        fields,
        sequences,
        factor=heads * shape.tiles(target),
    )
