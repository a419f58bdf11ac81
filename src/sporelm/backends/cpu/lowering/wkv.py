"""Lowering of RWKV's states."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import wkv
from sporelm.backends.cpu.kernels.recurrent_state import StateShape
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import sequence_fields
from sporelm.backends.cpu.runtime.tensor_storage import row_bytes
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.tensor.dtype import F32


@lowers(ops.wkv7)
def _lower_wkv7(emitter: Emitter, call: Call) -> None:
    r, w, k, v, a, k_k, k_a, bonus, *held = call.args
    tokens, (heads, dim) = spec_of(r).shape[0], spec_of(bonus).bound
    out, alone = call.results
    shape, target = StateShape(dim, require_fixed(held[0].shape[2]), "each"), emitter.context.target
    second = row_bytes(heads * dim, F32)
    stride = wkv.NUM_INPUTS * second + row_bytes(2 * heads, F32)
    place = {
        "prepared": emitter.shared_scratch("gates", stride * max_extent(tokens)),
        "prepared_stride": stride,
        "second": second,
    }
    shared: dict[str, Any] = {"v": emitter.address(v), "v_stride": row_stride(v), "heads": heads, **place}
    fields = shared | {
        "r": emitter.address(r),
        "w": emitter.address(w),
        "k": emitter.address(k),
        "a": emitter.address(a),
        "stride": row_stride(r),
    }
    fields |= {"k_k": emitter.address(k_k), "k_a": emitter.address(k_a), "bonus": emitter.address(bonus)}
    fields |= {"bonus_stride": row_stride(bonus), "alone": emitter.address(alone)}
    kernel = wkv.wkv7_inputs(target, dim, shape.columns)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
    fields = shared | {"out": emitter.address(out), "shared": heads, **sequence_fields(emitter, *held)}
    sequences = extent_cell(spec_of(held[2]).shape[0])
    emitter.emit(wkv.wkv7(target, shape), fields, sequences, factor=heads * shape.tiles(target))


@lowers(ops.wkv6)
def _lower_wkv6(emitter: Emitter, call: Call) -> None:
    r, w, k, v, bonus, *held = call.args
    tokens, (heads, dim) = spec_of(r).shape[0], spec_of(bonus).bound
    shape, target = StateShape(dim, require_fixed(held[0].shape[2]), "each"), emitter.context.target
    second = row_bytes(heads * dim, F32)
    stride = second + row_bytes(heads, F32)
    shared: dict[str, Any] = {
        "prepared": emitter.shared_scratch("gates", stride * max_extent(tokens)),
        "prepared_stride": stride,
    }
    shared |= {
        "second": second,
        "heads": heads,
        "r": emitter.address(r),
        "k": emitter.address(k),
        "stride": row_stride(r),
    }
    fields = shared | {"w": emitter.address(w), "bonus": emitter.address(bonus), "bonus_stride": row_stride(bonus)}
    emitter.emit(wkv.wkv6_inputs(target, dim), fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
    fields = shared | {
        "v": emitter.address(v),
        "v_stride": row_stride(v),
        "out": emitter.address(call.results[0]),
        "shared": heads,
    }
    sequences = extent_cell(spec_of(held[2]).shape[0])
    fields |= sequence_fields(emitter, *held)
    emitter.emit(wkv.wkv6(target, shape), fields, sequences, factor=heads * shape.tiles(target))
