"""Programs with fallbacks: segments that the back-end runs, and between them calls that the numpy reference runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from sporelm.backends.protocol import Backend, CompileTasks, Handle, Program, WarmupStep, list_compile_tasks
from sporelm.backends.reference_fallback import check_fallback, run_reference, substitute_values
from sporelm.errors import BackendError
from sporelm.ops import Call, Graph, Value
from sporelm.ops.op import leaves
from sporelm.tensor.dtype import DType


class SplitProgram:
    """Segments and fallbacks in the graph's order. Values that cross between them are copied as numpy arrays."""

    def __init__(
        self, graph: Graph, backend: Backend, bucket: str, native: Callable[[Graph], tuple[Program, int]]
    ) -> None:
        """Compile the segments. `native` makes the program of a segment and returns how many bytes its values take.

        Raises BackendError if a fallback needs a value in the back-end's own layout.
        """
        self.nbytes = 0
        self.parts: list[Program] = []
        names = {id(value): name for name, value in graph.inputs.items()}
        for own, calls in groupby(graph.calls, lambda call: backend.kernel(call, bucket) is not None):
            part = extract_segment(graph, list(calls), names)
            if own:
                check_crossing(part, backend)
                program, nbytes = native(part)
                self.parts.append(program)
                self.nbytes += nbytes
            else:
                self.parts.append(FallbackSegment(part, backend))
        self.outputs = {name: names[id(value)] for name, value in graph.outputs.items()}

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """Run one step, segment by segment."""
        values = dict(arrays)
        for part in self.parts:
            values.update(part.run(values, extents))
        return {name: values[inner] for name, inner in self.outputs.items()}

    def list_compile_tasks(self, warmup_steps: Sequence[WarmupStep] = ()) -> CompileTasks:
        """See `PrecompilableProgram`. Warm-up steps are not used: segments have other inputs than the graph."""
        return list_compile_tasks(self.parts)

    def free(self) -> None:
        for part in self.parts:
            part.free()


class FallbackSegment:
    """Calls that the numpy reference runs."""

    def __init__(self, graph: Graph, backend: Backend) -> None:
        """Read the constants. Raise BackendError for one that cannot be read."""
        self.graph, self.backend = graph, backend
        self.constants: dict[int, np.ndarray] = {}
        for call in graph.calls:
            check_fallback(backend, call.op, call.args)
            for value in leaves(call.args):
                if not isinstance(value, Value):
                    self.constants[id(value)] = backend.to_numpy(value)

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """Run one step of these calls. Waits for the device where it computes their inputs."""
        known: dict[int, Any] = {
            id(value): array if isinstance(array, np.ndarray) else self.backend.fetch(array)
            for name, value in self.graph.inputs.items()
            for array in (arrays[name],)
        }
        known.update(self.constants)

        def read(value: Any) -> Any:
            return known[id(value)]

        for call in self.graph.calls:
            results = run_reference(call.op, call.args, call.options, read)
            known.update({id(value): array for value, array in zip(call.results, results, strict=True)})
        return {name: known[id(value)] for name, value in self.graph.outputs.items()}

    def free(self) -> None:
        self.constants.clear()


def extract_segment(graph: Graph, calls: Sequence[Call], names: dict[int, str]) -> Graph:
    """Return consecutive calls of a graph as a graph of their own.

    Its inputs are the values of earlier calls that it uses; its outputs are the values that later calls and the graph's
    outputs use. `names` gives values, by id, the names under which they cross; the names of this segment's outputs are
    added to it.
    """
    part, copies = Graph(), dict[int, Value]()
    inside = {id(value): value for call in calls for value in call.results}
    for call in calls:
        for value in call.values():
            if id(value) not in inside and id(value) not in copies:
                copies[id(value)] = part.input(names[id(value)], value.spec)
    for call in calls:
        results = tuple(Value(part, value.spec, value.name) for value in call.results)
        part.calls.append(Call(call.op, substitute_values(call.args, copies), call.options, results))
        copies |= {id(old): new for old, new in zip(call.results, results, strict=True)}
    mine = {id(call) for call in calls}
    later = {id(value) for call in graph.calls if id(call) not in mine for value in call.values()}
    for key in inside.keys() & (later | {id(value) for value in graph.outputs.values()}):
        names[key] = f"%{inside[key].name}"
        part.outputs[names[key]] = copies[key]
    return part.check()


def check_crossing(part: Graph, backend: Backend) -> None:
    """Raise BackendError for a value between a segment and a fallback that has the back-end's own layout."""
    for value in (*part.inputs.values(), *part.outputs.values()):
        if not isinstance(value.dtype, DType):
            raise BackendError(
                f"{backend.name} leaves an op beside {value} to the reference, which cannot share rows of "
                f"{value.dtype.name}; set the option backend to reference"
            )
