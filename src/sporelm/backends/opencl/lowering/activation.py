"""Activation functions, alone and as gates, and other functions of single numbers."""

from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.opencl.kernel_launch import ScaledExtent
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, columns_of, rows_of
from sporelm.backends.opencl.lowering.elementwise import launch_elementwise
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call


@lowers(ops.activate)
def lower_activate(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "activate", kind=call.options["kind"])


@lowers(ops.activate_mul)
def lower_activate_mul(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "activate_mul", call.args[1], kind=call.options["kind"])


@lowers(ops.scale)
def lower_scale(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "scale", a=call.options["factor"])


@lowers(ops.softcap)
def lower_softcap(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "softcap", a=call.options["cap"])


@lowers(ops.clip)
def lower_clip(emit: LaunchEmitter, call: Call) -> None:
    launch_elementwise(emit, call, "clip", a=call.options["limit"])


@lowers(ops.scale_by)
def lower_scale_by(emit: LaunchEmitter, call: Call) -> None:
    _launch_with_parameters(emit, call, "scale_numbers")


@lowers(ops.xielu)
def lower_xielu(emit: LaunchEmitter, call: Call) -> None:
    _launch_with_parameters(emit, call, "apply_xielu", np.int32(call.options["layer"]))


def _launch_with_parameters(emit: LaunchEmitter, call: Call, kernel: str, *numbers: Any) -> None:
    """Add the launch of a kernel whose parameters are tensors."""
    x, *parameters = call.args
    count = ScaledExtent(rows_of(x), columns_of(x))
    arguments = [
        emit.get_activation_buffer(x),
        *map(emit.get_f32_buffer, parameters),
        emit.get_result_buffer(call.results[0]),
        count,
        *numbers,
    ]
    emit.launch(emit.make_program("activation", ["activations.h"], {"ACTIVATED": "float"}), kernel, arguments, [count])
