"""The store of keys and values, and attention to them."""

from math import gcd

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Extents, ScaledExtent, Size, extent_of
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.lowering.page_layout import has_even_heads, list_page_snippets, make_page_options
from sporelm.backends.opencl.lowering.rotary_embedding import launch_store
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.store_kv, supports=lambda call: has_even_heads(call.args[2]))
def lower_store_kv(emit: LaunchEmitter, call: Call) -> None:
    k, v, cache, slots = call.args
    launch_store(emit, emit.get_activation_buffer(k), emit.get_activation_buffer(v), cache, slots)


@lowers(ops.attention, supports=lambda call: has_even_heads(call.args[1]))
def lower_attention(emit: LaunchEmitter, call: Call) -> None:
    """Add two launches: where each sequence has one row, one of it attends at once, else several."""
    q, cache, starts, lengths, pages, sinks, slopes, spans = (*call.args, None, None, None)[:8]
    kv_heads, head_dim = spec_of(cache).bound[2], spec_of(cache).bound[4]
    heads = width_of(q) // head_dim
    options = {
        "WINDOW": call.options.get("window"),
        "CHUNK": call.options.get("chunk"),
        "SOFTCAP": call.options.get("softcap") is not None,
        "SINKS": sinks is not None,
        "SLOPES": slopes is not None,
        "SPANS": spans is not None,
    }
    arguments = [
        *(
            emit.get_activation_buffer(q),
            emit.get_page_buffer(cache),
            emit.get_int_buffer(starts),
            emit.get_int_buffer(lengths),
            emit.get_int_buffer(pages),
        ),
        *(
            None if sinks is None else emit.get_f32_buffer(sinks),
            None if slopes is None else emit.get_f32_buffer(slopes),
        ),
        *(None if spans is None else emit.get_int_buffer(spans), emit.get_result_buffer(call.results[0])),
        *(ScaledExtent(rows_of(lengths)), np.int32(spec_of(pages).bound[1]), np.int32(heads), np.int32(kv_heads)),
        *(np.float32(call.options["scale"]), np.float32(call.options.get("softcap") or 0)),
    ]
    rows, local = emit.tuning.attention_rows, emit.tuning.attention_group
    shared_heads = gcd(heads // kv_heads, rows)
    tokens, sequences = rows_of(q), rows_of(lengths)
    for tile_tokens, tile_heads in {(1, shared_heads): None, (max(1, rows // shared_heads), shared_heads): None}:

        def is_mine(extents: Extents, tile_tokens: int = tile_tokens) -> bool:
            few = rows == shared_heads or extent_of(tokens, extents) <= extent_of(sequences, extents)
            return few == (tile_tokens == 1)

        def count_tiles(extents: Extents, tile_tokens: int = tile_tokens) -> int:
            """Return at least as many tiles as the sequences have, whatever their rows are."""
            count = extent_of(tokens, extents)
            spare = 0 if tile_tokens == 1 else extent_of(sequences, extents)
            return (-(-count // tile_tokens) + spare) * local

        tile = {"TILE_TOKENS": tile_tokens, "TILE_HEADS": tile_heads}
        program = emit.make_program(
            "paged_attention", list_page_snippets(cache), options | tile | make_page_options(cache), local=local
        )
        sizes: list[Size] = [count_tiles, heads // tile_heads]
        emit.launch(program, "attend_rows", arguments, sizes, [local, 1], is_mine)
