"""Lowering of gated norms."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import gated_rms_norm
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.gated_rms_norm, rowwise=True)
def _lower_gated_rms_norm(emitter: Emitter, call: Call) -> None:
    x, gate, weight = call.args
    tokens, width = spec_of(x).shape
    group = int(call.options["group"])
    own = row_stride(weight) if len(spec_of(weight).shape) == 2 else 0
    fields: dict[str, Any] = {"x": emitter.address(x), "gate": emitter.address(gate), "weight": emitter.address(weight)}
    fields |= {
        "out": emitter.address(call.results[0]),
        "stride": row_stride(x),
        "groups": require_fixed(width) // group,
    }
    fields |= {"weight_stride": own, "eps": float(call.options["eps"])}
    opened = call.options.get("activation", "silu")
    kernel = gated_rms_norm.gated_rms_norm(emitter.context.target, group, call.options["first"], opened)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
