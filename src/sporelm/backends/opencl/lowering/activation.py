"""Activation functions, alone and as gates, and other functions of single numbers."""

from sporelm import ops
from sporelm.backends.opencl.launch_emitter import LaunchEmitter
from sporelm.backends.opencl.lowering.elementwise import map_numbers
from sporelm.backends.opencl.op_lowering import lowers
from sporelm.ops import Call


@lowers(ops.activate)
def lower_activate(emit: LaunchEmitter, call: Call) -> None:
    map_numbers(emit, call, "activate", kind=call.options["kind"])


@lowers(ops.activate_mul)
def lower_activate_mul(emit: LaunchEmitter, call: Call) -> None:
    map_numbers(emit, call, "activate_mul", call.args[1], kind=call.options["kind"])


@lowers(ops.scale)
def lower_scale(emit: LaunchEmitter, call: Call) -> None:
    map_numbers(emit, call, "scale", a=call.options["factor"])


@lowers(ops.softcap)
def lower_softcap(emit: LaunchEmitter, call: Call) -> None:
    map_numbers(emit, call, "softcap", a=call.options["cap"])


@lowers(ops.clip)
def lower_clip(emit: LaunchEmitter, call: Call) -> None:
    map_numbers(emit, call, "clip", a=call.options["limit"])
