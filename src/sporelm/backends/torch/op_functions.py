"""The registry of torch functions: each op's reference through plain torch, on tensors of any device.

A function lies in the file with the name of the op's file in `sporelm.ops`. No function names a device or depends on a
back-end, uses float64, or waits for the device. Indices may be int32. Shapes are those of the references in
`sporelm.ops`.

Real numbers are float32, float16 or bfloat16 (`number_types.py`). A function that is `is_narrow` takes all of these and
adds up in float32. Any other function computes in float32 only: its arguments are widened before it is called.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from sporelm.backends.op_modules import import_op_modules
from sporelm.ops import Op

OpFunction = TypeVar("OpFunction", bound=Callable[..., Any])

_REGISTERED: dict[str, Callable[..., Any]] = {}
_NARROW: set[str] = set()


def implements(op: Op, *, is_narrow: bool = False) -> Callable[[OpFunction], OpFunction]:
    """Register the function that computes an op. `is_narrow`: it takes float16 and bfloat16 as they are."""

    def register(function: OpFunction) -> OpFunction:
        _REGISTERED[op.name] = function
        if is_narrow:
            _NARROW.add(op.name)
        return function

    return register


@cache
def op_functions() -> Mapping[str, Callable[..., Any]]:
    """Return all functions by the op's name."""
    import_op_modules(__name__.rpartition(".")[0])
    return _REGISTERED


def takes_narrow_numbers(name: str) -> bool:
    """Return whether an op's function takes float16 and bfloat16."""
    return name in _NARROW
