"""Ops: a numpy meaning made callable. The value decides: traced arguments record, real ones run now."""

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
    """One thing that can be computed.

    `meaning` is its definition on numpy arrays, `rule` gives the specs of its results from the specs of its
    arguments, `updates` names the arguments that it changes in place, `indices` reads the arguments that point into
    others and raises OpError where one points outside. `host` names the arguments that say how much there is to do:
    they are inputs or constants of a graph, never results of calls, so that a back-end knows them before it begins.
    """

    def __init__(
        self,
        meaning: Callable[..., Any],
        rule: ShapeRule,
        updates: tuple[str, ...],
        indices: IndexCheck | None = None,
        host: tuple[str, ...] = (),
    ) -> None:
        self.name = meaning.__name__
        self.meaning = meaning
        self.rule = rule
        self.indices = indices
        parameters = signature(meaning).parameters.values()
        self.arguments = tuple(p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD)
        self.required = sum(
            p.kind is Parameter.POSITIONAL_OR_KEYWORD and p.default is Parameter.empty for p in parameters
        )
        self.option_names = frozenset(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
        self.updates = tuple(self.arguments.index(name) for name in updates)
        self.host = tuple(self.arguments.index(name) for name in host)
        update_wrapper(self, meaning)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self.required <= len(args) <= len(self.arguments):
            raise OpError(f"{self.name} takes {', '.join(self.arguments)}; got {len(args)} arguments")
        if unknown := options.keys() - self.option_names:
            raise OpError(f"{self.name} has no option {', '.join(sorted(unknown))}; it has {sorted(self.option_names)}")
        for value in leaves(args):
            if (graph := getattr(value, "graph", None)) is not None:
                return graph.record(self, args, options)
        return device_of(self, args).run(self, args, options)

    def results(self, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Specs of the results. Raises OpError when the arguments do not fit."""
        specs = self.rule(*args, **options)
        return specs if isinstance(specs, tuple) else (specs,)

    def check(self, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Specs of the results of real tensors. Raises OpError when they do not fit or an index points outside.

        For eager runs, whose arguments may come from anywhere. The steps of a plan are vouched for by whoever fills
        their arrays: reading every index again at each step would cost more than many of the ops.
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
    """Make a numpy meaning an op, found by name in `ALL`."""

    def declare(meaning: Callable[..., Any]) -> Op:
        declared = Op(meaning, rule, updates, indices, host)
        ALL[declared.name] = declared
        return declared

    return declare


def leaves(args: Sequence[Any]) -> Iterator[Any]:
    """The values in an argument list, those in tuples too, without the absent ones."""
    for arg in args:
        if isinstance(arg, tuple):
            yield from leaves(arg)
        elif arg is not None:
            yield arg


def device_of(op: Op, args: Sequence[Any]) -> Any:
    """The one device on which all arguments live."""
    devices = {id(value.device): value.device for value in leaves(args)}
    if len(devices) != 1:
        names = sorted(device.name for device in devices.values())
        raise OpError(f"{op.name} needs all arguments on one device, they are on {names}; copy them first")
    return next(iter(devices.values()))


def require(condition: bool, message: str) -> None:
    """Raise OpError with `message` unless `condition` holds."""
    if not condition:
        raise OpError(message)
