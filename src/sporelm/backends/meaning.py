"""Ops run by their numpy meaning where a back-end has no kernel, and the door through which their arguments come."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sporelm.backends.backend import Backend
from sporelm.errors import BackendError
from sporelm.ops import Op
from sporelm.ops.linear import QuantizedRows
from sporelm.ops.op import leaves
from sporelm.tensor.tensor import Tensor

Read = Callable[[Any], Any]


def mapped(args: Sequence[Any], change: Read) -> tuple[Any, ...]:
    """The arguments with each value changed, those in tuples too; absent ones stay absent."""
    return tuple(
        mapped(arg, change) if isinstance(arg, tuple) else None if arg is None else change(arg) for arg in args
    )


def substituted(args: Sequence[Any], values: Mapping[int, Any]) -> tuple[Any, ...]:
    """The arguments with each value that `values` knows by its id replaced."""
    return mapped(args, lambda value: values.get(id(value), value))


def contiguous_arguments(backend: Backend, op: Op, args: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors among the arguments of an op, each that is seen through a view copied.

    Raises BackendError for a view of a packed weight or of a cache, and for one that the op changes in place.
    """
    settled = mapped(args, backend.contiguous)
    check_updates(op, args, settled)
    return settled


def check_updates(op: Op, args: Sequence[Any], settled: Sequence[Any]) -> None:
    """Raise BackendError if an argument that the op changes in place was copied: the copy would be changed."""
    for index in op.updates:
        if settled[index] is not args[index]:
            raise BackendError(f"{op.name} changes {args[index]} in place, which is a view; pass the whole tensor")


def by_meaning(op: Op, args: Sequence[Any], options: Mapping[str, Any], read: Read) -> tuple[Any, ...]:
    """The results, always as a tuple, of an op's numpy meaning on what `read` gives for each argument."""
    results = op.meaning(*mapped(args, read), **options)
    return results if isinstance(results, tuple) and not isinstance(results, QuantizedRows) else (results,)


def check_gap(backend: Backend, op: Op, args: Sequence[Any]) -> None:
    """Raise BackendError unless the reference can stand in for an op that the back-end has no kernel for.

    It can on values with plain layouts: not on packed weights, caches and rounded rows, and not where the op changes
    an argument in place.
    """
    wanted = f"{backend.name} has no kernel for {op.name}, and the reference cannot stand in"
    remedy = "run it with --backend reference"
    if op.updates:
        raise BackendError(f"{wanted}: it changes an argument in place; {remedy}")
    for value in leaves(args):
        if isinstance(value, Tensor) and not backend.is_plain(value):
            raise BackendError(f"{wanted}: {value} has a layout of its own; {remedy}")


def run_gap(backend: Backend, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Run an op of real tensors by its meaning: values to numpy and back. Raises BackendError as `check_gap` does."""
    check_gap(backend, op, args)
    results = tuple(backend.tensor(array) for array in by_meaning(op, args, options, backend.to_numpy))
    return results[0] if len(results) == 1 else results or None
