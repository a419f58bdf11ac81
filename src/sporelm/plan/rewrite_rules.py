"""The registry of fusion rules. A back-end lists the rules to apply on its device."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sporelm.errors import GraphError
from sporelm.ops import Call, Graph, Value
from sporelm.ops.op import leaves

Rule = Callable[[Graph], Graph]

RULES: dict[str, Rule] = {}  # in order of application


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a fusion rule. Rules are applied in the order of their registration."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def rewrite(graph: Graph, names: Collection[str]) -> Graph:
    """Apply the rules of these names, and check the graph after each. Raise GraphError for an unknown name."""
    if unknown := sorted(set(names) - RULES.keys()):
        raise GraphError(f"unknown fusion rule {', '.join(unknown)}; known are {', '.join(RULES)}")
    for name, apply in RULES.items():
        if name in names:
            graph = apply(graph).check()
    return graph


class ValueUses:
    """The definition and the users of each value of a graph. Positions are indices into its calls."""

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

    def definition_of(self, value: Any) -> int:
        """Return the position of the call that defines a value; -1 for inputs and constants."""
        return self.definition[id(value)] if isinstance(value, Value) else -1

    def definition_by(self, value: Any, *op_names: str) -> int | None:
        """Return the position of the call that defines `value`, if it is one of these ops."""
        position = self.definition_of(value)
        return position if position >= 0 and self.calls[position].op.name in op_names else None

    def is_only_used_by(self, value: Value, position: int) -> bool:
        """Return whether the call at `position` is the value's only user and the value is not an output."""
        return set(self.users.get(id(value), ())) == {position} and id(value) not in self.outputs

    def can_move(self, source: int, target: int) -> bool:
        """Return whether the call at `source` may move to `target`: its arguments are defined there."""
        arguments = self.calls[source].values()
        return all(self.definition_of(value) < target for value in arguments) and self.can_reorder(source, target)

    def can_reorder(self, source: int, target: int) -> bool:
        """Return whether the call at `source` can move to `target` without changing state that other calls use.

        No call between them may change state that the call at `source` reads, nor use state that it changes. So calls
        with `updates` are barriers for the calls that use that state.
        """
        call = self.calls[source]
        touched, changed = _state_ids(call), _ids(call.updated())
        others = [other for other in self.calls[min(source, target) : max(source, target) + 1] if other is not call]
        return not any(_ids(other.updated()) & touched or _state_ids(other) & changed for other in others)


def replace_calls(graph: Graph, changes: Mapping[int, Call | None]) -> Graph:
    """Return the graph with the calls at some positions replaced, or dropped where the change is None."""
    calls = [changes.get(position, call) for position, call in enumerate(graph.calls)]
    return graph.with_calls([call for call in calls if call is not None])


def _ids(values: Collection[Any]) -> set[int]:
    return {id(value) for value in values}


def _state_ids(call: Call) -> set[int]:
    """Return the ids of the constants (real tensors) that a call reads or changes."""
    return {id(value) for value in leaves(call.args) if not isinstance(value, Value)}
