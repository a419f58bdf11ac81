"""A plan of several segments."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32


def build_segmented_plan(backend: Any) -> Plan:
    """A plan with small inputs, one that does not go up with them, and an op that the reference runs in the middle."""
    tokens = Symbol("tokens", 512)
    specs = {"x": Spec((tokens, 1024), F32), "rows": Spec((Symbol("rows", 4),), I32)}

    def function(x: Any, rows: Any) -> Mapping[str, Any]:
        chosen = ops.select_rows(ops.add(x, x), rows)
        first, second = ops.stream(ops.spread_streams(chosen, (chosen,)), index=1), ops.scale(chosen, factor=3.0)
        return {"sum": ops.add(first, second), "best": ops.argmax(chosen)}

    return Plan(trace(function, specs), backend)
