"""Lowering of attention of rows to spans of keys."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import cross_attention as kernels
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.cross_attention)
def _lower_cross_attention(emitter: Emitter, call: Call) -> None:
    """Cut rows into tiles, once for all calls with these spans; then compute a head of a tile at a time."""
    q, k, v, spans = call.args
    target, head_dim = emitter.context.target, call.options["head_dim"]
    rows, width = spec_of(q).shape
    guard = (extent_cell(rows), 1, max_extent(rows))
    held: dict[str, int] | None = emitter.shared_results.get(id(spans))
    if held is None:
        # Memory of their own: a thread may still read one count of tiles while another thread writes the next.
        held = {
            "tiles": emitter.context.reserve(kernels.RECORD * max_extent(rows)),
            "count": emitter.context.reserve(8),
        }
        emitter.shared_results[id(spans)] = held
        fields = {"spans": emitter.address(spans), "rows": extent_cell(rows), **held}
        emitter.emit(kernels.span_tiles(target), fields, Cell("1", 1), guard=guard)
    tiles = Cell(f"span tiles at {held['count']:#x}", address=held["count"])
    heads = require_fixed(width) // head_dim
    more: dict[str, Any] = {name: emitter.address(value) for name, value in (("q", q), ("k", k), ("v", v))}
    more |= {"q_stride": row_stride(q), "kv_stride": row_stride(k), "out": emitter.address(call.results[0])}
    more |= {"spans": emitter.address(spans), "tiles": held["tiles"], "scale": float(call.options["scale"])}
    more |= {"heads": heads, "group": heads * head_dim // require_fixed(spec_of(k).shape[1])}
    emitter.emit(kernels.cross_attention(target, head_dim), more, tiles, factor=heads, guard=guard)
