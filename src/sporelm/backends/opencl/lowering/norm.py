"""Norms: a group of work-items for each row, or for each head of a row."""

from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, num_elements, rows_of, width_of
from sporelm.backends.opencl.lowering.quantize_rows import rounded_group
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import spec_of


@lowers(ops.rms_norm, ops.add_rms_norm, ops.layer_norm, ops.add_layer_norm)
def lower_norm(emit: LaunchEmitter, call: Call) -> None:
    adds, is_rms = call.op.name.startswith("add_"), call.op.name.endswith("rms_norm")
    x, *rest = call.args
    residual = rest.pop(0) if adds else None
    weight, bias = (*rest, None, None)[:2]
    width, groups, period = _group_rows(width_of(x), weight)
    local = min(emit.tuning.row_group, 256)
    rounded, group = _find_rounding(emit, call, width)
    options = {
        "GROUP": group,
        "CODES": bool(emit.dot_kind),
        "RMS": is_rms,
        "ADD": adds,
        "SCALED": weight is not None,
        "BIAS": bias is not None,
    }
    program = emit.make_program("norm", ["rounding.h"] if group else [], options, local=local)
    arguments = [
        emit.get_activation_buffer(x),
        emit.get_activation_buffer(residual) if adds else None,
        None if weight is None else emit.get_f32_buffer(weight),
        None if bias is None else emit.get_f32_buffer(bias),
        emit.get_result_buffer(call.results[0]),
        emit.get_result_buffer(call.results[1]) if adds else None,
        rounded,
        np.int32(width),
        np.int32(period),
        np.float32(call.options["eps"]),
        np.uint64(num_elements(spec_of(x))),
    ]
    emit.launch(program, "norm_rows", arguments, [ScaledExtent(rows_of(x), groups * local)], [local])


def _find_rounding(emit: LaunchEmitter, call: Call, width: int) -> tuple[Any, int | None]:
    """Return the rounded rows' buffer and the numbers of a group, if the next call rounds the result: one launch does
    both. Heads of `width` numbers that are not whole groups are rounded by a launch of their own."""
    after = emit.following
    if after is None or after.op is not ops.quantize_rows or after.args[0] is not call.results[0]:
        return None, None
    if width % rounded_group(after):
        return None, None
    emit.take_following()
    return emit.get_result_buffer(after.results[0]), rounded_group(after)


def _group_rows(columns: int, weight: Any) -> tuple[int, int, int]:
    """Return the width of a normed group, the groups in a row, and the rows of the weight."""
    if weight is None:
        return columns, 1, 1
    *heads, width = spec_of(weight).bound
    return width, columns // width, heads[0] if heads else 1


@lowers(ops.group_norm)
def lower_group_norm(emit: LaunchEmitter, call: Call) -> None:
    x, weight, bias = call.args
    group, local = call.options["group"], min(emit.tuning.row_group, 256)
    groups = width_of(x) // group
    program = emit.make_program("norm", options={"SCALED": True, "BIAS_ROWS": True}, local=local)
    period = groups if width_of(weight) != group else 1
    arguments = [
        *(
            emit.get_activation_buffer(x),
            None,
            emit.get_f32_buffer(weight),
            emit.get_f32_buffer(bias),
            emit.get_result_buffer(call.results[0]),
            None,
            None,
        ),
        *(np.int32(group), np.int32(period), np.float32(call.options["eps"]), np.uint64(0)),
    ]
    emit.launch(program, "norm_rows", arguments, [ScaledExtent(rows_of(x), groups * local)], [local])
