"""Programs that replay captured launches: one graph for each shape of a step's inputs.

Graphs are captured ahead, for the warm-up steps that a plan is prepared with, or when a shape recurs. A captured graph
has fixed addresses: it reads its inputs where they were at capture, and always writes its outputs to the same memory.
So inputs are copied into the graph's own, and outputs are copied out. Graphs run one after the other: those of a
back-end share one memory pool, and those of a program write their outputs to the same buffers.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sporelm.backends.context import Context, Resource
from sporelm.backends.device_context import enters_context
from sporelm.backends.function_backend import FunctionProgram
from sporelm.backends.protocol import CompileTasks, Handle, WarmupStep
from sporelm.ops import Graph, Symbol
from sporelm.tensor.dtype import DType

MAX_CAPTURED_TOKENS = 512  # of a step; with more, the device works longer than its launches take
MAX_GRAPHS = 512  # of a program; the one replayed longest ago is dropped
Outputs = dict[str, Tensor]
Shapes = tuple[tuple[str, tuple[int, ...], str], ...]  # of inputs by name, with their types


class GraphDevice(Protocol):
    """The functions of a device that captures launches."""

    def capture(self, work: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        """Record the launches of some work. Return the graph, with `replay` and `reset`, and its outputs."""

    def update(self, graph: Any, arrays: Mapping[str, Handle]) -> None:
        """Give a graph that is replayed the step's inputs, for numbers that its launches take from the host."""


class GraphBackend(Protocol):
    """A torch back-end whose programs are captured."""

    device: torch.device

    def copy_in(self, array: np.ndarray) -> Tensor: ...

    def fill(self, inputs: Mapping[str, Tensor], arrays: Mapping[str, Handle]) -> None:
        """Begin to copy arrays into the inputs of a captured graph."""


class CapturedGraph(Resource):
    """The launches of a program for one shape of its inputs."""

    def __init__(
        self,
        context: Context,
        device: GraphDevice,
        inputs: Mapping[str, Tensor],
        work: Callable[[Mapping[str, Tensor]], Outputs],
    ) -> None:
        """Capture `work`, which must have run with inputs of these shapes before: what it prepares at its first run is
        not captured. The inputs are the graph's own from now on."""
        super().__init__(context, f"captured graph of {len(inputs)} inputs")
        self.inputs, self._device = inputs, device
        self._graph, self._outputs = device.capture(lambda: work(inputs))

    def replay(self, arrays: Mapping[str, Handle]) -> Outputs:
        """Launch it with what its inputs hold, and return its outputs. `arrays` are the step's inputs."""
        self.check()
        self._graph.replay()
        self._device.update(self._graph, arrays)
        return {name: tensor.clone() for name, tensor in self._outputs.items()}

    def release(self) -> None:
        self._graph.reset()
        self.inputs, self._outputs = {}, {}


class GraphProgram(FunctionProgram):
    """A program that captures its launches and replays them: for the shapes of warm-up steps when it is prepared, for
    others when a shape of inputs comes for the second time.

    Steps with more than MAX_CAPTURED_TOKENS tokens, with arguments that are read on the host, or whose calls are timed
    run call by call.
    """

    def __init__(self, graph: Graph, backend: Any, device: GraphDevice) -> None:
        super().__init__(graph, backend)
        self._owner: GraphBackend = backend
        self._device = device
        self._host_inputs = [name for name, (_, host) in self._inputs.items() if host]
        self._used_inputs = [name for name, slots in self._inputs.items() if any(slots)]
        self._known_shapes: set[Shapes] = set()
        self._captured: OrderedDict[Shapes, CapturedGraph] = OrderedDict()
        self._output_buffers: dict[str, Tensor] = {}  # flat, of the largest graph, by the output's name

    @property
    def num_graphs(self) -> int:
        """Return the number of shapes whose graph is captured."""
        return len(self._captured)

    def list_compile_tasks(self, warmup_steps: Sequence[WarmupStep] = ()) -> CompileTasks:
        """Return a task for each warm-up step that can be captured: run it, which compiles its kernels, and capture its
        graph."""
        steps = {list_shapes(step.arrays): step for step in warmup_steps if self.can_capture(*step)}
        pending = [(shapes, step) for shapes, step in steps.items() if shapes not in self._captured]
        return {(self, shapes): partial(self.capture_step, step) for shapes, step in pending[:MAX_GRAPHS]}

    @enters_context
    def capture_step(self, step: WarmupStep) -> None:
        """Run a step, and capture a graph for its shapes."""
        super().run(*step)
        self._capture(list_shapes(step.arrays), *step)

    @enters_context
    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """See `Program.run`."""
        if not self.can_capture(arrays, extents):
            return super().run(arrays, extents)
        self.check()
        self.check_caches()
        shapes = list_shapes(arrays)
        if (captured := self._captured.get(shapes)) is None:
            if shapes not in self._known_shapes:
                self._known_shapes.add(shapes)
                return super().run(arrays, extents)
            captured = self._capture(shapes, arrays, extents)
        else:
            self._captured.move_to_end(shapes)
            self._owner.fill(captured.inputs, {name: arrays[name] for name in self._used_inputs})
        return captured.replay(arrays)

    def can_capture(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> bool:
        """Return whether a step's launches can be captured."""
        is_small = extents.get("tokens", 1) <= MAX_CAPTURED_TOKENS
        is_on_device = not any(isinstance(arrays[name], np.ndarray) for name in self._host_inputs)
        return is_small and is_on_device and self.backend.times is None

    def _capture(self, shapes: Shapes, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> CapturedGraph:
        """Capture a graph for inputs of these shapes, which holds copies of `arrays`. Drop the least recently used
        graph if there are too many."""
        inputs = {
            name: self._owner.copy_in(each) if isinstance(each, np.ndarray) else _clone(each)
            for name, each in arrays.items()
        }
        with self.backend.on_device():
            outputs = self._view_outputs(extents)

        def run_into_buffers(inputs: Mapping[str, Tensor]) -> Outputs:
            with self.backend.on_device():
                for name, stored in self.run_calls(inputs).items():
                    outputs[name].copy_(stored)
            return outputs

        captured = self._captured[shapes] = CapturedGraph(self.context, self._device, inputs, run_into_buffers)
        if len(self._captured) > MAX_GRAPHS:
            self._captured.popitem(last=False)[1].free()
        return captured

    def _view_outputs(self, extents: Mapping[str, int]) -> Outputs:
        """Return the output buffers in the shapes of a step. A buffer that is too small is replaced; graphs that were
        captured with the former one keep it."""
        views = {}
        for name, value in self._graph.outputs.items():
            assert isinstance(value.dtype, DType)
            shape = [extents[extent.name] if isinstance(extent, Symbol) else extent for extent in value.shape]
            buffer = self._output_buffers.get(name)
            if buffer is None or buffer.numel() < prod(shape):
                dtype = torch.from_numpy(np.empty(0, value.dtype.numpy)).dtype
                buffer = self._output_buffers[name] = torch.empty(prod(shape), dtype=dtype, device=self._owner.device)
            views[name] = buffer[: prod(shape)].view(shape)
        return views

    def release(self) -> None:
        for captured in self._captured.values():
            captured.free()
        self._captured.clear()
        self._output_buffers.clear()
        super().release()


def _clone(handle: Any) -> Any:
    """Return a copy of an input, with the numbers that its back-end keeps on the host beside it."""
    copy = handle.clone()
    if hasattr(handle, "host_values"):
        copy.host_values = handle.host_values
    return copy


def list_shapes(arrays: Mapping[str, Handle]) -> Shapes:
    """Return the shapes and the types of inputs, by name."""
    return tuple((name, tuple(each.shape), _name_type(each)) for name, each in sorted(arrays.items()))


def _name_type(handle: Handle) -> str:
    """Return the name of an array's type, the same for numpy's and torch's."""
    return str(handle.dtype).removeprefix("torch.")
