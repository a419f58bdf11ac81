"""Lowering of norms."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import norm
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.rms_norm, rowwise=True)
def _lower_rms_norm(emitter: Emitter, call: Call) -> None:
    x, weight = call.args
    if spec_of(weight).shape != spec_of(x).shape[1:]:
        return _emit_head_norm(emitter, call)
    _emit_rms_norm(emitter, call, norm.rms_norm(emitter.context.target), x, weight, {})


@lowers(ops.add_rms_norm, rowwise=True)
def _lower_add_rms_norm(emitter: Emitter, call: Call) -> None:
    x, residual, weight = call.args
    more = {"residual": emitter.address(residual), "total": emitter.address(call.results[1])}
    _emit_rms_norm(emitter, call, norm.add_rms_norm(emitter.context.target), x, weight, more)


def _emit_rms_norm(emitter: Emitter, call: Call, kernel: Kernel, x: Any, weight: Any, more: dict[str, Any]) -> None:
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": emitter.address(x), "x_stride": row_stride(x), "weight": emitter.address(weight)}
    fields |= {"out": emitter.address(call.results[0])}
    fields |= {
        "out_stride": row_stride(x),
        "vectors": emitter.vectors(require_fixed(width)),
        "width": float(require_fixed(width)),
    }
    fields |= {"eps": float(call.options["eps"])} | more
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


def _emit_head_norm(emitter: Emitter, call: Call) -> None:
    """Lower rms_norm with a weight of one head, or of each head."""
    x, weight = call.args
    tokens, width = spec_of(x).shape
    head_dim, each = require_fixed(spec_of(weight).shape[-1]), len(spec_of(weight).shape) == 2
    fields: dict[str, Any] = {"x": emitter.address(x), "x_stride": row_stride(x), "weight": emitter.address(weight)}
    fields["weight_stride"] = row_stride(weight) if each else 0
    fields |= {
        "out": emitter.address(call.results[0]),
        "out_stride": row_stride(x),
        "heads": require_fixed(width) // head_dim,
    }
    fields["eps"] = float(call.options["eps"])
    kernel = norm.rms_norm_of_heads(emitter.context.target, head_dim)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


@lowers(ops.layer_norm, ops.add_layer_norm, rowwise=True)
def _lower_layer_norm(emitter: Emitter, call: Call) -> None:
    adds = call.op.name == "add_layer_norm"
    x, *residual, weight, bias = (*call.args, None, None)[: 4 if adds else 3]
    if weight is not None and len(spec_of(weight).shape) == 2:
        return _emit_head_layer_norm(emitter, call)
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": emitter.address(x), "x_stride": row_stride(x)}
    fields |= {
        "out": emitter.address(call.results[0]),
        "out_stride": row_stride(x),
        "vectors": emitter.vectors(require_fixed(width)),
    }
    fields |= {"width": float(require_fixed(width)), "eps": float(call.options["eps"])}
    if adds:
        fields |= {"residual": emitter.address(residual[0]), "total": emitter.address(call.results[1])}
    fields |= {
        name: emitter.address(value) for name, value in (("weight", weight), ("bias", bias)) if value is not None
    }
    kernel = norm.layer_norm(emitter.context.target, adds=adds, weight=weight is not None, bias=bias is not None)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


def _emit_head_layer_norm(emitter: Emitter, call: Call) -> None:
    x, weight = call.args[:2]
    heads, head_dim = spec_of(weight).bound
    tokens = spec_of(x).shape[0]
    fields: dict[str, Any] = {"x": emitter.address(x), "x_stride": row_stride(x), "heads": heads}
    fields |= {
        "weight": emitter.address(weight),
        "weight_stride": row_stride(weight),
        "eps": float(call.options["eps"]),
    }
    fields |= {"out": emitter.address(call.results[0]), "out_stride": row_stride(x)}
    kernel = norm.layer_norm_of_heads(emitter.context.target, head_dim)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


@lowers(ops.group_norm, rowwise=True)
def _lower_group_norm(emitter: Emitter, call: Call) -> None:
    x, weight, bias = call.args
    tokens, width = spec_of(x).shape
    group = int(call.options["group"])
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "heads": require_fixed(width) // group,
    }
    fields |= {
        "weight": emitter.address(weight),
        "bias": emitter.address(bias),
        "weight_stride": 4 * group * (spec_of(weight).shape == spec_of(x).shape[1:]),
    }
    fields |= {"eps": float(call.options["eps"]), "out": emitter.address(call.results[0]), "out_stride": row_stride(x)}
    kernel = norm.layer_norm_of_heads(emitter.context.target, group, bias=True)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
