"""The registry of functions that launch Triton kernels. Ops without one are computed by plain torch.

A function is in the file with the name of the op's file in `sporelm.ops`. It takes and returns the same as torch's
function for the op (`backends/torch/op_functions.py`): tensors of the device, 16-bit floats without conversion.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from sporelm.backends.op_modules import import_op_modules
from sporelm.backends.torch.op_functions import op_functions as torch_functions
from sporelm.ops import Op

OpFunction = TypeVar("OpFunction", bound=Callable[..., Any])

_REGISTERED: dict[str, Callable[..., Any]] = {}


def launches(op: Op) -> Callable[[OpFunction], OpFunction]:
    """Register the function that computes an op with kernels."""

    def register(function: OpFunction) -> OpFunction:
        _REGISTERED[op.name] = function
        return function

    return register


@cache
def own_functions() -> Mapping[str, Callable[..., Any]]:
    """Return the functions that launch kernels by the op's name."""
    import_op_modules(__name__.rpartition(".")[0])
    return _REGISTERED


@cache
def op_functions() -> Mapping[str, Callable[..., Any]]:
    """Return the functions of all ops by the op's name: kernels where there are some, else plain torch."""
    return {**torch_functions(), **own_functions()}


def list_plain_ops() -> list[str]:
    """Return the names of the ops that plain torch computes."""
    return sorted(torch_functions().keys() - own_functions().keys())
