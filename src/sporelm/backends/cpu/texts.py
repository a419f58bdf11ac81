"""How ops on whole texts are lowered: their attention, and the mean of their rows."""

from typing import Any

import numpy as np

from sporelm.backends.cpu.entries import Cell, Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.kernels import mean_rows as means
from sporelm.backends.cpu.kernels import text_attention as kernels
from sporelm.backends.cpu.kernels.attention_page import Heads
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.ops import Call
from sporelm.ops.apart import columns_of
from sporelm.ops.spec import fixed, spec_of


def text_attention(low: Emitter, call: Call) -> None:
    """Scores may fall with distance, or have a number for each, and be of a window."""
    q, k, slopes, biases, reach = *call.args[:2], *(*call.args[4:], None, None)[:2], call.options.get("reach")
    group = fixed(spec_of(q).shape[1]) // fixed(spec_of(k).shape[1])
    pages = Pages(call.options["head_dim"], "f32")
    heads = Heads(pages, group, slopes=slopes is not None, biases=biases is not None)
    fields: dict[str, Any] = {}
    if slopes is not None:
        fields["slopes"] = low.at(slopes)
    if biases is not None:
        fields |= {"biases": low.at(biases), "spread": fixed(spec_of(biases).shape[1])}
    if reach is not None:
        fields["reach"] = reach
    _attention(low, call, heads, fields, windowed=reach is not None)


def apart_attention(low: Emitter, call: Call) -> None:
    """The columns of all distances that a step can have are a table of the program."""
    q, of_rows, of_keys, buckets = call.args[0], *call.args[4:], call.options["buckets"]
    far = most(spec_of(q).shape[0])
    columns = columns_of(np.arange(-far, far), buckets, call.options["farthest"]) * 4
    fields = {"of_rows": low.at(of_rows), "of_keys": low.at(of_keys), "apart_stride": stride_of(of_rows)}
    fields |= {"apart_bytes": 8 * buckets, "columns": low.places.words(columns.tolist()) + 8 * far}
    _attention(low, call, Heads(Pages(call.options["head_dim"], "f32"), 1, apart=True), fields, windowed=False)


def _attention(low: Emitter, call: Call, heads: Heads, more: dict[str, Any], *, windowed: bool) -> None:
    """Keys and values into pages, which all layers have in turn, then tiles of rows over them."""
    q, k, v, starts = call.args[:4]
    pages, target = heads.pages, low.places.target
    kv_heads = fixed(spec_of(k).shape[1]) // pages.head_dim
    count = kernels.most_pages(most(spec_of(q).shape[0]), most(spec_of(starts).shape[0]))
    shared: dict[str, Any] = {"page_bytes": pages.page_bytes(kv_heads), "starts": low.at(starts), "kv_heads": kv_heads}
    shared["pages"] = low.shared(f"text pages of {pages.name}", count * pages.page_bytes(kv_heads))
    tiles = Cell(f"text tiles {low.places.attended(starts, None)}")
    stored = {"k": low.at(k), "v": low.at(v), "kv_stride": stride_of(k)}
    low.emit(kernels.text_pages(target, heads), shared | stored, tiles, factor=kv_heads, grain=kv_heads)
    fields = shared | {"q": low.at(q), "q_stride": stride_of(q), "scale": float(call.options["scale"])}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(q)} | more
    low.emit(kernels.text_attention(target, heads, windowed=windowed), fields, tiles, factor=kv_heads)


def mean_rows(low: Emitter, call: Call) -> None:
    """An item is a text."""
    x, firsts, stops = call.args
    fields = {"x": low.at(x), "stride": stride_of(x), "vectors": low.vectors(fixed(spec_of(x).shape[1]))}
    fields |= {"firsts": low.at(firsts), "stops": low.at(stops), "out": low.at(call.results[0])}
    low.emit(means.mean_rows(low.places.target), fields, cell_of(spec_of(firsts).shape[0]))
