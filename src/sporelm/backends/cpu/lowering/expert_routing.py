"""Lowering of expert routing."""

from collections.abc import Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import expert_routing
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of

ROUTE_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {name: p.default for name, p in signature(ops.route.reference).parameters.items() if p.default is not p.empty}
)


@lowers(ops.route)
def _lower_route(emitter: Emitter, call: Call) -> None:
    logits, bias, factors = (*call.args, None, None)[:3]
    options = {**ROUTE_OPTIONS, **call.options}
    weights, ids = call.results
    tokens, experts_count = spec_of(logits).shape
    grouped = options["top_groups"] < options["groups"]
    choice = expert_routing.RoutingShape(
        options["scores"],
        bias is not None,
        options["renormalize"],
        grouped,
        options["group_score"],
        factors is not None,
    )
    fields: dict[str, Any] = {
        "x": emitter.address(logits),
        "x_stride": row_stride(logits),
        "experts": require_fixed(experts_count),
    }
    fields |= {
        "vectors": emitter.vectors(require_fixed(experts_count)),
        "k": options["k"],
        "scale": float(options["scale"]),
    }
    fields |= {"weights": emitter.address(weights), "weights_stride": row_stride(weights), "ids": emitter.address(ids)}
    fields |= {"groups": options["groups"], "top_groups": options["top_groups"], "epsilon": float(options["epsilon"])}
    fields["near"] = float(options["near"])
    fields |= {
        name: emitter.address(value) for name, value in (("bias", bias), ("factors", factors)) if value is not None
    }
    kernel = expert_routing.route(emitter.context.target, choice)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))
