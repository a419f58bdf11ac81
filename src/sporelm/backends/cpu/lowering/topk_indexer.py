"""Lowering of the top-k indexer."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import topk_indexer
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.page_layouts import latent_page_layout
from sporelm.backends.cpu.runtime.thread_pool import SCRATCH_BYTES
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.spec import require_fixed, spec_of

FEW_TOKENS = 16  # maximum tokens of a step whose positions are split among threads


@lowers(ops.store_rows)
def _lower_store_rows(emitter: Emitter, call: Call) -> None:
    x, cache, slots = call.args
    tokens = spec_of(x).shape[0]
    fields = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "cache": emitter.address(cache),
        "page_bytes": cache.storage.stride,
    }
    kernel = topk_indexer.store_rows(emitter.context.target, latent_page_layout(cache))
    emitter.emit(
        kernel, fields | {"slots": emitter.address(slots)}, extent_cell(tokens), grain=emitter.row_grain(tokens)
    )


@lowers(ops.topk_indexer)
def _lower_topk_indexer(emitter: Emitter, call: Call) -> None:
    """Lower `topk_indexer`: for few rows split the positions and keep their scores in memory; for many, split the
    rows."""
    q, weights, cache, starts, lengths, table = call.args
    tokens, heads = spec_of(weights).shape
    target, (out,) = emitter.context.target, call.results
    index, positions = (
        topk_indexer.IndexerShape(latent_page_layout(cache), require_fixed(heads)),
        require_fixed(spec_of(table).shape[1]) * PAGE,
    )
    fields: dict[str, Any] = {"q": emitter.address(q), "q_stride": row_stride(q), "weights": emitter.address(weights)}
    fields |= {
        "weights_stride": row_stride(weights),
        "cache": emitter.address(cache),
        "page_bytes": cache.storage.stride,
    }
    fields |= {"starts": emitter.address(starts), "lengths": emitter.address(lengths), "table": emitter.address(table)}
    fields |= {"table_stride": row_stride(table), "k": call.options["k"]}
    to = {"out": emitter.address(out), "out_stride": row_stride(out)}
    if max_extent(tokens) > FEW_TOKENS:
        kernel = topk_indexer.score_and_select(target, index, positions)
        if kernel.scratch > SCRATCH_BYTES:
            room = positions - (kernel.scratch - SCRATCH_BYTES + 3) // 4
            raise BackendError(
                f"topk_indexer: too many positions (got {positions}; at most {room}). Lower the option max_context."
            )
        emitter.emit(kernel, fields | to, extent_cell(tokens))
        return
    spans = -(-positions // topk_indexer.POSITIONS_PER_ITEM)
    keys = {
        "keys": emitter.shared_scratch("index keys", max_extent(tokens) * positions * 4),
        "keys_stride": positions * 4,
    }
    emitter.emit(
        topk_indexer.index_scores(target, index), fields | keys | {"spans": spans}, extent_cell(tokens), factor=spans
    )
    emitter.emit(topk_indexer.select_slots(target, index), fields | keys | to, extent_cell(tokens))
