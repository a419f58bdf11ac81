"""Programs on a composite back-end: the graph is cut into segments, and each runs on one of its parts (ADR 0050)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from sporelm.backends.protocol import (
    Backend,
    CompileTasks,
    CompositeBackend,
    Handle,
    Program,
    WarmupStep,
    list_compile_tasks,
)
from sporelm.backends.reference_fallback import map_values
from sporelm.ops import Call, Graph, Value
from sporelm.ops.op import leaves
from sporelm.plan.rewrite_rules import rewrite
from sporelm.plan.split_program import check_crossing, extract_segment
from sporelm.tensor.dtype import DType
from sporelm.tensor.tensor import Tensor

CompileGraph = Callable[[Graph, Backend, str], tuple[Program, int]]  # for a bucket; returns the bytes of its values too


@dataclass
class PartSegment:
    """Consecutive calls on one part.

    part_index   the index of the part
    inputs       the values that it reads, by the names under which they cross
    host_inputs  those of them that ops read on the host
    outputs      the names of its results
    ending       the names of values that no later segment uses
    """

    part_index: int
    program: Program
    inputs: Mapping[str, Value]
    host_inputs: frozenset[str]
    outputs: tuple[str, ...]
    ending: tuple[str, ...] = ()


class PartitionedProgram:
    """Segments in the graph's order. A value that another part uses is fetched, and uploaded to it, once."""

    def __init__(self, graph: Graph, backend: CompositeBackend, bucket: str, compile_graph: CompileGraph) -> None:
        """Cut the graph, rewrite each segment by the rules of its part, and compile it."""
        self.backend, self.nbytes = backend, 0
        self.segments: list[PartSegment] = []
        names = {id(value): name for name, value in graph.inputs.items()}
        placed = zip(place_calls(graph, backend), graph.calls, strict=True)
        for part, group in groupby(placed, lambda each: each[0]):
            local = localize(extract_segment(graph, [call for _, call in group], names), backend, part)
            check_crossing(local, backend.parts[part])
            rewritten = rewrite(local, backend.parts[part].rules)
            program, nbytes = compile_graph(rewritten, backend.parts[part], backend.local_bucket(bucket, part))
            self.nbytes += nbytes
            read = {id(value) for call in local.calls for value in leaves(call.host())}
            host_inputs = frozenset(name for name, value in local.inputs.items() if id(value) in read)
            self.segments.append(PartSegment(part, program, local.inputs, host_inputs, tuple(local.outputs)))
        self.outputs = {name: names[id(value)] for name, value in graph.outputs.items()}
        kept = set(self.outputs.values())
        for segment in reversed(self.segments):
            segment.ending = tuple({*segment.inputs, *segment.outputs} - kept)
            kept |= segment.inputs.keys()

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """Run one step, segment by segment."""
        held: dict[str, dict[int, Handle]] = {}  # by name and part
        for segment in self.segments:
            given = {
                name: arrays[name]
                if name in segment.host_inputs
                else self._bring(value, name, segment.part_index, arrays, held)
                for name, value in segment.inputs.items()
            }
            for name, handle in segment.program.run(given, extents).items():
                # Other segments may write to the memory of a view.
                held[name] = {segment.part_index: handle.copy() if isinstance(handle, np.ndarray) else handle}
            for name in segment.ending:
                held.pop(name, None)
        return {
            name: next(iter(held[inner].values())) if inner in held else arrays[inner]
            for name, inner in self.outputs.items()
        }

    def _bring(
        self, value: Value, name: str, part: int, arrays: Mapping[str, Handle], held: dict[str, dict[int, Handle]]
    ) -> Handle:
        """Return a value as a handle of a part, copied there once."""
        parts, copies = self.backend.parts, held.setdefault(name, {})
        if part not in copies:
            source = next(iter(copies), None)
            array = arrays[name] if source is None else parts[source].fetch(copies[source])
            assert isinstance(value.dtype, DType)
            copies[part] = parts[part].upload(np.ascontiguousarray(array, value.dtype.numpy))
        return copies[part]

    def list_compile_tasks(self, warmup_steps: Sequence[WarmupStep] = ()) -> CompileTasks:
        """See `PrecompilableProgram`. Warm-up steps are not used: segments have other inputs than the graph."""
        return list_compile_tasks(segment.program for segment in self.segments)

    def free(self) -> None:
        for segment in self.segments:
            segment.program.free()


def localize(graph: Graph, backend: CompositeBackend, part: int) -> Graph:
    """Return a segment with the tensors of the part instead of the composite's."""

    def local(value: Any) -> Any:
        return backend.local(value, part) if isinstance(value, Tensor) else value

    calls = [Call(call.op, map_values(call.args, local), call.options, call.results) for call in graph.calls]
    return graph.with_calls(calls).check()


def place_calls(graph: Graph, backend: CompositeBackend) -> list[int]:
    """Return the part that runs each call of a graph.

    A call with a weight or a cache runs where that lies. Any other call runs where fewer bytes have to cross: of its
    arguments, and of its results if the next call with a weight that depends on them is on another part.
    """
    fixed = [backend.part_of_call(call) for call in graph.calls]
    next_parts = _next_parts(graph, fixed)
    present: dict[int, set[int]] = {}  # parts that have a value, by its id; inputs are on all of them
    inputs = {id(value) for value in graph.inputs.values()}
    placed: list[int] = []
    for call, home, after in zip(graph.calls, fixed, next_parts, strict=True):
        values = {id(value): value for value in call.values() if id(value) not in inputs}
        part = home
        if part is None:
            part = _cheapest_part(call, values, present, after, len(backend.parts))
        for key in values:
            present[key].add(part)
        present |= {id(value): {part} for value in call.results}
        placed.append(part)
    return placed


def _next_parts(graph: Graph, fixed: list[int | None]) -> list[int | None]:
    """Return for each call the part of the first call with a weight that depends on its results; None if none does."""
    after: list[int | None] = [None] * len(fixed)
    wanted: dict[int, int | None] = {}  # of values, by their ids, from the last user to the first
    for position in range(len(fixed) - 1, -1, -1):
        call = graph.calls[position]
        found = [wanted[id(value)] for value in call.results if wanted.get(id(value)) is not None]
        after[position] = found[0] if found else None
        part = fixed[position] if fixed[position] is not None else after[position]
        if part is not None:
            wanted |= {id(value): part for value in call.values()}
    return after


def _cheapest_part(
    call: Call, values: Mapping[int, Value], present: Mapping[int, set[int]], after: int | None, num_parts: int
) -> int:
    if not values:
        return after if after is not None else num_parts - 1
    results = sum(map(_nbytes, call.results)) if after is not None else 0

    def crossing(part: int) -> tuple[int, int]:
        """Return the bytes of arguments and results, and those of arguments: among equals a call stays with them."""
        missing = sum(_nbytes(value) for key, value in values.items() if part not in present[key])
        return missing + (results if part != after else 0), missing

    return min(range(num_parts), key=crossing)


def _nbytes(value: Value) -> int:
    return prod(value.spec.bound) * (value.dtype.nbytes if isinstance(value.dtype, DType) else 1)
