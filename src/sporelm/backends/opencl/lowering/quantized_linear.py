"""Products with packed weights.

Few tokens are multiplied as the weight is read: it is unpacked in registers. For more, slabs of rows are unpacked to
memory and multiplied in tiles. A step launches one of both, by its number of tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.device_tuning import DeviceTuning
from sporelm.backends.opencl.half_arithmetic import get_half_snippet
from sporelm.backends.opencl.integer_dots import DOT_FORMATS, list_dot_snippets
from sporelm.backends.opencl.kernel_launch import Extents, ScaledExtent, Size, extent_of
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, num_elements, rows_of
from sporelm.backends.opencl.lowering.elementwise import launch_elementwise_buffers
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.backends.opencl.weight_formats import RUN
from sporelm.ops import Call
from sporelm.ops.spec import Extent, Spec, spec_of

BATCH = 4  # tokens that one launch of few tokens multiplies at once, where there are several
MAX_GROUP = 3  # weights that one launch multiplies
NO_WEIGHT = [None, *[np.uint64(0)] * 3]
NO_EXPERTS = (None, np.int32(0), None, None, None)

Condition = Callable[[Extents], bool]


@lowers(ops.linear)
def lower_linear(emit: LaunchEmitter, call: Call) -> None:
    x, weight, *bias = call.args
    _multiply(emit, x, weight, bias[0] if bias else None, emit.get_result_buffer(call.results[0]))


@lowers(ops.linear_group)
def lower_linear_group(emit: LaunchEmitter, call: Call) -> None:
    x, weights, *biases = call.args
    given = (biases[0] if biases else ()) or [None] * len(weights)
    if not 2 <= len(weights) <= MAX_GROUP or len({bias is None for bias in given}) > 1:
        for weight, bias, result in zip(weights, given, call.results, strict=True):
            _multiply(emit, x, weight, bias, emit.get_result_buffer(result))
        return
    numbers = emit.get_activation_buffer(x)
    offsets = [None if bias is None else emit.get_f32_buffer(bias) for bias in given]
    results = [emit.get_result_buffer(result) for result in call.results]
    _launch_group(emit, numbers, x, list(weights), offsets, results)
    for weight, bias, result in zip(weights, offsets, results, strict=True):
        _launch_many(emit, numbers, x, weight, bias, result)


@lowers(ops.linear_silu_mul)
def lower_linear_silu_mul(emit: LaunchEmitter, call: Call) -> None:
    _multiply_gated(emit, call, "silu")


@lowers(ops.linear_activate_mul)
def lower_linear_activate_mul(emit: LaunchEmitter, call: Call) -> None:
    _multiply_gated(emit, call, call.options["kind"])


def _multiply(emit: LaunchEmitter, x: Any, weight: Any, bias: Any, y: Any) -> None:
    numbers = emit.get_activation_buffer(x)
    offsets = None if bias is None else emit.get_f32_buffer(bias)
    launch_few(emit, numbers, x, [weight], offsets, y)
    _launch_many(emit, numbers, x, weight, offsets, y)


def _multiply_gated(emit: LaunchEmitter, call: Call, kind: str) -> None:
    x, gate, up = call.args
    numbers, y = emit.get_activation_buffer(x), emit.get_result_buffer(call.results[0])
    launch_few(emit, numbers, x, [gate, up], None, y, kind=kind)
    tokens, rows = rows_of(x), spec_of(gate).bound[0]
    if not _can_be_many(emit, tokens):
        return
    nbytes = Spec((tokens, rows), emit.activation).bound[0] * rows * emit.activation.nbytes
    parts = [emit.scratch(nbytes), emit.scratch(nbytes)]
    for weight, part in zip((gate, up), parts, strict=True):
        _launch_many(emit, numbers, x, weight, None, part)
    launch_elementwise_buffers(
        emit, "activate_mul", (*parts, y), tokens, rows, kind=kind, condition=_is_many(emit, tokens)
    )


def _can_be_many(emit: LaunchEmitter, tokens: Extent) -> bool:
    return Spec((tokens,), emit.activation).bound[0] > emit.tuning.few_tokens


def _is_many(emit: LaunchEmitter, tokens: Extent) -> Condition:
    limit = emit.tuning.few_tokens
    return lambda extents: extent_of(tokens, extents) > limit


def launch_few(
    emit: LaunchEmitter,
    numbers: Any,
    x: Any,
    weights: list[Any],
    bias: Any,
    y: Any,
    *,
    kind: str = "linear",
) -> None:
    """Add the launches of a product of few tokens: one token, and several. Two weights: gate and up."""
    tokens, rows = rows_of(x), spec_of(weights[0]).bound[0]
    for batch, is_mine in list_few_batches(emit, tokens):
        program = make_few_program(emit, x, weights, {"TOKENS": batch, "BIAS": bias is not None}, kind)
        arguments = make_few_arguments(emit, numbers, x, weights, [bias], [y], ScaledExtent(tokens))
        local = emit.tuning.few_group
        sizes: list[Size] = [
            -(-rows // count_group_rows(emit, x, weights, batch)) * local,
            ScaledExtent(tokens, 1, batch),
        ]
        emit.launch(program, "multiply_few", arguments, sizes, [local, 1], is_mine)


def _launch_group(
    emit: LaunchEmitter, numbers: Any, x: Any, weights: list[Any], biases: list[Any], results: list[Any]
) -> None:
    """Add the launches of products of few tokens with two or three weights."""
    tokens, rows = rows_of(x), [spec_of(weight).bound[0] for weight in weights]
    local = emit.tuning.few_group
    for batch, is_mine in list_few_batches(emit, tokens):
        own_rows = count_group_rows(emit, x, weights[:1], batch)
        blocks = sum(-(-count // own_rows) for count in rows)
        options = {"TOKENS": batch, "BIAS": biases[0] is not None, "GROUPED": True}
        arguments = make_few_arguments(emit, numbers, x, weights, biases, results, ScaledExtent(tokens))
        sizes: list[Size] = [blocks * local, ScaledExtent(tokens, 1, batch)]
        program = make_few_program(emit, x, weights[:1], options, "linear")
        emit.launch(program, "multiply_few", arguments, sizes, [local, 1], is_mine)


def make_few_arguments(
    emit: LaunchEmitter,
    numbers: Any,
    x: Any,
    weights: list[Any],
    biases: list[Any],
    results: list[Any],
    tokens: ScaledExtent,
    experts: Sequence[Any] = NO_EXPERTS,
) -> list[Any]:
    """Return the arguments of multiply_few.

    weights  one; gate and up with one result; or a group with a bias and a result each
    experts  ids, slots, and of sorted pairs their order, tiles and the number of tiles
    """
    spare = MAX_GROUP - len(weights)
    packed = [emit.get_weight_arguments(weight) for weight in weights] + [NO_WEIGHT] * spare
    offsets, outputs = ([*each, None, None][:MAX_GROUP] for each in (biases, results))
    rows = [np.int32(spec_of(weight).bound[-2]) for weight in weights[: len(results)]] + [np.int32(0)] * MAX_GROUP
    return [
        *(numbers, *packed[0], *packed[1], offsets[0], outputs[0], tokens),
        *(np.int32(spec_of(weights[0]).bound[-1]), rows[0], *experts, *packed[2]),
        *(*offsets[1:], *outputs[1:], *rows[1:MAX_GROUP], num_rounded_values(x)),
    ]


def list_few_batches(emit: LaunchEmitter, tokens: Extent) -> list[tuple[int, Condition]]:
    """Return the tokens that a launch multiplies at once, and the condition for steps of that launch."""
    max_tokens, limit = Spec((tokens,), emit.activation).bound[0], emit.tuning.few_tokens

    def is_one(extents: Extents) -> bool:
        return extent_of(tokens, extents) == 1

    def is_several(extents: Extents) -> bool:
        return 1 < extent_of(tokens, extents) <= limit

    return [(1, is_one), (BATCH, is_several)] if max_tokens > 1 else [(1, is_one)]


def make_few_program(emit: LaunchEmitter, x: Any, weights: list[Any], options: dict[str, Any], kind: str) -> Any:
    """Return the program of a product of few tokens with weights of one format."""
    shared: dict[str, Any] = {"ROWS": count_item_rows(emit, x, weights, options["TOKENS"])}
    shared |= {"BLOCKS": emit.tuning.row_blocks} | make_scale_options(weights[0])
    snippets = [get_format_snippet(weights[0])]
    if len(weights) > 1:
        shared |= {"GATED": True, "ACT": f"act_{kind}", "ACTIVATED": "float"}
        snippets.append("activations.h")
    if emit.dot_kind is not None and uses_dots(emit, x, weights):
        shared["DOTS"] = True
        name = weights[0].storage.format.name.lower()
        snippets += [*list_dot_snippets(emit.dot_kind), "dots/rounded_rows.h", f"dots/{name}.h"]
    else:
        shared["RAGGED"] = spec_of(weights[0]).bound[-1] % RUN != 0
    return emit.make_program("linear_few", snippets, shared | options, local=emit.tuning.few_group)


def uses_dots(emit: LaunchEmitter, x: Any, weights: list[Any]) -> bool:
    """Return whether rows and weights are multiplied as integers."""
    return bool(emit.dot_kind) and emit.is_rounded(x) and weights[0].storage.format.name in DOT_FORMATS


def count_item_rows(emit: LaunchEmitter, x: Any, weights: list[Any], batch: int) -> int:
    """Return the rows of a weight that a work-item multiplies at once. Where integers are multiplied, fewer of several
    weights or with several tokens: each product has sums in registers."""
    if not uses_dots(emit, x, weights):
        return emit.tuning.few_rows
    return max(1, emit.tuning.dot_rows // (len(weights) * batch))


def count_group_rows(emit: LaunchEmitter, x: Any, weights: list[Any], batch: int) -> int:
    """Return the rows of a weight that a group multiplies."""
    return count_item_rows(emit, x, weights, batch) * emit.tuning.row_blocks


def num_rounded_values(x: Any) -> np.uint64:
    """Return the numbers of all rows, from which the places of their integers follow."""
    return np.uint64(num_elements(spec_of(x)))


def get_format_snippet(weight: Any) -> str:
    """Return the file that unpacks a packed weight."""
    return f"formats/{weight.storage.format.name.lower()}.h"


def make_scale_options(weight: Any) -> dict[str, Any]:
    """Return the option of programs that read a packed weight: whether its scales of blocks are float32."""
    return {"WIDE_SCALES": weight.storage.format.is_wide}


def list_half_snippets(tuning: DeviceTuning, half_arithmetic: str | None) -> list[str]:
    """Return the file of the arithmetic in half precision that products of many tokens use; [] without."""
    return [get_half_snippet(half_arithmetic)] if half_arithmetic is not None and tuning.half_products else []


def make_tile_options(tuning: DeviceTuning, half_arithmetic: str | None) -> dict[str, Any]:
    """Return the options of the product of many tokens."""
    group_panels, group_tokens = tuning.tile_group
    return {
        "HALVES": bool(list_half_snippets(tuning, half_arithmetic)),
        "TOKENS": tuning.tile_tokens,
        "VECTORS": tuning.tile_vectors,
        "PANEL": 16 * tuning.tile_vectors,
        "GROUP_TOKENS": group_tokens,
        "GROUP_PANELS": group_panels,
    }


def _launch_many(emit: LaunchEmitter, numbers: Any, x: Any, weight: Any, bias: Any, y: Any) -> None:
    """Add the launches of a product of many tokens: for each slab of rows, its unpacking and the product."""
    tokens, (rows, width) = rows_of(x), spec_of(weight).bound
    if not _can_be_many(emit, tokens):
        return
    tuning, runs = emit.tuning, -(-width // RUN)
    panel = 16 * tuning.tile_vectors
    panel_bytes = panel * runs * RUN * emit.activation.nbytes
    slab = max(1, min(tuning.slab_bytes // panel_bytes, -(-rows // panel))) * panel
    panels = emit.scratch(slab * runs * RUN * emit.activation.nbytes)
    unpacking = emit.make_program(
        "unpack_panels", [get_format_snippet(weight)], {"PANEL": panel} | make_scale_options(weight)
    )
    group_panels, group_tokens = tuning.tile_group
    options = make_tile_options(tuning, emit.half_arithmetic) | {"BIAS": bias is not None}
    product = emit.make_program("linear_many", list_half_snippets(tuning, emit.half_arithmetic), options)
    condition = _is_many(emit, tokens)
    for first in range(0, rows, slab):
        count = min(slab, rows - first)
        num_panels = -(-count // panel)
        arguments = [
            *(*emit.get_weight_arguments(weight), panels, np.int32(first), np.int32(count)),
            *(np.int32(runs), np.int32(num_panels * runs)),
        ]
        emit.launch(unpacking, "unpack_panels", arguments, [num_panels * runs], condition=condition)
        arguments = [
            *(numbers, panels, bias, y, ScaledExtent(tokens), np.int32(width), np.int32(runs * RUN)),
            *(np.int32(first), np.int32(count), np.int32(rows)),
        ]
        sizes: list[Size] = [ScaledExtent(tokens, 1, tuning.tile_tokens), num_panels]
        emit.launch(product, "multiply_tiles", arguments, sizes, [group_tokens, group_panels], condition)
