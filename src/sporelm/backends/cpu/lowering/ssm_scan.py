"""Lowering of Mamba 2's scan."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import ssm_scan
from sporelm.backends.cpu.lowering.emitter import Emitter, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import emit_gates, emit_sequences, state_shape
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.ssm_scan)
def _lower_ssm_scan(emitter: Emitter, call: Call) -> None:
    x, dt, decay, skip, bias, *held = call.args
    heads, shared = require_fixed(spec_of(decay).shape[0]), int(call.options["groups"])
    shape = state_shape(held[0], heads, "each")
    gates: dict[str, Any] = {"dt": emitter.address(dt), "stride": row_stride(dt)}
    gates |= {"low": float(call.options.get("low", 0.0)), "high": float(call.options.get("high", float("inf")))}
    fields = emit_gates(emitter, ssm_scan.scan_gates(emitter.context.target), x, decay, bias, gates)
    fields |= {"skip": emitter.address(skip), "inner": 4 * heads * shape.columns, "shared": shared, "heads": heads}
    fields |= {"out": emitter.address(call.results[0]), "out_stride": row_stride(call.results[0])}
    kernel = ssm_scan.ssm_scan(emitter.context.target, shape)
    emit_sequences(emitter, kernel, fields, held, heads * shape.tiles(emitter.context.target))
