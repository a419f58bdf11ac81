"""Plan: one traced graph made runnable, with one program per regime (one token, few, many)."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from sporelm.backends.backend import Backend, Placement, Program, Progress
from sporelm.backends.meaning import check_updates, mapped, substituted
from sporelm.errors import OpError
from sporelm.ops import Graph, Spec, Symbol, Value
from sporelm.plan.memory import Lifetime, place
from sporelm.plan.rules import rewrite
from sporelm.plan.split import SplitProgram
from sporelm.tensor.dtype import DType

TOKENS, ROWS = "tokens", "rows"
# Extents that no step of a regime takes beyond the regime's tokens: an output row is a token's row.
BOUNDED = (TOKENS, ROWS)


@dataclass(frozen=True)
class Regime:
    """A graph whose symbols are bounded by a regime's limit, with its memory placed and its program made."""

    name: str
    graph: Graph
    program: Program
    nbytes: int  # of the memory for its values


class Plan:
    """Replays a graph on a back-end. The graph is rewritten once; each regime's program is made when first needed.

    Not for use from several threads at once, except `prepare`.
    """

    def __init__(self, graph: Graph, backend: Backend, most: int = 0) -> None:
        """Rewrite `graph` by the back-end's rules, constants that are views copied first.

        most   tokens of the largest step, where they are more than those of the back-end's largest regime: of texts
               that cannot be cut

        Raises GraphError if it is not legal, BackendError for a view of a packed weight or a cache.
        """
        self.backend = backend
        last = list(backend.regimes)[-1]
        self.regimes = {**backend.regimes, last: max(most, backend.regimes[last])}
        self.graph = rewrite(with_whole_constants(graph.check(), backend), backend.rules)
        self.symbols = symbols(self.graph)
        self.built: dict[str, Regime] = {}
        self._building = Lock()
        # The mappings checked last, their extents and their program: a decode loop that passes the same objects is not
        # checked again.
        self._seen: tuple[Mapping[str, np.ndarray], Mapping[str, int], list[int], Program] | None = None

    def run(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Run one step: every input of the graph by name, every symbol's extent by its name.

        Outputs are views that the next run overwrites. Raises OpError if arrays or extents do not fit the graph. A
        mapping that is passed again must still hold arrays of the same shapes. Whoever fills the arrays vouches for the
        indices in them (positions, slots, pages, lengths, rows): they are not compared with what they point into.
        """
        seen = self._seen
        if seen is None or seen[0] is not arrays or seen[1] is not extents or seen[2] != [*extents.values()]:
            name = self.regime_of(extents)
            self.check_arrays(arrays, extents)
            seen = self._seen = (arrays, extents, [*extents.values()], self.regime(name).program)
        return seen[3].run(arrays, extents)

    def regime_of(self, extents: Mapping[str, int]) -> str:
        """The first regime that holds a step of these extents."""
        if extents.keys() != self.symbols.keys():
            raise OpError(f"extents must be given for {sorted(self.symbols)}, got {sorted(extents)}")
        for symbol in self.symbols.values():
            low = 0 if symbol.name == ROWS else 1  # a chunk of a prompt that is not its last wants no row
            if not low <= extents[symbol.name] <= symbol.high:
                raise OpError(f"{symbol.name} is {extents[symbol.name]}; the plan takes {low} to {symbol.high}")
        needed = max((extents[name] for name in BOUNDED if name in extents), default=1)
        for name, limit in self.regimes.items():
            if needed <= limit:
                return name
        highest = max(self.regimes.values())
        raise OpError(
            f"a step of {needed} tokens is more than the {highest} that {self.backend.name} takes; split the step"
        )

    def check_arrays(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> None:
        """Raise OpError unless there is an array of the right type and shape for each input."""
        inputs = self.graph.inputs
        if arrays.keys() != inputs.keys():
            raise OpError(f"arrays must be given for {sorted(inputs)}, got {sorted(arrays)}")
        for name, value in inputs.items():
            shape = tuple(extents[e.name] if isinstance(e, Symbol) else e for e in value.shape)
            array, dtype = arrays[name], value.dtype
            if array.shape != shape or (isinstance(dtype, DType) and array.dtype != dtype.numpy):
                raise OpError(f"input {name} must be {dtype.name}{list(shape)}, got {array.dtype}{list(array.shape)}")

    def regime(self, name: str) -> Regime:
        """The regime of this name, made at its first use. Raises OpError for a name the back-end does not have."""
        if name not in self.regimes:
            raise OpError(f"{self.backend.name} has no regime {name!r}; it has {', '.join(self.regimes)}")
        with self._building:
            if name not in self.built:
                graph = bounded(self.graph, dict.fromkeys(BOUNDED, self.regimes[name]))
                self.built[name] = Regime(name, graph, *self._program(graph, name))
            return self.built[name]

    def _program(self, graph: Graph, regime: str) -> tuple[Program, int]:
        """A regime's program and the bytes of its values: the back-end's own of all calls, or one with gaps."""
        whole = self.backend.compile(graph)
        if whole is not None:
            return whole, 0

        def native(part: Graph) -> tuple[Program, int]:
            placed: list[Placement] = []

            def place(nbytes_of: Callable[[Spec], int], row_by_row: Collection[str] = ()) -> Placement:
                placed.append(placement_of(part, nbytes_of, row_by_row))
                return placed[-1]

            program = self.backend.program(part, regime, place)
            return program, sum(placement.nbytes for placement in placed)

        if all(self.backend.kernel(call, regime) is not None for call in graph.calls):
            return native(graph)
        split = SplitProgram(graph, self.backend, regime, native)
        return split, split.nbytes

    def close(self) -> None:
        """Free the programs made so far. A step after that makes them anew, if the back-end is still open."""
        self._seen = None
        with self._building:
            for regime in self.built.values():
                regime.program.free()
            self.built.clear()

    def prepare(self, regimes: Iterable[str] | None = None, progress: Progress | None = None) -> None:
        """Make the programs of these regimes (default: all) ahead of their first use."""
        wanted = list(self.regimes if regimes is None else regimes)
        for done, name in enumerate(wanted):
            if progress:
                progress("compile", done, len(wanted))
            self.regime(name)
        if progress:
            progress("compile", len(wanted), len(wanted))

    @property
    def num_calls(self) -> int:
        """Calls of one step, after rewriting."""
        return len(self.graph.calls)

    @property
    def num_programs(self) -> int:
        """Programs made so far: never more than the back-end has regimes."""
        return len(self.built)

    @property
    def gaps(self) -> dict[str, int]:
        """Calls that some regime leaves to the reference, by op."""
        left = [
            call.op.name
            for call in self.graph.calls
            if any(self.backend.kernel(call, regime) is None for regime in self.regimes)
        ]
        return {name: left.count(name) for name in sorted(set(left))}

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Bytes for the values of a step, for each regime made so far."""
        return {name: regime.nbytes for name, regime in self.built.items()}

    def describe(self) -> str:
        """The plan in a few lines for people: its calls by op, its symbols, its programs and their memory."""
        counts: dict[str, int] = {}
        for call in self.graph.calls:
            counts[call.op.name] = counts.get(call.op.name, 0) + 1
        by_op = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
        lines = [
            f"{self.num_calls} calls on {self.backend.name}: {by_op}",
            f"symbols: {', '.join(map(str, self.symbols.values())) or 'none'}",
            f"rules: {', '.join(self.backend.rules) or 'none'}",
        ]
        if self.gaps:
            lines.append("left to the reference: " + ", ".join(f"{count} {name}" for name, count in self.gaps.items()))
        for name, limit in self.regimes.items():
            made = f"arena {self.arena_bytes[name]} bytes" if name in self.built else "not made yet"
            lines.append(f"regime {name} (up to {limit} tokens): {made}")
        return "\n".join(lines)


def symbols(graph: Graph) -> dict[str, Symbol]:
    """The symbols of a graph's inputs by name. Raises OpError if one name has two bounds."""
    found: dict[str, Symbol] = {}
    for value in graph.inputs.values():
        for extent in value.shape:
            if isinstance(extent, Symbol) and found.setdefault(extent.name, extent) != extent:
                bounds = f"{extent.high} and {found[extent.name].high}"
                raise OpError(f"symbol {extent.name} is bounded by {bounds}; give one bound")
    return found


def bounded(graph: Graph, limits: Mapping[str, int]) -> Graph:
    """A copy of the graph in which symbols of these names are at most their limit."""

    def bound(extent: Any) -> Any:
        if isinstance(extent, Symbol) and extent.name in limits:
            return Symbol(extent.name, min(extent.high, limits[extent.name]))
        return extent

    copy = Graph()
    values: dict[int, Value] = {}
    for name, value in graph.inputs.items():
        values[id(value)] = copy.input(name, Spec(tuple(map(bound, value.shape)), value.dtype))
    for call in graph.calls:
        results = copy.record(call.op, substituted(call.args, values), call.options)
        results = () if results is None else results if isinstance(results, tuple) else (results,)
        values |= {id(old): new for old, new in zip(call.results, results, strict=True)}
    copy.outputs = {name: values[id(value)] for name, value in graph.outputs.items()}
    return copy.check()


def with_whole_constants(graph: Graph, backend: Backend) -> Graph:
    """The graph with each constant that is seen through a view replaced by a copy, one for all its uses."""
    copies: dict[int, Any] = {}

    def whole(value: Any) -> Any:
        if not isinstance(value, Value) and id(value) not in copies:
            copies[id(value)] = backend.contiguous(value)
        return copies.get(id(value), value)

    calls = []
    for call in graph.calls:
        args = mapped(call.args, whole)
        check_updates(call.op, call.args, args)
        calls.append(replace(call, args=args))
    return graph.with_calls(calls)


def lifetimes(graph: Graph, row_by_row: Collection[str] = ()) -> dict[int, tuple[Value, int, int]]:
    """For each value, by id: the value, the call that defines it (-1: an input), and the last that needs its memory.

    A back-end may run a series of row-by-row calls without a barrier: a life that ends in one lasts to the end of the
    series, because some threads may still be at its first call when others are at its last. Outputs live to the end.
    """
    end = len(graph.calls)
    settled = [0] * end  # the call after which all threads are done with this one
    for position in range(end - 1, -1, -1):
        series = [call.op.name in row_by_row for call in graph.calls[position : position + 2]] == [True, True]
        settled[position] = settled[position + 1] if series else position
    lives = {id(value): (value, -1, 0) for value in graph.inputs.values()}
    for position, call in enumerate(graph.calls):
        for value in call.values():
            lives[id(value)] = (*lives[id(value)][:2], settled[position])
        for value in call.results:
            lives[id(value)] = (value, position, settled[position])
    for value in graph.outputs.values():
        lives[id(value)] = (*lives[id(value)][:2], end)
    return lives


def placement_of(graph: Graph, nbytes_of: Callable[[Spec], int], row_by_row: Collection[str] = ()) -> Placement:
    """Where each value of a graph lies in one arena, with the sizes that the back-end gives values."""
    lives = lifetimes(graph, row_by_row)
    placed = place([Lifetime(nbytes_of(value.spec), first, last) for value, first, last in lives.values()])
    return Placement(dict(zip(lives, placed.offsets, strict=True)), placed.nbytes)
