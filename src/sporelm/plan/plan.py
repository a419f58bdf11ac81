"""Plan: a traced graph compiled for a back-end, with one program per step bucket (one token, few, many)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from sporelm.backends.protocol import (
    Backend,
    CompositeBackend,
    Handle,
    Placement,
    Program,
    Progress,
    WarmupStep,
    list_compile_tasks,
)
from sporelm.backends.reference_fallback import check_updates, map_values, substitute_values
from sporelm.errors import OpError
from sporelm.ops import Graph, Spec, Symbol, Value
from sporelm.plan.memory_planner import Lifetime, plan_offsets
from sporelm.plan.partition import PartitionedProgram
from sporelm.plan.rewrite_rules import rewrite
from sporelm.plan.split_program import SplitProgram
from sporelm.tensor.dtype import DType

TOKENS, ROWS = "tokens", "rows"
# Symbols that are at most the tokens of a step: an output row is a token's row.
BOUNDED_SYMBOLS = (TOKENS, ROWS)


@dataclass(frozen=True)
class BucketProgram:
    """A graph whose symbols are bounded by a step bucket's limit, with its memory plan and its program."""

    name: str
    graph: Graph
    program: Program
    nbytes: int  # of the memory for its values


class Plan:
    """Replays a graph on a back-end. The graph is rewritten once; each bucket's program is compiled at its first use.

    Not for use from several threads at once, except `prepare`.
    """

    def __init__(self, graph: Graph, backend: Backend, max_tokens: int = 0) -> None:
        """Rewrite `graph` by the back-end's rules, after copying constants that are views.

        max_tokens   tokens of the largest step, if more than the back-end's largest bucket: texts that cannot be split

        Raises GraphError if the graph is not legal, BackendError for a view of a packed weight or a cache.
        """
        self.backend = backend
        last = list(backend.step_buckets)[-1]
        self.step_buckets = {**backend.step_buckets, last: max(max_tokens, backend.step_buckets[last])}
        self.graph = rewrite(copy_view_constants(graph.check(), backend), backend.rules)
        self.symbols = collect_symbols(self.graph)
        self.bucket_programs: dict[str, BucketProgram] = {}
        self._building = Lock()
        # The mappings checked last, their extents and their program: a decode loop that passes the same objects is not
        # checked again.
        self._last_inputs: tuple[Mapping[str, Handle], Mapping[str, int], list[int], Program] | None = None

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Launch one step, and return its outputs as arrays when they are computed. See `launch`."""
        return {name: self.backend.fetch(handle) for name, handle in self.launch(arrays, extents).items()}

    def launch(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """Launch one step: every input of the graph by name, every symbol's extent by its name. Return handles.

        On the host outputs are views that the next run overwrites. Raises OpError if arrays or extents do not fit the
        graph. A mapping that is passed again must still hold arrays of the same shapes. The caller guarantees the
        indices in the arrays (positions, slots, pages, lengths, rows): they are not checked.
        """
        last = self._last_inputs
        if last is None or last[0] is not arrays or last[1] is not extents or last[2] != [*extents.values()]:
            name = self.find_bucket(extents)
            self.check_arrays(arrays, extents)
            last = (arrays, extents, [*extents.values()], self.bucket_program(name).program)
            if not self.backend.traits.is_async:  # there inputs are other objects each time: only memory would be held
                self._last_inputs = last
        return last[3].run(arrays, extents)

    def find_bucket(self, extents: Mapping[str, int]) -> str:
        """Return the name of the first bucket that holds a step of these extents."""
        if extents.keys() != self.symbols.keys():
            raise OpError(f"extents must be given for {sorted(self.symbols)}, got {sorted(extents)}")
        for symbol in self.symbols.values():
            low = 0 if symbol.name == ROWS else 1  # a chunk of a prompt before the last needs no output row
            if not low <= extents[symbol.name] <= symbol.high:
                raise OpError(f"{symbol.name} is {extents[symbol.name]}; the plan takes {low} to {symbol.high}")
        needed = max((extents[name] for name in BOUNDED_SYMBOLS if name in extents), default=1)
        for name, limit in self.step_buckets.items():
            if needed <= limit:
                return name
        highest = max(self.step_buckets.values())
        raise OpError(
            f"a step of {needed} tokens is more than the {highest} that {self.backend.name} takes; split the step"
        )

    def check_arrays(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> None:
        """Raise OpError unless there is an array of the right type and shape for each input."""
        inputs = self.graph.inputs
        if arrays.keys() != inputs.keys():
            raise OpError(f"arrays must be given for {sorted(inputs)}, got {sorted(arrays)}")
        for name, value in inputs.items():
            shape = tuple(extents[e.name] if isinstance(e, Symbol) else e for e in value.shape)
            array, dtype = arrays[name], value.dtype
            is_wrong_type = isinstance(array, np.ndarray) and isinstance(dtype, DType) and array.dtype != dtype.numpy
            if tuple(array.shape) != shape or is_wrong_type:
                raise OpError(f"input {name} must be {dtype.name}{list(shape)}, got {array.dtype}{list(array.shape)}")

    def bucket_program(self, name: str) -> BucketProgram:
        """Return a bucket's program, compiled at its first use. Raise OpError for an unknown bucket."""
        if name not in self.step_buckets:
            raise OpError(f"{self.backend.name} has no bucket {name!r}; it has {', '.join(self.step_buckets)}")
        with self._building:
            if name not in self.bucket_programs:
                graph = bound_symbols(self.graph, dict.fromkeys(BOUNDED_SYMBOLS, self.step_buckets[name]))
                self.bucket_programs[name] = BucketProgram(name, graph, *self._program(graph, name))
            return self.bucket_programs[name]

    def _program(self, graph: Graph, bucket: str) -> tuple[Program, int]:
        """Return a bucket's program and the bytes of its values.

        A composite back-end has a program of segments, others one of the whole graph (`compile_graph`).
        """
        if isinstance(self.backend, CompositeBackend):
            partitioned = PartitionedProgram(graph, self.backend, bucket, compile_graph)
            return partitioned, partitioned.nbytes
        return compile_graph(graph, self.backend, bucket)

    def close(self) -> None:
        """Free the programs compiled so far. A later step compiles them again, if the back-end is still open."""
        self._last_inputs = None
        with self._building:
            for bucket in self.bucket_programs.values():
                bucket.program.free()
            self.bucket_programs.clear()

    def prepare(
        self,
        step_buckets: Iterable[str] | None = None,
        progress: Progress | None = None,
        warmup_steps: Sequence[WarmupStep] = (),
    ) -> None:
        """Compile the programs of these buckets (default: all) now, and their kernels where these can be compiled
        before the first step (`PrecompilableProgram`).

        warmup_steps   programs that capture their launches do so for steps of these shapes
        """
        wanted = list(self.step_buckets if step_buckets is None else step_buckets)
        for done, name in enumerate(wanted):
            if progress:
                progress("compile", done, len(wanted))
            self.bucket_program(name)
        if progress:
            progress("compile", len(wanted), len(wanted))
        compile_tasks = list_compile_tasks((self.bucket_program(name).program for name in wanted), warmup_steps)
        for done, compile_kernels in enumerate(compile_tasks.values()):
            if progress:
                progress("compiling kernels", done, len(compile_tasks))
            compile_kernels()
        if progress and compile_tasks:
            progress("compiling kernels", len(compile_tasks), len(compile_tasks))

    @property
    def num_calls(self) -> int:
        """Return the number of calls in one step, after rewriting."""
        return len(self.graph.calls)

    @property
    def num_programs(self) -> int:
        """Return the number of programs compiled so far: at most one per bucket."""
        return len(self.bucket_programs)

    @property
    def fallback_calls(self) -> dict[str, int]:
        """Return how many calls some bucket leaves to the numpy reference, by op."""
        left = [
            call.op.name
            for call in self.graph.calls
            if any(self.backend.kernel(call, bucket) is None for bucket in self.step_buckets)
        ]
        return {name: left.count(name) for name in sorted(set(left))}

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Return the bytes for the values of a step, by bucket compiled so far."""
        return {name: bucket.nbytes for name, bucket in self.bucket_programs.items()}

    def describe(self) -> str:
        """Describe the plan in a few lines: its calls by op, its symbols, its programs and their memory."""
        counts: dict[str, int] = {}
        for call in self.graph.calls:
            counts[call.op.name] = counts.get(call.op.name, 0) + 1
        by_op = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
        lines = [
            f"{self.num_calls} calls on {self.backend.name}: {by_op}",
            f"symbols: {', '.join(map(str, self.symbols.values())) or 'none'}",
            f"rules: {', '.join(self.backend.rules) or 'none'}",
        ]
        if self.fallback_calls:
            lines.append(
                "left to the reference: " + ", ".join(f"{count} {name}" for name, count in self.fallback_calls.items())
            )
        for name, limit in self.step_buckets.items():
            made = f"arena {self.arena_bytes[name]} bytes" if name in self.bucket_programs else "not made yet"
            lines.append(f"bucket {name} (up to {limit} tokens): {made}")
        return "\n".join(lines)


def compile_graph(graph: Graph, backend: Backend, bucket: str) -> tuple[Program, int]:
    """Return the program of a graph for one of the back-end's buckets, and the bytes of its values.

    The back-end compiles the whole graph if it can; otherwise the program is split around the fallback calls.
    """
    whole = backend.compile(graph)
    if whole is not None:
        return whole, 0

    def native(part: Graph) -> tuple[Program, int]:
        placed: list[Placement] = []

        def plan_memory(nbytes_of: Callable[[Spec], int], rowwise_ops: Collection[str] = ()) -> Placement:
            placed.append(place_values(part, nbytes_of, rowwise_ops))
            return placed[-1]

        program = backend.program(part, bucket, plan_memory)
        return program, sum(placement.nbytes for placement in placed)

    if all(backend.kernel(call, bucket) is not None for call in graph.calls):
        return native(graph)
    split = SplitProgram(graph, backend, bucket, native)
    return split, split.nbytes


def collect_symbols(graph: Graph) -> dict[str, Symbol]:
    """Return the symbols of a graph's inputs by name. Raise OpError if one name has two limits."""
    found: dict[str, Symbol] = {}
    for value in graph.inputs.values():
        for extent in value.shape:
            if isinstance(extent, Symbol) and found.setdefault(extent.name, extent) != extent:
                bounds = f"{extent.high} and {found[extent.name].high}"
                raise OpError(f"symbol {extent.name} is bounded by {bounds}; give one bound")
    return found


def bound_symbols(graph: Graph, limits: Mapping[str, int]) -> Graph:
    """Return a copy of the graph in which the symbols of these names are at most their limit."""

    def bound(extent: Any) -> Any:
        if isinstance(extent, Symbol) and extent.name in limits:
            return Symbol(extent.name, min(extent.high, limits[extent.name]))
        return extent

    copy = Graph()
    values: dict[int, Value] = {}
    for name, value in graph.inputs.items():
        values[id(value)] = copy.input(name, Spec(tuple(map(bound, value.shape)), value.dtype))
    for call in graph.calls:
        results = copy.record(call.op, substitute_values(call.args, values), call.options)
        results = () if results is None else results if isinstance(results, tuple) else (results,)
        values |= {id(old): new for old, new in zip(call.results, results, strict=True)}
    copy.outputs = {name: values[id(value)] for name, value in graph.outputs.items()}
    return copy.check()


def copy_view_constants(graph: Graph, backend: Backend) -> Graph:
    """Return the graph with each constant that is a view replaced by a copy, one for all its uses."""
    copies: dict[int, Any] = {}

    def whole(value: Any) -> Any:
        if not isinstance(value, Value) and id(value) not in copies:
            copies[id(value)] = backend.contiguous(value)
        return copies.get(id(value), value)

    calls = []
    for call in graph.calls:
        args = map_values(call.args, whole)
        check_updates(call.op, call.args, args)
        calls.append(replace(call, args=args))
    return graph.with_calls(calls)


def find_lifetimes(graph: Graph, rowwise_ops: Collection[str] = ()) -> dict[int, tuple[Value, int, int]]:
    """Return for each value, by id: the value, the call that defines it (-1: an input), and the last that needs its
    memory.

    A back-end may run a series of rowwise calls without a barrier. A lifetime that ends in a series lasts to its end,
    because some threads may still be at the first call when others are at the last. Outputs live to the end.
    """
    end = len(graph.calls)
    settled = [0] * end  # the call after which all threads are done with this one
    for position in range(end - 1, -1, -1):
        series = [call.op.name in rowwise_ops for call in graph.calls[position : position + 2]] == [True, True]
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


def place_values(graph: Graph, nbytes_of: Callable[[Spec], int], rowwise_ops: Collection[str] = ()) -> Placement:
    """Return the offset of each value of a graph in one arena, with the back-end's sizes."""
    lives = find_lifetimes(graph, rowwise_ops)
    placed = plan_offsets([Lifetime(nbytes_of(value.spec), first, last) for value, first, last in lives.values()])
    return Placement(dict(zip(lives, placed.offsets, strict=True)), placed.nbytes)
