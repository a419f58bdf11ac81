"""Rewriting rules by name: a back-end lists those that pay on its device, and no other is applied."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sporelm.errors import GraphError
from sporelm.ops import Call, Graph, Value
from sporelm.ops.op import leaves

Rule = Callable[[Graph], Graph]

RULES: dict[str, Rule] = {}  # in the order in which they are applied


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rewriting pass; passes are applied in the order of their registration."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def rewrite(graph: Graph, names: Collection[str]) -> Graph:
    """Apply the rules of these names, each checked to leave a legal graph. Raises GraphError for an unknown name."""
    from sporelm.plan import fuse  # noqa: F401 - importing it registers the rules

    if unknown := sorted(set(names) - RULES.keys()):
        raise GraphError(f"no rewriting rule {', '.join(unknown)}; there are {', '.join(RULES)}")
    for name, apply in RULES.items():
        if name in names:
            graph = apply(graph).check()
    return graph


class Uses:
    """Who defines and who uses each value of a graph; positions are indices into its calls."""

    def __init__(self, graph: Graph) -> None:
        self.definition: dict[int, int] = {id(value): -1 for value in graph.inputs.values()}
        self.users: dict[int, list[int]] = {}
        self.outputs = {id(value) for value in graph.outputs.values()}
        self.calls = graph.calls
        for position, call in enumerate(graph.calls):
            for value in call.values():
                self.users.setdefault(id(value), []).append(position)
            for value in call.results:
                self.definition[id(value)] = position

    def defined(self, value: Any) -> int:
        """The call that defines a value; -1 for inputs and constants."""
        return self.definition[id(value)] if isinstance(value, Value) else -1

    def by(self, value: Any, *op_names: str) -> int | None:
        """The position of the call that defines `value`, if it is one of these ops."""
        position = self.defined(value)
        return position if position >= 0 and self.calls[position].op.name in op_names else None

    def only_used_by(self, value: Value, position: int) -> bool:
        """Whether the call at `position` is the value's one user and it is no output."""
        return set(self.users.get(id(value), ())) == {position} and id(value) not in self.outputs

    def movable(self, source: int, target: int) -> bool:
        """Whether the call at `source` may take the place of the call at `target`: its arguments are defined there."""
        arguments = self.calls[source].values()
        return all(self.defined(value) < target for value in arguments) and self.undisturbed(source, target)

    def undisturbed(self, source: int, target: int) -> bool:
        """Whether no call between the two changes state that the one at `source` reads, or touches state it changes.

        So calls with `updates` are barriers for the calls that use that state.
        """
        call = self.calls[source]
        touched, changed = _state(call), _ids(call.updated())
        others = [other for other in self.calls[min(source, target) : max(source, target) + 1] if other is not call]
        return not any(_ids(other.updated()) & touched or _state(other) & changed for other in others)


def replaced(graph: Graph, changes: Mapping[int, Call | None]) -> Graph:
    """The graph with the calls at some positions replaced, or dropped where the change is None."""
    calls = [changes.get(position, call) for position, call in enumerate(graph.calls)]
    return graph.with_calls([call for call in calls if call is not None])


def _ids(values: Collection[Any]) -> set[int]:
    return {id(value) for value in values}


def _state(call: Call) -> set[int]:
    """The constants (real tensors) that a call reads or changes."""
    return {id(value) for value in leaves(call.args) if not isinstance(value, Value)}
