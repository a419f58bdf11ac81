"""Lowering of multi-head latent attention."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import mla
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.latent_rows import latent_split_shape, latent_tile_shape
from sporelm.backends.cpu.kernels.mla import store_latent
from sporelm.backends.cpu.kernels.paged_attention import SPLIT, attention_merge
from sporelm.backends.cpu.kernels.rotary_embedding import RotaryShape
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.page_layouts import latent_page_layout
from sporelm.ops import Call
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.store_latent)
def _lower_store_latent(emitter: Emitter, call: Call) -> None:
    x, weight, positions, table, cache, slots = call.args
    pages, rank = latent_page_layout(cache), require_fixed(spec_of(weight).shape[0])
    tokens = spec_of(x).shape[0]
    turn = RotaryShape(pages.width - rank, 0 if table is None else spec_of(table).bound[1], call.options["style"])
    fields: dict[str, Any] = {"x": emitter.address(x), "x_stride": row_stride(x), "weight": emitter.address(weight)}
    if table is not None:
        fields |= {
            "positions": emitter.address(positions),
            "table": emitter.address(table),
            "table_stride": row_stride(table),
        }
    fields |= {"cache": emitter.address(cache), "page_bytes": cache.storage.stride, "slots": emitter.address(slots)}
    fields["eps"] = float(call.options["eps"])
    kernel = store_latent(emitter.context.target, pages, rank, turn)
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


@lowers(ops.latent_attention)
def _lower_latent_attention(emitter: Emitter, call: Call) -> None:
    """As `attention` is lowered: splits for sequences of one row, tiles of rows for the others."""
    queries, q, cache, starts, lengths, table = call.args
    pages, heads = latent_page_layout(cache), call.options["heads"]
    sequences, max_pages = spec_of(table).shape
    target, (out,) = emitter.context.target, call.results
    number = emitter.context.register_sequences(starts, lengths)
    cells = (Cell(f"{name} {number}") for name in ("splits", "tiles", "decoding", "merging"))
    splitting, tiled, decoding, merging = cells
    rank, head_dim = (require_fixed(spec_of(value).shape[1]) // heads for value in (queries, q))
    fields: dict[str, Any] = {"latent": emitter.address(queries), "latent_stride": row_stride(queries)}
    fields |= {
        "q": emitter.address(q),
        "q_stride": row_stride(q),
        "cache": emitter.address(cache),
        "page_bytes": cache.storage.stride,
    }
    fields |= {"starts": emitter.address(starts), "lengths": emitter.address(lengths), "table": emitter.address(table)}
    fields |= {"table_stride": row_stride(table), "scale": float(call.options["scale"])}
    to = {"out": emitter.address(out), "out_stride": row_stride(out)}
    split, tile = (make(pages, rank, heads, head_dim) for make in (latent_split_shape, latent_tile_shape))
    splits = -(-require_fixed(max_pages) * PAGE // SPLIT)
    record = 4 * (split.values.padded + 16)
    parts = {
        "parts": emitter.shared_scratch("latent parts", max_extent(sequences) * splits * heads * record),
        "splits": splitting,
    }
    splits_guard, merge_guard, tile_guard = ((cell, 1, 1 << 40) for cell in (decoding, merging, tiled))
    emitter.emit(
        mla.latent_split(target, split),
        fields | to | parts,
        Cell(f"sequences splits {number}"), factor=split.chunks, guard=splits_guard,
    )  # fmt: skip
    emitter.emit(
        attention_merge(target, AttentionShape(split.values, heads)),
        {name: fields[name] for name in ("starts", "lengths")} | to | parts | {"kv_heads": 1},
        merging, factor=heads, grain=-(-heads // emitter.context.threads), guard=merge_guard,
    )  # fmt: skip
    emitter.emit(
        mla.latent_tile(target, tile),
        fields | to | {"decoding": decoding, "tiles": tiled},
        tiled, factor=tile.chunks, guard=tile_guard,
    )  # fmt: skip
