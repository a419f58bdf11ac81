"""Lowering of attention over a paged KV cache."""

from dataclasses import replace
from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import paged_attention as att
from sporelm.backends.cpu.kernels import store_kv
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.page_layouts import kv_page_layout
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of

NO_WINDOW = 1 << 40


@lowers(ops.store_kv)
def _lower_store_kv(emitter: Emitter, call: Call) -> None:
    keys, values, cache, slots = call.args
    pages, kv_heads = kv_page_layout(cache)
    tokens = spec_of(keys).shape[0]
    fields = {
        "keys": emitter.address(keys),
        "values": emitter.address(values),
        "stride": row_stride(keys),
        "kv_heads": kv_heads,
    }
    fields |= {"cache": emitter.address(cache), "page_bytes": cache.storage.stride, "slots": emitter.address(slots)}
    emitter.emit(
        store_kv.store_kv(emitter.context.target, pages), fields, extent_cell(tokens), factor=kv_heads, grain=kv_heads
    )


@lowers(ops.attention)
def _lower_attention(emitter: Emitter, call: Call) -> None:
    """Lower attention: splits of the positions for the leading sequences with one row each, tiles of rows for the
    others. The only row of a sequence in a step is the last of its positions: no image goes on behind it."""
    q, cache, starts, lengths, table = call.args[:5]
    sinks, slopes, spans = (*call.args[5:], None, None, None)[:3]
    softcap = call.options.get("softcap")
    pages, kv_heads = kv_page_layout(cache)
    sequences, max_pages = spec_of(table).shape
    target, chunk = emitter.context.target, call.options.get("chunk")
    window = call.options.get("window") or chunk or NO_WINDOW
    number = emitter.context.register_sequences(starts, lengths)
    splitting, tiled, decoding, merged_rows = (
        Cell(f"{name} {number}") for name in ("splits", "tiles", "decoding", "merging")
    )
    group = require_fixed(spec_of(q).shape[1]) // (pages.head_dim * kv_heads)
    heads = AttentionShape(pages, group, sinks is not None, softcap is not None, slopes is not None, chunk is not None)
    shared: dict[str, Any] = {"q": emitter.address(q), "q_stride": row_stride(q)}
    shared |= {"cache": emitter.address(cache), "page_bytes": cache.storage.stride}
    shared |= {
        "starts": emitter.address(starts),
        "lengths": emitter.address(lengths),
        "table": emitter.address(table),
        "table_stride": row_stride(table),
    }
    shared |= {"scale": float(call.options["scale"]), "window": window, "kv_heads": kv_heads}
    if softcap is not None:
        shared["softcap"] = float(softcap)
    if slopes is not None:
        shared["slopes"] = emitter.address(slopes)
    images = {} if spans is None else {"spans": emitter.address(spans)}
    out = {"out": emitter.address(call.results[0]), "out_stride": row_stride(q)}
    if sinks is not None:
        out["sinks"] = emitter.address(sinks)
    splits = -(-require_fixed(max_pages) * 64 // att.SPLIT)
    record = 4 * (pages.padded + 16)
    parts = emitter.context.reserve(max_extent(sequences) * kv_heads * splits * heads.group * record)
    merged = {name: shared[name] for name in ("lengths", "starts", "kv_heads")}
    merged |= {"parts": parts, "splits": splitting}
    splits_guard, merging, tiling = ((cell, 1, 1 << 40) for cell in (decoding, merged_rows, tiled))
    emitter.emit(
        att.attention_split(target, heads),
        shared | {"splits": splitting, "parts": parts} | out,
        Cell(f"sequences splits {number}"), factor=kv_heads, guard=splits_guard,
    )  # fmt: skip
    emitter.emit(
        att.attention_merge(target, heads),
        merged | out,
        merged_rows, factor=kv_heads * heads.group, grain=heads.group, guard=merging,
    )  # fmt: skip
    tile_heads = replace(heads, spans=spans is not None)
    emitter.emit(
        attention_tile(target, tile_heads),
        shared | images | {"decoding": decoding, "tiles": tiled} | out,
        tiled, factor=kv_heads, guard=tiling,
    )  # fmt: skip
