"""Lowering of the gated delta rule."""

from dataclasses import replace

from sporelm import ops
from sporelm.backends.cpu.kernels import gated_delta_rule
from sporelm.backends.cpu.lowering.emitter import Emitter, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import emit_gates, emit_sequences, state_shape
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.gated_delta_rule)
def _lower_gated_delta_rule(emitter: Emitter, call: Call) -> None:
    x, alpha, beta, decay, bias, *held = call.args
    heads, shared = require_fixed(spec_of(decay).shape[0]), int(call.options["key_heads"])
    shape, max_beta = state_shape(held[0], heads, call.options["order"]), float(call.options.get("max_beta", 1.0))
    gates = {
        "alpha": emitter.address(alpha),
        "beta": emitter.address(beta),
        "stride": row_stride(alpha),
        "max_beta": max_beta,
    }
    gates["min_log_decay"] = min_log_decay = float(call.options.get("min_log_decay", 0.0))
    target, bounded = emitter.context.target, min_log_decay < 0
    kernel = gated_delta_rule.delta_gates(target, bounded=bounded)
    if require_fixed(spec_of(alpha).shape[1]) != heads:
        shape = replace(shape, by_row=True)
        kernel = gated_delta_rule.delta_gates_by_row(target, shape.rows, bounded=bounded)
        gates |= {"beta_stride": row_stride(beta), "heads": heads}
    fields = emit_gates(emitter, kernel, x, decay, bias, gates)
    keys, values = held[4:] or (None, None)
    if keys is None:
        first, keys, values = emitter.address(x) + 4 * shared * shape.rows, x, x
        places = {"keys": first, "values": first + 4 * shared * shape.rows}
    else:
        places = {"keys": emitter.address(keys), "values": emitter.address(values)}
    fields |= {**places, "keys_stride": row_stride(keys), "values_stride": row_stride(values)}
    fields |= {"shared": shared, "heads": heads, "out": emitter.address(call.results[0])}
    fields |= {"out_stride": row_stride(call.results[0]), "scale": shape.rows**-0.5}
    fields["eps"] = float(call.options.get("eps", 1e-6))
    emit_sequences(
        emitter, gated_delta_rule.gated_delta_rule(target, shape), fields, held[:4], heads * shape.tiles(target)
    )
