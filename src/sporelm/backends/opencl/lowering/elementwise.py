"""Elementwise ops of two arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import Extents, ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, columns_of, rows_of
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import Extent


def launch_elementwise(
    emit: LaunchEmitter,
    call: Call,
    function: str,
    second: Any = None,
    *,
    kind: str = "linear",
    a: float = 0.0,
    b: float = 0.0,
) -> None:
    """Add the launch of `function` of `kernels/elementwise.cl` on a call's first argument."""
    x = call.args[0]
    z = None if second is None else emit.get_activation_buffer(second)
    numbers = (emit.get_activation_buffer(x), z, emit.get_result_buffer(call.results[0]))
    launch_elementwise_buffers(emit, function, numbers, rows_of(x), columns_of(x), kind=kind, a=a, b=b)


def launch_elementwise_buffers(
    emit: LaunchEmitter,
    function: str,
    numbers: tuple[Any, Any, Any],
    rows: Extent,
    columns: int,
    *,
    kind: str = "linear",
    a: float = 0.0,
    b: float = 0.0,
    condition: Callable[[Extents], bool] | None = None,
) -> None:
    """Add the launch of `function` on buffers x, z (or None) and y of [rows, columns]."""
    options = {
        "FUNCTION": f"fun_{function}",
        "ACT": f"act_{kind}",
        "BINARY": numbers[1] is not None,
        "ACTIVATED": "floatv",
    }
    count, vector = ScaledExtent(rows, columns), emit.tuning.vector
    emit.launch(
        emit.make_program("elementwise", ["activations.h"], options),
        "map_numbers",
        [*numbers, count, np.float32(a), np.float32(b)],
        [lambda extents: -(-count.value(extents) // vector)],
        condition=condition,
    )


@lowers(ops.add)
def lower_add(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "add", call.args[1])


@lowers(ops.silu_mul)
def lower_silu_mul(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "activate_mul", call.args[1], kind="silu")


@lowers(ops.clamped_swiglu)
def lower_clamped_swiglu(emit: LaunchEmitter, call: Call) -> None:
    limits = {"a": call.options["alpha"], "b": call.options["limit"]}
    launch_elementwise(emit, call, "clamped_swiglu", call.args[1], **limits)
