"""How ops on whole texts are lowered: their attention, and the mean of their rows."""

from typing import Any

from sporelm.backends.cpu.entries import Cell, Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.kernels import mean_rows as means
from sporelm.backends.cpu.kernels import text_attention as kernels
from sporelm.backends.cpu.kernels.attention_page import Heads
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of


def text_attention(low: Emitter, call: Call) -> None:
    """Keys and values into pages, which all layers have in turn, then tiles of rows over them."""
    q, k, v, starts, slopes, biases = (*call.args, None, None)[:6]
    head_dim, reach, target = call.options["head_dim"], call.options.get("reach"), low.places.target
    kv_heads = fixed(spec_of(k).shape[1]) // head_dim
    pages = Pages(head_dim, "f32")
    group, extras = fixed(spec_of(q).shape[1]) // (head_dim * kv_heads), (slopes is not None, biases is not None)
    heads = Heads(pages, group, slopes=extras[0], biases=extras[1])
    count = kernels.most_pages(most(spec_of(q).shape[0]), most(spec_of(starts).shape[0]))
    shared: dict[str, Any] = {"page_bytes": pages.page_bytes(kv_heads), "starts": low.at(starts), "kv_heads": kv_heads}
    shared["pages"] = low.shared(f"text pages of {pages.name}", count * pages.page_bytes(kv_heads))
    tiles = Cell(f"text tiles {low.places.attended(starts, None)}")
    stored = {"k": low.at(k), "v": low.at(v), "kv_stride": stride_of(k)}
    low.emit(kernels.text_pages(target, heads), shared | stored, tiles, factor=kv_heads, grain=kv_heads)
    fields = shared | {"q": low.at(q), "q_stride": stride_of(q), "scale": float(call.options["scale"])}
    fields |= {"out": low.at(call.results[0]), "out_stride": stride_of(q)}
    if slopes is not None:
        fields["slopes"] = low.at(slopes)
    if biases is not None:
        fields |= {"biases": low.at(biases), "spread": fixed(spec_of(biases).shape[1])}
    if reach is not None:
        fields["reach"] = reach
    low.emit(kernels.text_attention(target, heads, windowed=reach is not None), fields, tiles, factor=kv_heads)


def mean_rows(low: Emitter, call: Call) -> None:
    """An item is a text."""
    x, firsts, stops = call.args
    fields = {"x": low.at(x), "stride": stride_of(x), "vectors": low.vectors(fixed(spec_of(x).shape[1]))}
    fields |= {"firsts": low.at(firsts), "stops": low.at(stops), "out": low.at(call.results[0])}
    low.emit(means.mean_rows(low.places.target), fields, cell_of(spec_of(firsts).shape[0]))
