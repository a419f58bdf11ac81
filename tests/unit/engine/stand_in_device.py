"""A stand-in for a device that runs by itself: what is launched runs later, in its order, when something is fetched.

Programs, copies and the hashed model's steps are closures in one queue. `run_some` runs the first ones, as a device
would meanwhile; fetching something runs all that was launched before it. An interruption is one of the host: before or
after a launch, or while it waits for a result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sporelm.backends.function_backend import FunctionProgram
from sporelm.backends.protocol import DeviceTraits, Fetch, Handle, MemoryPlanner, Program
from sporelm.backends.reference import ReferenceBackend
from sporelm.engine import EngineConfig, ModelOutput, Step
from sporelm.engine.model_output import PreviousTokens
from sporelm.engine.step import UNKNOWN
from sporelm.ops import Graph, Symbol
from unit.engine.hashed import VOCAB, HashedRunner, StatefulRunner


class Launched:
    """An array that the device has computed, or will."""

    def __init__(
        self, queue: "LaunchQueue", number: int, shape: Sequence[int], compute: Callable[[], np.ndarray]
    ) -> None:
        self.queue, self.number, self.shape, self.compute = queue, number, tuple(shape), compute

    def __getitem__(self, rows: slice) -> "Launched":
        shape = (len(range(*rows.indices(self.shape[0]))), *self.shape[1:])
        return Launched(self.queue, self.number, shape, lambda: self.compute()[rows])

    def fetch(self) -> np.ndarray:
        """Run all that was launched up to this, and return it."""
        self.queue.run_until(self.number)
        found = self.compute()
        assert found.shape == self.shape
        return found


class LaunchQueue:
    """The launches, in order."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.num_done = 0

    def launch(self, work: Callable[[], None]) -> int:
        """Add a launch; return its number."""
        self.waiting.append(work)
        return self.num_done + len(self.waiting)

    def run_until(self, number: int) -> None:
        """Run the launches up to this number."""
        while self.num_done < number:
            self.num_done += 1
            self.waiting.pop(0)()

    def run_some(self, count: int) -> None:
        """Run up to `count` launches."""
        self.run_until(min(self.num_done + count, self.num_done + len(self.waiting)))

    def run_all(self) -> None:
        """Run all launches."""
        self.run_some(len(self.waiting))


class FetchLater:
    """A copy to the host that is made when it is asked for, or when the device comes to it."""

    def __init__(self, device: "StandInDevice", handle: Launched) -> None:
        self.copies: list[np.ndarray] = []
        self.device = device
        self.number = device.queue.launch(lambda: self.copies.append(handle.compute().copy()))

    def result(self) -> np.ndarray:
        self.device.on_wait()
        self.device.queue.run_until(self.number)
        return self.copies[0]


class StandInDevice(ReferenceBackend):
    """The reference as a device that runs by itself."""

    traits = DeviceTraits(is_async=True)

    def __init__(self) -> None:
        super().__init__()
        self.queue = LaunchQueue()
        self.on_launch: Callable[[], None] = lambda: None  # of a program
        self.on_wait: Callable[[], None] = lambda: None
        self.is_doubtful = False  # whether some draws are uncertain, and their tokens wrong
        self.num_draws = 0

    def doubt(self, found: dict[str, np.ndarray], options: np.ndarray) -> None:
        """Change each third draw to a wrong token that is not certain."""
        for row in np.flatnonzero(options[:, 0] > 0).tolist():
            self.num_draws += 1
            if self.num_draws % 3 == 0 and found["tokens"][row] >= 0:
                found["draws"][row, :2] = (found["draws"][row, 0] + 1) % VOCAB, 0
                found["tokens"][row] = found["draws"][row, 0]

    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        return LaterProgram(graph, self)

    def fetch(self, handle: Handle) -> np.ndarray:
        return handle.fetch() if isinstance(handle, Launched) else handle

    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        return self.fetch(handle)[list(rows)]

    def start_fetch(self, handle: Handle) -> Fetch:
        return FetchLater(self, handle)


class LaterProgram(FunctionProgram):
    """A program whose run is launched."""

    def __init__(self, graph: Graph, backend: "StandInDevice") -> None:
        super().__init__(graph, backend)
        self.graph, self.device = graph, backend

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        device, results = self.device, dict[str, np.ndarray]()
        queue = device.queue
        device.on_launch()
        inputs = {name: each if isinstance(each, Launched) else each.copy() for name, each in arrays.items()}

        def compute() -> None:
            known = {name: each.compute() if isinstance(each, Launched) else each for name, each in inputs.items()}
            found = super(LaterProgram, self).run(known, extents)
            results.update({name: np.array(array) for name, array in found.items()})
            if device.is_doubtful and "draws" in results:
                device.doubt(results, known["options"])

        number = queue.launch(compute)

        def output(name: str, value: Any) -> Launched:
            shape = [extents[each.name] if isinstance(each, Symbol) else each for each in value.shape]
            return Launched(queue, number, shape, lambda: results[name])

        return {name: output(name, value) for name, value in self.graph.outputs.items()}


class LaunchedSteps:
    """Makes a runner of the hashed model run its steps later."""

    device: StandInDevice
    fail: str | None

    def run(self, step: Step, previous: PreviousTokens | None = None) -> ModelOutput:
        self.interrupt("before")  # type: ignore[attr-defined]
        num_rows = max(1, sum(each.num_outputs for each in step.sequences))
        found: list[ModelOutput] = []

        def compute() -> None:
            sequences = []
            for each in step.sequences:
                if each.tokens[-1] == UNKNOWN:
                    assert previous is not None
                    handle, row = previous.handle, previous.rows[each.request_id]
                    token = int((handle.compute() if isinstance(handle, Launched) else handle)[row])
                    each = each._replace(tokens=[*each.tokens[:-1], max(token, 0)])
                sequences.append(each)
            fail, self.fail = self.fail, None
            found.append(super(LaunchedSteps, self).run(step._replace(sequences=sequences)))  # type: ignore[misc]
            self.fail = fail

        queue = self.device.queue
        number = queue.launch(compute)
        if step.copies or step.state_copies:
            self.interrupt("copying")  # type: ignore[attr-defined]
        argmax = Launched(queue, number, (num_rows,), lambda: found[0].argmax)
        return ModelOutput(argmax, Launched(queue, number, (num_rows, VOCAB), lambda: found[0].logits), self.device)

    def embed(self, step: Step) -> np.ndarray:
        return self.run(step).logits

    def export_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        self.device.queue.run_all()
        return super().export_pages(pages)  # type: ignore[misc]

    def import_pages(self, pages: Sequence[int], layers: Sequence[np.ndarray]) -> None:
        self.device.queue.run_all()
        super().import_pages(pages, layers)  # type: ignore[misc]

    def export_states(self, states: Sequence[int]) -> list[np.ndarray]:
        self.device.queue.run_all()
        return super().export_states(states)  # type: ignore[misc]

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> Callable[[], Any]:
        """Copy when the device comes to it."""
        found: list[Any] = []
        export = super()
        number = self.device.queue.launch(
            lambda: found.append((export.export_pages(pages), export.export_states(states)))  # type: ignore[misc]
        )

        def finish() -> Any:
            self.device.queue.run_until(number)
            return found[0]

        return finish

    def import_states(self, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        self.device.queue.run_all()
        super().import_states(states, arrays)  # type: ignore[misc]


class LaunchedRunner(LaunchedSteps, HashedRunner):
    """The hashed model on a stand-in device."""

    def __init__(self, limits: EngineConfig, **options: Any) -> None:
        super().__init__(limits, **options)
        self.device = StandInDevice()
        self.device.on_launch = lambda: self.interrupt("sampled")
        self.device.on_wait = lambda: self.interrupt("after")


class LaunchedStatefulRunner(LaunchedSteps, StatefulRunner):
    """The same with recurrent states."""

    def __init__(self, limits: EngineConfig, **options: Any) -> None:
        super().__init__(limits, **options)
        self.device = StandInDevice()
        self.device.on_launch = lambda: self.interrupt("sampled")
        self.device.on_wait = lambda: self.interrupt("after")
