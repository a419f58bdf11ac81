"""Lowering of the split of zero-computation experts."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import split_zero_experts
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.split_zero_experts)
def _lower_split_zero_experts(emitter: Emitter, call: Call) -> None:
    weights, ids = call.args
    tokens, slots = spec_of(weights).shape
    out, kept, rest = call.results
    fields: dict[str, Any] = {
        "weights": emitter.address(weights),
        "weights_stride": row_stride(weights),
        "ids": emitter.address(ids),
    }
    fields |= {
        "experts": call.options["experts"],
        "k": require_fixed(slots),
        "out": emitter.address(out),
        "kept": emitter.address(kept),
    }
    fields |= {"out_stride": row_stride(out), "rest": emitter.address(rest), "rest_stride": row_stride(rest)}
    emitter.emit(
        split_zero_experts.split_zero_experts(emitter.context.target),
        fields,
        extent_cell(tokens),
        grain=emitter.row_grain(tokens),
    )
