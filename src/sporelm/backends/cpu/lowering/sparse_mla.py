"""Lowering of sparse multi-head latent attention."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import sparse_mla
from sporelm.backends.cpu.kernels.latent_rows import latent_split_shape
from sporelm.backends.cpu.kernels.paged_attention import SPLIT
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.page_layouts import latent_page_layout
from sporelm.backends.cpu.lowering.topk_indexer import FEW_TOKENS
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.sparse_mla)
def _lower_sparse_mla(emitter: Emitter, call: Call) -> None:
    """Lower `sparse_mla`: for few rows split the lists and merge the parts; for many, split the rows."""
    queries, q, cache, slots = call.args
    heads, target, (out,) = call.options["heads"], emitter.context.target, call.results
    tokens, limit = spec_of(slots).shape
    rank, head_dim = (require_fixed(spec_of(value).shape[1]) // heads for value in (queries, q))
    shape, cell = latent_split_shape(latent_page_layout(cache), rank, heads, head_dim), extent_cell(tokens)
    fields: dict[str, Any] = {
        "latent": emitter.address(queries),
        "latent_stride": row_stride(queries),
        "q": emitter.address(q),
    }
    fields |= {"q_stride": row_stride(q), "cache": emitter.address(cache), "page_bytes": cache.storage.stride}
    listed = {"chosen": emitter.address(slots), "chosen_stride": row_stride(slots)}
    fields |= listed | {"k": require_fixed(limit), "scale": float(call.options["scale"])}
    to = {"out": emitter.address(out), "out_stride": row_stride(out)}
    if max_extent(tokens) > FEW_TOKENS:
        emitter.emit(sparse_mla.sparse_mla_whole(target, shape), fields | to, cell, factor=shape.chunks)
        return
    splits = -(-require_fixed(limit) // SPLIT)
    nbytes = max_extent(tokens) * splits * heads * 4 * (shape.values.padded + 16)
    parts = {"parts": emitter.shared_scratch("chosen parts", nbytes), "splits": splits}
    emitter.emit(sparse_mla.sparse_mla_split(target, shape), fields | parts, cell, factor=splits * shape.chunks)
    grain = -(-heads // emitter.context.threads)
    emitter.emit(sparse_mla.sparse_mla_merge(target, shape), listed | parts | to, cell, factor=heads, grain=grain)
