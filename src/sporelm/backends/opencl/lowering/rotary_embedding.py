"""Rotary embedding, alone and with the store of keys and values."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.lowering.page_layout import has_even_heads, list_page_snippets, make_page_options
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


def _rope_options(options: Mapping[str, Any], positions: Any, table: Any) -> dict[str, Any]:
    """Return the options of the program for a rope call's options."""
    streams = options.get("streams")
    return {
        "HEAD_DIM": options["head_dim"],
        "ROTARY": spec_of(table).bound[1],
        f"STYLE_{options['style'].upper()}": True,
        "STREAMS": None if streams is None else spec_of(positions).bound[1],
    }


def _streams(emit: LaunchEmitter, options: Mapping[str, Any]) -> Any:
    streams = options.get("streams")
    return None if streams is None else emit.constant(np.array(streams, np.int32))


@lowers(ops.rope)
def lower_rope(emit: LaunchEmitter, call: Call) -> None:
    x, positions, table = call.args
    heads = width_of(x) // call.options["head_dim"]
    program = emit.make_program("rotary_embedding", options=_rope_options(call.options, positions, table))
    arguments = [
        *(
            emit.get_activation_buffer(x),
            emit.get_int_buffer(positions),
            emit.get_f32_buffer(table),
            _streams(emit, call.options),
        ),
        *(emit.get_result_buffer(call.results[0]), ScaledExtent(rows_of(x)), np.int32(heads)),
    ]
    emit.launch(program, "rotate_heads", arguments, [ScaledExtent(rows_of(x), heads)])


@lowers(ops.rope_store, supports=lambda call: has_even_heads(call.args[5]))
def lower_rope_store(emit: LaunchEmitter, call: Call) -> None:
    q, k, v, positions, table, cache, slots = call.args
    head_dim, kv_heads = call.options["head_dim"], spec_of(cache).bound[2]
    if spec_of(cache).bound[4] != head_dim:  # the cache has other heads than the rotation
        _store_rotated(emit, call)
        return
    q_heads = width_of(q) // head_dim
    options = _rope_options(call.options, positions, table) | make_page_options(cache) | {"STORE_KV": True}
    program = emit.make_program("rotary_embedding", list_page_snippets(cache), options)
    arguments = [
        *(
            emit.get_activation_buffer(q),
            emit.get_activation_buffer(k),
            emit.get_activation_buffer(v),
            emit.get_int_buffer(positions),
            emit.get_f32_buffer(table),
        ),
        *(
            _streams(emit, call.options),
            emit.get_int_buffer(slots),
            emit.get_page_buffer(cache),
            emit.get_result_buffer(call.results[0]),
        ),
        *(ScaledExtent(rows_of(q)), np.int32(q_heads), np.int32(kv_heads)),
    ]
    emit.launch(program, "rotate_and_store", arguments, [ScaledExtent(rows_of(q), q_heads + 2 * kv_heads)])


def _store_rotated(emit: LaunchEmitter, call: Call) -> None:
    """Add rotations of queries and keys, and the store of keys and values as heads of another size."""
    q, k, v, positions, table, cache, slots = call.args
    head_dim = call.options["head_dim"]
    program = emit.make_program("rotary_embedding", options=_rope_options(call.options, positions, table))
    keys = emit.scratch(spec_of(k).bound[0] * width_of(k) * emit.activation.nbytes)
    shared = [emit.get_int_buffer(positions), emit.get_f32_buffer(table), _streams(emit, call.options)]
    for x, y in ((q, emit.get_result_buffer(call.results[0])), (k, keys)):
        heads = width_of(x) // head_dim
        arguments = [emit.get_activation_buffer(x), *shared, y, ScaledExtent(rows_of(x)), np.int32(heads)]
        emit.launch(program, "rotate_heads", arguments, [ScaledExtent(rows_of(x), heads)])
    launch_store(emit, keys, emit.get_activation_buffer(v), cache, slots)


def launch_store(emit: LaunchEmitter, keys: Any, values: Any, cache: Any, slots: Any) -> None:
    """Add the store of keys and values, buffers of the activation type, to the slots of a cache."""
    kv_heads = spec_of(cache).bound[2]
    program = emit.make_program("store_kv", list_page_snippets(cache), make_page_options(cache))
    arguments = [
        keys,
        values,
        emit.get_int_buffer(slots),
        emit.get_page_buffer(cache),
        ScaledExtent(rows_of(slots)),
        np.int32(kv_heads),
    ]
    emit.launch(program, "store_heads", arguments, [ScaledExtent(rows_of(slots), 2 * kv_heads)])
