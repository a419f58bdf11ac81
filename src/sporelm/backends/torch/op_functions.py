"""The registry of torch functions: each op's reference through plain torch, on tensors of any device.

A function lies in the file with the name of the op's file in `sporelm.ops`. No function names a device or depends on a
back-end. None waits for the device, except prompts of models with experts (`linear_experts.py`). Indices may be int32.
Shapes are those of the references in `sporelm.ops`.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from sporelm.backends.op_modules import import_op_modules
from sporelm.ops import Op

OpFunction = TypeVar("OpFunction", bound=Callable[..., Any])

_REGISTERED: dict[str, Callable[..., Any]] = {}


def implements(op: Op) -> Callable[[OpFunction], OpFunction]:
    """Register the function that computes an op."""

    def register(function: OpFunction) -> OpFunction:
        _REGISTERED[op.name] = function
        return function

    return register


@cache
def op_functions() -> Mapping[str, Callable[..., Any]]:
    """Return all functions by the op's name."""
    import_op_modules(__name__.rpartition(".")[0])
    return _REGISTERED
