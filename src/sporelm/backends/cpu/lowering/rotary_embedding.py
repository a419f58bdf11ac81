"""Lowering of rotary position embedding."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import rotary_embedding
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.page_layouts import kv_page_layout
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.rope)
def _lower_rope(emitter: Emitter, call: Call) -> None:
    x, positions, table = call.args
    turn, fields = _rotary_fields(emitter, call, positions, table)
    tokens, width = spec_of(x).shape
    heads = require_fixed(width) // turn.head_dim
    fields |= {
        "x": emitter.address(x),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(x),
        "heads": heads,
    }
    emitter.emit(
        rotary_embedding.rope(emitter.context.target, turn), fields, extent_cell(tokens), factor=heads, grain=heads
    )


def _rotary_fields(
    emitter: Emitter, call: Call, positions: Any, table: Any
) -> tuple[rotary_embedding.RotaryShape, dict[str, Any]]:
    """Return the specialization of a rotary kernel, and its fields."""
    options = call.options
    turn = rotary_embedding.RotaryShape(
        options["head_dim"], spec_of(table).bound[1], options["style"], options.get("streams")
    )
    fields = {
        "positions": emitter.address(positions),
        "table": emitter.address(table),
        "table_stride": row_stride(table),
    }
    if turn.streams is not None:
        fields["positions_stride"] = row_stride(positions)
    return turn, fields


@lowers(ops.rope_store)
def _lower_rope_store(emitter: Emitter, call: Call) -> None:
    q, keys, values, positions, table, cache, slots = call.args
    pages, kv_heads = kv_page_layout(cache)
    tokens, width = spec_of(q).shape
    heads = require_fixed(width) // pages.head_dim
    turn, fields = _rotary_fields(emitter, call, positions, table)
    fields |= {
        "x": emitter.address(q),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(q),
        "heads": heads,
    }
    fields |= {
        "keys": emitter.address(keys),
        "values": emitter.address(values),
        "kv_stride": row_stride(keys),
        "kv_heads": kv_heads,
    }
    fields |= {"cache": emitter.address(cache), "page_bytes": cache.storage.stride, "slots": emitter.address(slots)}
    kernel = rotary_embedding.rope_store(emitter.context.target, pages, turn)
    every = heads + kv_heads
    # neighbours in a page share cache lines: a thread processes runs of tokens
    grain = (
        -(-every // emitter.context.threads)
        if max_extent(tokens) == 1
        else every * min(32, max(1, max_extent(tokens) // 16))
    )
    emitter.emit(kernel, fields, extent_cell(tokens), factor=every, grain=grain)
