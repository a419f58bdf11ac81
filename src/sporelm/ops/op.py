"""Ops: callable numpy references.

A call with traced arguments is recorded, with real tensors it runs now. A value that is placed on several ranks brings
its `sharder`, which calls ops on local values (`distributed.placement`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any

from sporelm.errors import OpError
from sporelm.ops.spec import Spec

ALL: dict[str, "Op"] = {}

ShapeRule = Callable[..., Spec | tuple[Spec, ...]]
IndexCheck = Callable[..., None]


class Op:
    """An operation, with its definition and its rules.

    reference   its definition on numpy arrays
    rule        gives the specs of the results from the specs of the arguments
    updates     names the arguments that it changes in place
    indices     checks the arguments that index into others; raises OpError for an index outside
    host        names the arguments that give the amount of work: they are inputs or constants of a graph, never results
                of calls, so that a back-end can read them before it begins
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        rule: ShapeRule,
        updates: tuple[str, ...],
        indices: IndexCheck | None = None,
        host: tuple[str, ...] = (),
    ) -> None:
        self.name = reference.__name__
        self.reference = reference
        self.rule = rule
        self.indices = indices
        parameters = signature(reference).parameters.values()
        self.arguments = tuple(p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD)
        self.required = sum(
            p.kind is Parameter.POSITIONAL_OR_KEYWORD and p.default is Parameter.empty for p in parameters
        )
        self.option_names = frozenset(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
        self.updates = tuple(self.arguments.index(name) for name in updates)
        self.host = tuple(self.arguments.index(name) for name in host)
        update_wrapper(self, reference)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self.required <= len(args) <= len(self.arguments):
            raise OpError(f"{self.name} takes {', '.join(self.arguments)}; got {len(args)} arguments")
        if unknown := options.keys() - self.option_names:
            raise OpError(f"{self.name} has no option {', '.join(sorted(unknown))}; it has {sorted(self.option_names)}")
        graph = None
        for value in leaves(args):
            if (sharder := getattr(value, "sharder", None)) is not None:
                return sharder.apply(self, args, options)
            graph = graph or getattr(value, "graph", None)
        if graph is not None:
            return graph.record(self, args, options)
        return device_of(self, args).run(self, args, options)

    def results(self, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Return the specs of the results. Raise OpError if the arguments do not fit."""
        specs = self.rule(*args, **options)
        return specs if isinstance(specs, tuple) else (specs,)

    def check(self, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Return the specs of the results for real tensors. Raise OpError if the arguments do not fit or an index is
        outside.

        Used in eager mode, where arguments may come from anywhere. In a plan, the caller that fills the arrays
        guarantees the indices: checking them at each step would cost more than many of the ops.
        """
        specs = self.results(args, options)
        if self.indices:
            self.indices(*args, **options)
        return specs

    def __repr__(self) -> str:
        return f"ops.{self.name}"


def op(
    rule: ShapeRule,
    *,
    updates: tuple[str, ...] = (),
    indices: IndexCheck | None = None,
    host: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Op]:
    """Turn a numpy reference into an op, registered by name in `ALL`."""

    def declare(reference: Callable[..., Any]) -> Op:
        declared = Op(reference, rule, updates, indices, host)
        ALL[declared.name] = declared
        return declared

    return declare


def leaves(args: Sequence[Any]) -> Iterator[Any]:
    """Yield the values of an argument list, also those in tuples, without absent ones."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from leaves(arg)
        elif arg is not None:
            yield arg


def device_of(op: Op, args: Sequence[Any]) -> Any:
    """Return the one device on which all arguments lie. Raise OpError if there are several."""
    devices = {id(value.device): value.device for value in leaves(args)}
    if len(devices) != 1:
        names = sorted(device.name for device in devices.values())
        raise OpError(f"{op.name} needs all arguments on one device, they are on {names}; copy them first")
    return next(iter(devices.values()))


def require(condition: bool, message: str) -> None:
    """Raise OpError with `message` unless `condition` holds."""
    if not condition:
        raise OpError(message)
