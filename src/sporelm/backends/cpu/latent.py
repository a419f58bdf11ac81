"""How the ops of latent attention are lowered: the store of rows, products with a matrix a head, attention."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Cell, Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.formats.records import RECORDS
from sporelm.backends.cpu.kernels import heads as products
from sporelm.backends.cpu.kernels import latent, quantize
from sporelm.backends.cpu.kernels.attention import SPLIT, attention_merge
from sporelm.backends.cpu.kernels.attention_page import Heads
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.latent_rows import split_shape, tile_shape
from sporelm.backends.cpu.kernels.latent_store import store_latent
from sporelm.backends.cpu.kernels.linear import Shape
from sporelm.backends.cpu.kernels.rope import Turn
from sporelm.backends.cpu.storage import PackedExperts, page_store, row_bytes
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.attention import PAGE
from sporelm.ops.linear import ROW_FORMATS
from sporelm.ops.spec import fixed, spec_of


def _pages(cache: Any) -> LatentPages:
    page_store(cache)
    return LatentPages(cache.shape[4], cache.dtype.name)


def _store_latent(low: Emitter, call: Call) -> None:
    x, weight, positions, table, cache, slots = call.args
    pages, rank = _pages(cache), fixed(spec_of(weight).shape[0])
    tokens = spec_of(x).shape[0]
    turn = Turn(pages.width - rank, 0 if table is None else spec_of(table).bound[1], call.options["style"])
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "weight": low.at(weight)}
    if table is not None:
        fields |= {"positions": low.at(positions), "table": low.at(table), "table_stride": stride_of(table)}
    fields |= {"cache": low.at(cache), "page_bytes": cache.storage.stride, "slots": low.at(slots)}
    fields["eps"] = float(call.options["eps"])
    kernel = store_latent(low.places.target, pages, rank, turn)
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _linear_heads(low: Emitter, call: Call) -> None:
    """Where weights multiply int8, each head's columns are rounded before, into memory that no call keeps."""
    x, weight = call.args
    packed = weight.storage
    if not isinstance(packed, PackedExperts):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    kind, target, (heads, out, width) = packed.kind, low.places.target, packed.shape
    tokens, columns = spec_of(x).shape
    head_dim, cell = fixed(columns) // heads, cell_of(tokens)
    at, stride, head_stride = low.at(x) + 4 * (head_dim - width), stride_of(x), 4 * head_dim
    if isinstance(kind, IntegerPanels):
        rounded = ROW_FORMATS[kind.activation]
        each = row_bytes(width, rounded)
        fields = {"x": at, "x_stride": stride, "head_stride": head_stride, "heads": heads, "out_stride": each}
        at, stride, head_stride = low.shared("rounded heads", most(tokens) * heads * each), heads * each, each
        fields |= {"out": at, "blocks": width // rounded.values, "padded": each // RECORDS[rounded.name]}
        kernel = quantize.quantize_heads(target, rounded.name)
        low.emit(kernel, fields, cell, factor=heads, grain=low.row_grain(tokens, heads))
    given = {"x": at, "x_stride": stride, "head_stride": head_stride, "width": width, "tokens": cell}
    given |= {"weight": packed.address, "head_bytes": packed.expert_bytes, "panel_bytes": packed.panel_bytes}
    given |= {"panels": packed.panels, "out": low.at(call.results[0]), "out_stride": stride_of(call.results[0])}
    items = heads * -(-packed.panels // target.tiles.few_of(kind)[0])
    kernel = products.linear_heads(target, Shape(kind), one=most(tokens) == 1, out=out)
    grain = max(1, items // (8 * low.places.threads))
    low.emit(kernel, given, Cell("1", 1), factor=items, grain=grain, guard=(cell, 1, most(tokens)))


def _latent_attention(low: Emitter, call: Call) -> None:
    """As `attention` is lowered: splits for sequences of one row, tiles of rows for the others."""
    queries, q, cache, starts, lengths, table = call.args
    pages, heads = _pages(cache), call.options["heads"]
    sequences, max_pages = spec_of(table).shape
    target, (out,) = low.places.target, call.results
    number = low.places.attended(starts, lengths)
    cells = (Cell(f"{name} {number}") for name in ("splits", "tiles", "decoding", "merging"))
    splitting, tiled, decoding, merging = cells
    rank, head_dim = (fixed(spec_of(value).shape[1]) // heads for value in (queries, q))
    fields: dict[str, Any] = {"latent": low.at(queries), "latent_stride": stride_of(queries)}
    fields |= {"q": low.at(q), "q_stride": stride_of(q), "cache": low.at(cache), "page_bytes": cache.storage.stride}
    fields |= {"starts": low.at(starts), "lengths": low.at(lengths), "table": low.at(table)}
    fields |= {"table_stride": stride_of(table), "scale": float(call.options["scale"])}
    to = {"out": low.at(out), "out_stride": stride_of(out)}
    split, tile = (make(pages, rank, heads, head_dim) for make in (split_shape, tile_shape))
    splits = -(-fixed(max_pages) * PAGE // SPLIT)
    record = 4 * (split.values.padded + 16)
    parts = {"parts": low.shared("latent parts", most(sequences) * splits * heads * record), "splits": splitting}
    splits_guard, merge_guard, tile_guard = ((cell, 1, 1 << 40) for cell in (decoding, merging, tiled))
    low.emit(
        latent.latent_split(target, split),
        fields | to | parts,
        Cell(f"sequences splits {number}"), factor=split.chunks, guard=splits_guard,
    )  # fmt: skip
    low.emit(
        attention_merge(target, Heads(split.values, heads)),
        {name: fields[name] for name in ("starts", "lengths")} | to | parts | {"kv_heads": 1},
        merging, factor=heads, grain=-(-heads // low.places.threads), guard=merge_guard,
    )  # fmt: skip
    low.emit(
        latent.latent_tile(target, tile),
        fields | to | {"decoding": decoding, "tiles": tiled},
        tiled, factor=tile.chunks, guard=tile_guard,
    )  # fmt: skip


RULES: dict[str, Callable[[Any, Call], None]] = {
    "store_latent": _store_latent,
    "linear_heads": _linear_heads,
    "latent_attention": _latent_attention,
}
