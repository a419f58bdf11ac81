"""Lowering of attention over whole texts."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import encoder_attention as kernels
from sporelm.backends.cpu.kernels.attention_page import AttentionShape
from sporelm.backends.cpu.kernels.kv_pages import KvPages
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.encoder_attention)
def _lower_encoder_attention(emitter: Emitter, call: Call) -> None:
    """Lower `encoder_attention`: scores may fall with distance, or have a number for each distance, and be windowed."""
    q, k, slopes, biases, half_window = (
        *call.args[:2],
        *(*call.args[4:], None, None)[:2],
        call.options.get("half_window"),
    )
    group = require_fixed(spec_of(q).shape[1]) // require_fixed(spec_of(k).shape[1])
    pages = KvPages(call.options["head_dim"], "f32")
    heads = AttentionShape(pages, group, slopes=slopes is not None, biases=biases is not None)
    fields: dict[str, Any] = {}
    if slopes is not None:
        fields["slopes"] = emitter.address(slopes)
    if biases is not None:
        fields |= {"biases": emitter.address(biases), "spread": require_fixed(spec_of(biases).shape[1])}
    if half_window is not None:
        fields["half_window"] = half_window
    emit_encoder_attention(emitter, call, heads, fields, windowed=half_window is not None)


def emit_encoder_attention(
    emitter: Emitter, call: Call, heads: AttentionShape, more: dict[str, Any], *, windowed: bool
) -> None:
    """Put keys and values into pages, which all layers share in turn, then run tiles of rows over them."""
    q, k, v, starts = call.args[:4]
    pages, target = heads.pages, emitter.context.target
    kv_heads = require_fixed(spec_of(k).shape[1]) // pages.head_dim
    count = kernels.max_pages(max_extent(spec_of(q).shape[0]), max_extent(spec_of(starts).shape[0]))
    shared: dict[str, Any] = {
        "page_bytes": pages.page_bytes(kv_heads),
        "starts": emitter.address(starts),
        "kv_heads": kv_heads,
    }
    shared["pages"] = emitter.shared_scratch(f"text pages of {pages.name}", count * pages.page_bytes(kv_heads))
    tiles = Cell(f"text tiles {emitter.context.register_sequences(starts, None)}")
    stored = {"k": emitter.address(k), "v": emitter.address(v), "kv_stride": row_stride(k)}
    emitter.emit(kernels.text_pages(target, heads), shared | stored, tiles, factor=kv_heads, grain=kv_heads)
    fields = shared | {"q": emitter.address(q), "q_stride": row_stride(q), "scale": float(call.options["scale"])}
    fields |= {"out": emitter.address(call.results[0]), "out_stride": row_stride(q)} | more
    emitter.emit(kernels.encoder_attention(target, heads, windowed=windowed), fields, tiles, factor=kv_heads)
