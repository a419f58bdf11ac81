"""The numpy reference as fallback where a back-end has no kernel, and the preparation of an op's arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sporelm.backends.protocol import Backend
from sporelm.errors import BackendError, UnsupportedOp
from sporelm.ops import Op
from sporelm.ops.op import leaves
from sporelm.ops.quantize_rows import QuantizedRows
from sporelm.tensor.tensor import Tensor

ReadValue = Callable[[Any], Any]


def map_values(args: Sequence[Any], change: ReadValue) -> tuple[Any, ...]:
    """Return the arguments with each value changed, also those in tuples. Absent ones stay absent."""
    return tuple(
        map_values(arg, change) if isinstance(arg, tuple) else None if arg is None else change(arg) for arg in args
    )


def substitute_values(args: Sequence[Any], values: Mapping[int, Any]) -> tuple[Any, ...]:
    """Return the arguments with each value replaced whose id is in `values`."""
    return map_values(args, lambda value: values.get(id(value), value))


def contiguous_arguments(backend: Backend, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of an op with each tensor copied that is a view.

    Raises BackendError for a view of a packed weight or of a cache, and for a view that the op changes in place.
    """
    settled = map_values(args, backend.contiguous)
    check_updates(op, args, settled)
    return settled


def check_updates(op: Op, args: Sequence[Any], settled: Sequence[Any]) -> None:
    """Raise BackendError if an argument that the op changes in place was copied: the copy would be changed."""
    for index in op.updates:
        if settled[index] is not args[index]:
            raise BackendError(f"{op.name} changes {args[index]} in place, which is a view; pass the whole tensor")


def run_reference(op: Op, args: Sequence[Any], options: Mapping[str, Any], read: ReadValue) -> tuple[Any, ...]:
    """Return the results of an op's numpy reference, always as a tuple. `read` gives the array of each argument."""
    results = op.reference(*map_values(args, read), **options)
    return results if isinstance(results, tuple) and not isinstance(results, QuantizedRows) else (results,)


def check_fallback(backend: Backend, op: Op, args: Sequence[Any]) -> None:
    """Raise UnsupportedOp unless the reference can and may run an op for which the back-end has no kernel.

    It may unless the back-end is `strict`. It needs values with plain layouts: not packed weights, caches or rounded
    rows. It cannot change an argument in place.
    """
    if getattr(backend, "strict", False):
        reason = "its reference would run it on the CPU, which the option strict does not allow"
        raise UnsupportedOp(f"{backend.name} has no kernel for {op.name}: {reason}. Leave out the option strict.")
    remedy = f"Set the option backend to {'reference' if backend.name == 'cpu' else 'cpu'}."
    wanted = f"{backend.name} has no kernel for {op.name}, and its reference cannot replace one"
    if op.updates:
        raise UnsupportedOp(f"{wanted}: the op changes a cache or another argument in place. {remedy}")
    for value in leaves(args):
        if isinstance(value, Tensor) and not backend.is_plain(value):
            raise UnsupportedOp(f"{wanted}: {value} cannot be read as an array. {remedy}")


def run_fallback(backend: Backend, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Run an op of real tensors by its reference: values to numpy and back. Raise UnsupportedOp as
    `check_fallback` does."""
    check_fallback(backend, op, args)
    results = tuple(backend.tensor(array) for array in run_reference(op, args, options, backend.to_numpy))
    return results[0] if len(results) == 1 else results or None
