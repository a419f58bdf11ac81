"""How the ops of sparse attention are lowered: keys of an indexer, what it chooses, and attention to that."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.entries import Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.kernels import chosen, indexer
from sporelm.backends.cpu.kernels.attention import SPLIT
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.latent_rows import split_shape
from sporelm.backends.cpu.storage import page_store
from sporelm.backends.cpu.team import SCRATCH
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.attention import PAGE
from sporelm.ops.spec import fixed, spec_of

FEW = 16  # tokens of a step, at most, whose positions are shared out among threads


def _pages(cache: Any) -> LatentPages:
    page_store(cache)
    return LatentPages(cache.shape[4], cache.dtype.name)


def _store_rows(low: Emitter, call: Call) -> None:
    x, cache, slots = call.args
    tokens = spec_of(x).shape[0]
    fields = {"x": low.at(x), "x_stride": stride_of(x), "cache": low.at(cache), "page_bytes": cache.storage.stride}
    kernel = chosen.store_rows(low.places.target, _pages(cache))
    low.emit(kernel, fields | {"slots": low.at(slots)}, cell_of(tokens), grain=low.row_grain(tokens))


def _choose_slots(low: Emitter, call: Call) -> None:
    """Of few rows the positions are shared out, and their scores lie in memory; of many the rows are."""
    q, weights, cache, starts, lengths, table = call.args
    tokens, heads = spec_of(weights).shape
    target, (out,) = low.places.target, call.results
    index, positions = indexer.Index(_pages(cache), fixed(heads)), fixed(spec_of(table).shape[1]) * PAGE
    fields: dict[str, Any] = {"q": low.at(q), "q_stride": stride_of(q), "weights": low.at(weights)}
    fields |= {"weights_stride": stride_of(weights), "cache": low.at(cache), "page_bytes": cache.storage.stride}
    fields |= {"starts": low.at(starts), "lengths": low.at(lengths), "table": low.at(table)}
    fields |= {"table_stride": stride_of(table), "k": call.options["k"]}
    to = {"out": low.at(out), "out_stride": stride_of(out)}
    if most(tokens) > FEW:
        kernel = indexer.score_and_choose(target, index, positions)
        if kernel.scratch > SCRATCH:
            room = positions - (kernel.scratch - SCRATCH + 3) // 4
            raise BackendError(f"an indexer scores at most {room} positions, not {positions}; lower --max-context")
        low.emit(kernel, fields | to, cell_of(tokens))
        return
    spans = -(-positions // indexer.SPAN)
    keys = {"keys": low.shared("index keys", most(tokens) * positions * 4), "keys_stride": positions * 4}
    low.emit(indexer.index_scores(target, index), fields | keys | {"spans": spans}, cell_of(tokens), factor=spans)
    low.emit(indexer.choose_slots(target, index), fields | keys | to, cell_of(tokens))


def _chosen_attention(low: Emitter, call: Call) -> None:
    """Of few rows the lists are shared out in splits, and merged; of many the rows are."""
    queries, q, cache, slots = call.args
    heads, target, (out,) = call.options["heads"], low.places.target, call.results
    tokens, limit = spec_of(slots).shape
    rank, head_dim = (fixed(spec_of(value).shape[1]) // heads for value in (queries, q))
    shape, cell = split_shape(_pages(cache), rank, heads, head_dim), cell_of(tokens)
    fields: dict[str, Any] = {"latent": low.at(queries), "latent_stride": stride_of(queries), "q": low.at(q)}
    fields |= {"q_stride": stride_of(q), "cache": low.at(cache), "page_bytes": cache.storage.stride}
    listed = {"chosen": low.at(slots), "chosen_stride": stride_of(slots)}
    fields |= listed | {"k": fixed(limit), "scale": float(call.options["scale"])}
    to = {"out": low.at(out), "out_stride": stride_of(out)}
    if most(tokens) > FEW:
        low.emit(chosen.chosen_whole(target, shape), fields | to, cell, factor=shape.chunks)
        return
    splits = -(-fixed(limit) // SPLIT)
    nbytes = most(tokens) * splits * heads * 4 * (shape.values.padded + 16)
    parts = {"parts": low.shared("chosen parts", nbytes), "splits": splits}
    low.emit(chosen.chosen_split(target, shape), fields | parts, cell, factor=splits * shape.chunks)
    grain = -(-heads // low.places.threads)
    low.emit(chosen.chosen_merge(target, shape), listed | parts | to, cell, factor=heads, grain=grain)


RULES: dict[str, Callable[[Any, Call], None]] = {
    "store_rows": _store_rows,
    "choose_slots": _choose_slots,
    "chosen_attention": _chosen_attention,
}
