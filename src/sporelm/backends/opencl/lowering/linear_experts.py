"""Products with experts' matrices. Many pairs of a token and a slot are sorted by expert first, so that one matrix's
rows are unpacked once for several of them."""

from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Extents, ScaledExtent, Size
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, rows_of, width_of
from sporelm.backends.opencl.lowering.quantized_linear import (
    BATCH,
    count_group_rows,
    make_few_arguments,
    make_few_program,
)
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import spec_of

INT_BYTES = 4


def _has_all_experts(call: Call) -> bool:
    return call.options.get("first") is None


@lowers(ops.linear_experts, supports=_has_all_experts)
def lower_linear_experts(emit: LaunchEmitter, call: Call) -> None:
    x, weight, ids, *bias = call.args
    _multiply_pairs(emit, x, [weight], ids, bias[0] if bias else None, emit.get_result_buffer(call.results[0]))


@lowers(ops.linear_experts_silu_mul, supports=_has_all_experts)
def lower_linear_experts_silu_mul(emit: LaunchEmitter, call: Call) -> None:
    x, gate, up, ids = call.args
    _multiply_pairs(emit, x, [gate, up], ids, None, emit.get_result_buffer(call.results[0]))


def _multiply_pairs(emit: LaunchEmitter, x: Any, weights: list[Any], ids: Any, bias: Any, y: Any) -> None:
    """Add the launches for few pairs, and for many."""
    experts, rows, _ = spec_of(weights[0]).bound
    slots = width_of(ids)
    pairs, max_pairs = ScaledExtent(rows_of(ids), slots), spec_of(ids).bound[0] * slots
    offsets = None if bias is None else emit.get_f32_buffer(bias)
    chosen, numbers = emit.get_int_buffer(ids), emit.get_activation_buffer(x)
    shared = {"EXPERTS": True, "BIAS": bias is not None, "SLOTTED": len(spec_of(x).shape) == 3}
    local = emit.tuning.few_group
    routing = (chosen, np.int32(slots))

    def is_few(extents: Extents) -> bool:
        return pairs.value(extents) <= experts

    program = make_few_program(emit, x, weights, shared | {"TOKENS": 1}, "silu")
    row_items = -(-rows // count_group_rows(emit, x, weights, 1)) * local
    arguments = make_few_arguments(emit, numbers, x, weights, [offsets], [y], pairs, (*routing, None, None, None))
    emit.launch(program, "multiply_few", arguments, [row_items, pairs], [local, 1], is_few)
    if max_pairs <= experts:
        return
    # At most one tile of each expert is not full.
    max_tiles = -(-max_pairs // BATCH) + experts
    starts, order = emit.scratch((experts + 1) * INT_BYTES), emit.scratch(max_pairs * INT_BYTES)
    tiles, count = emit.scratch(max_tiles * 2 * INT_BYTES), emit.scratch(INT_BYTES)

    def is_many(extents: Extents) -> bool:
        return not is_few(extents)

    sorting = emit.make_program("expert_tiles", options={"TILE": BATCH})
    arguments = [chosen, starts, order, tiles, count, pairs, np.int32(experts)]
    emit.launch(sorting, "sort_pairs", arguments, [1], [1], is_many)
    program = make_few_program(emit, x, weights, shared | {"TOKENS": BATCH, "SORTED": True}, "silu")
    arguments = make_few_arguments(emit, numbers, x, weights, [offsets], [y], pairs, (*routing, order, tiles, count))
    row_items = -(-rows // count_group_rows(emit, x, weights, BATCH)) * local
    sizes: list[Size] = [row_items, lambda extents: -(-pairs.value(extents) // BATCH) + experts]
    emit.launch(program, "multiply_few", arguments, sizes, [local, 1], is_many)


@lowers(ops.combine_experts)
def lower_combine_experts(emit: LaunchEmitter, call: Call) -> None:
    y, weights, *bias = call.args
    (result,) = call.results
    slots, width = width_of(weights), width_of(result)
    arguments = [
        *(
            emit.get_activation_buffer(y),
            emit.get_f32_buffer(weights),
            emit.get_f32_buffer(bias[0]) if bias and bias[0] is not None else None,
        ),
        *(emit.get_result_buffer(result), ScaledExtent(rows_of(result)), np.int32(slots), np.int32(width)),
    ]
    program = emit.make_program("combine_experts", options={"BIAS": bool(bias) and bias[0] is not None})
    emit.launch(program, "combine_rows", arguments, [ScaledExtent(rows_of(result), width)])
