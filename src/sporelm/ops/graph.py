"""Graphs: calls recorded from traced values, and the rules of a legal graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sporelm.errors import GraphError
from sporelm.ops.op import Op, leaves
from sporelm.ops.spec import Spec


@dataclass(frozen=True, eq=False)
class Value:
    """A traced value: the result of a call, or an input of the graph."""

    graph: "Graph"
    spec: Spec
    name: str

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        return self.spec.dtype

    def __repr__(self) -> str:
        return f"%{self.name}:{self.spec}"


@dataclass(frozen=True, eq=False)
class Call:
    """One op applied to traced values and to constants (real tensors)."""

    op: Op
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    results: tuple[Value, ...]

    def values(self) -> list[Value]:
        """Return the traced values among the arguments, in order."""
        return [value for value in leaves(self.args) if isinstance(value, Value)]

    def updated(self) -> list[Any]:
        """Return the arguments that this call changes in place."""
        return list(leaves([self.args[index] for index in self.op.updates]))

    def host(self) -> list[Any]:
        """Return the arguments that a back-end may read on the host before it begins."""
        return [self.args[index] for index in self.op.host]

    def __repr__(self) -> str:
        return f"{', '.join(map(str, self.results))} = {self.op.name}{self.args}{dict(self.options) or ''}"


@dataclass(eq=False)
class Graph:
    """Calls in program order, between named inputs and named outputs."""

    inputs: dict[str, Value] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    outputs: dict[str, Value] = field(default_factory=dict)

    def input(self, name: str, spec: Spec) -> Value:
        """Declare an input."""
        if name in self.inputs:
            raise GraphError(f"input {name} is declared twice; give each input its own name")
        value = Value(self, spec, name)
        self.inputs[name] = value
        return value

    def record(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Append a call. Real tensors among the arguments become constants."""
        for value in leaves(args):
            if isinstance(value, Value) and value.graph is not self:
                raise GraphError(f"{op.name} mixes values of two graphs: {value} is of another; trace both in one")
        specs = op.results(args, options)
        results = tuple(Value(self, spec, f"{len(self.calls)}.{index}") for index, spec in enumerate(specs))
        self.calls.append(Call(op, tuple(args), dict(options), results))
        return results[0] if len(results) == 1 else results or None

    def with_calls(self, calls: list[Call]) -> "Graph":
        """Return a graph with the same inputs and outputs and other calls, as a rewriting pass does."""
        return Graph(self.inputs, calls, self.outputs)

    def check(self) -> "Graph":
        """Return the graph. Raise GraphError unless it is legal.

        In a legal graph every value is defined once and before its use; results have the specs that the op's shape rule
        gives; only constants are updated in place (state outlives a step, its values do not); arguments read on the
        host are inputs or constants; outputs are defined.
        """
        given = {id(value) for value in self.inputs.values()}
        defined = set(given)
        for number, call in enumerate(self.calls):
            where = f"call {number} ({call.op.name})"
            for value in call.values():
                if id(value) not in defined:
                    raise GraphError(f"{where} uses {value} before it is defined; order the calls by their values")
            specs = call.op.results(call.args, call.options)
            if specs != tuple(value.spec for value in call.results):
                raise GraphError(f"{where} claims {call.results}, its rule gives {specs}; record it again")
            if any(isinstance(value, Value) for value in call.updated()):
                raise GraphError(f"{where} updates a traced value in place; only state may be updated")
            for value in call.host():
                if isinstance(value, Value) and id(value) not in given:
                    raise GraphError(f"{where} reads {value} on the host, where only inputs are known; make it one")
            for value in call.results:
                if id(value) in defined:
                    raise GraphError(f"{where} defines {value} a second time")
                defined.add(id(value))
        for name, value in self.outputs.items():
            if id(value) not in defined:
                raise GraphError(f"output {name} is {value}, which no call defines")
        return self

    def __repr__(self) -> str:
        lines = [f"inputs {list(self.inputs.values())}", *map(str, self.calls), f"outputs {self.outputs}"]
        return "\n".join(lines)


def trace(function: Callable[..., Mapping[str, Value]], inputs: Mapping[str, Spec]) -> Graph:
    """Record the calls that `function` makes for inputs of these specs. It returns its outputs by name.

    Raises GraphError for an output that is not a traced value: a plan would have nothing to compute.
    """
    graph = Graph()
    values = {name: graph.input(name, spec) for name, spec in inputs.items()}
    outputs = function(**values)
    for name, value in outputs.items():
        if not isinstance(value, Value):
            raise GraphError(f"output {name} is the constant {value}, which no input changes; keep it out of the graph")
    graph.outputs = dict(outputs)
    return graph.check()
