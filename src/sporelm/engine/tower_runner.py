"""The runner of a vision tower: computes the rows of one picture in pieces (chunks of rows)."""

from collections.abc import Generator, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import ArenaSharer, Backend
from sporelm.errors import RequestError
from sporelm.models.tower import Tower, TowerStage
from sporelm.models.tower_inputs import ImageInput
from sporelm.ops import Spec, Symbol, trace
from sporelm.ops.spec import require_fixed
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32

PIECE_ROWS = 256  # of the first pieces; later ones adapt to the caller's time limit
MIN_PIECE_ROWS, MAX_PIECE_ROWS = 32, 1024  # larger pieces reuse weights little better
MAX_ROWS = 1 << 15  # patches of one picture, and the rows that the tower adds to them
ALL_ROWS = "all rows"  # the symbol of arrays that a piece reads whole
Arrays = dict[str, NDArray[Any]]


class TowerRunner:
    """One tower on one back-end. The result of a row does not depend on the pieces."""

    def __init__(self, tower: Tower, weights: Mapping[str, Any], backend: Backend, *, eager: bool = False) -> None:
        self.tower, self.weights, self.backend, self.eager = tower, weights, backend, eager
        self.plan_backend = backend.sharing_arena() if isinstance(backend, ArenaSharer) else backend
        self.stages = tower.stages()
        self.host = {name: np.asarray(weights[name].numpy(), np.float32) for name in tower.host_weights}
        self.max_piece_rows = max(MAX_PIECE_ROWS, *backend.step_buckets.values())
        self.piece_rows = min(PIECE_ROWS, self.max_piece_rows)
        self.compile_s = 0.0  # seconds spent tracing and compiling programs
        self._plans: dict[int, Plan] = {}  # by index of the stage

    def start(self, image: ImageInput) -> "TowerJob":
        """Return a job for a picture. Nothing is computed yet."""
        return TowerJob(self, image)

    def check(self, image: ImageInput) -> None:
        """Raise RequestError for a picture with too many patches, counting the rows that the tower adds."""
        num_rows = len(image.patches) + self.tower.added_rows * len(image.grids)
        if num_rows > MAX_ROWS:
            raise RequestError(f"image: too many patches (got {num_rows}; allowed {MAX_ROWS}). Send a smaller picture.")

    def compute(self, image: ImageInput) -> NDArray[np.float32]:
        """Return the rows of a picture: float32 [num_rows, columns]."""
        job = self.start(image)
        job.advance(None)
        assert job.rows is not None
        return job.rows

    def prepare(self, image: ImageInput) -> None:
        """Compile all programs ahead of time, for inputs shaped like this one. Does nothing if eager."""
        if self.eager:
            return
        began = perf_counter()
        arrays = {name: make_spec(array) for name, array in self.tower.prepare(image, self.host).items()}
        for index, stage in enumerate(self.stages):
            specs = self._stage_specs(stage, arrays)
            if index not in self._plans:
                self._plans[index] = self._trace_plan(stage, specs)
            plan = self._plans[index]
            plan.prepare()
            arrays |= {name: Spec((0, *value.shape[1:]), value.dtype) for name, value in plan.graph.outputs.items()}
        self.compile_s += perf_counter() - began

    def close(self) -> None:
        """Free the programs."""
        for plan in self._plans.values():
            plan.close()

    def run_piece(self, index: int, inputs: Arrays) -> Arrays:
        """Run one stage on a piece of rows. The next call may overwrite the returned arrays."""
        stage = self.stages[index]
        if self.eager:
            arrays = {name: self.backend.tensor(np.ascontiguousarray(array)) for name, array in inputs.items()}
            return {name: result.numpy() for name, result in stage.compute(arrays, self.weights).items()}
        began = perf_counter()
        plan = self._plans.get(index)
        if plan is None:
            specs = {name: make_spec(array) for name, array in inputs.items()}
            plan = self._plans[index] = self._trace_plan(stage, self._bound_rows(stage, specs))
        extents = {"tokens": len(inputs[stage.rows[0]])}
        extents |= {ALL_ROWS: len(inputs[stage.whole[0]])} if stage.whole else {}
        plan.bucket_program(plan.find_bucket(extents))
        self.compile_s += perf_counter() - began
        return plan.run(inputs, extents)

    def _stage_specs(self, stage: TowerStage, arrays: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return the specs of a stage's inputs, from the specs of all arrays so far."""
        specs = {name: arrays[name] for name in (*stage.rows, *stage.whole)}
        for name in stage.rows if stage.group > 1 else ():
            (columns,) = specs[name].shape[1:]
            specs[name] = Spec((0, stage.group * require_fixed(columns)), specs[name].dtype)
        return self._bound_rows(stage, specs)

    def _bound_rows(self, stage: TowerStage, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return the specs with symbols for rows: those of a piece, and all rows."""
        piece, whole = Symbol("tokens", self.max_piece_rows), Symbol(ALL_ROWS, MAX_ROWS)
        return {
            name: Spec((piece if name in stage.rows else whole, *spec.shape[1:]), spec.dtype)
            for name, spec in specs.items()
        }

    def _trace_plan(self, stage: TowerStage, specs: Mapping[str, Spec]) -> Plan:
        graph = trace(lambda **arrays: stage.compute(arrays, self.weights), specs)
        return Plan(graph, self.plan_backend, self.max_piece_rows)


class TowerJob:
    """The computation of the rows of one picture."""

    def __init__(self, runner: TowerRunner, image: ImageInput) -> None:
        self.runner, self.image = runner, image
        self.rows: NDArray[np.float32] | None = None  # float32 [num_rows, columns] once it is done
        self.num_pieces = 0
        self._pieces: Generator[None, int, NDArray[np.float32]] | None = None

    @property
    def is_done(self) -> bool:
        return self.rows is not None

    def advance(self, seconds: float | None) -> None:
        """Compute for about this time; None: to the end. The size of pieces adapts to the time."""
        runner, began = self.runner, perf_counter()
        if seconds is None:
            runner.piece_rows = runner.max_piece_rows
        while self.rows is None:
            piece_began = perf_counter()
            try:
                if self._pieces is None:
                    self._pieces = self._compute()
                next(self._pieces)
            except StopIteration as end:
                self.rows, self._pieces = end.value, None
                return
            self.num_pieces += 1
            if seconds is None:
                continue
            taken, now = perf_counter() - piece_began, perf_counter()
            if taken > seconds:
                runner.piece_rows = max(MIN_PIECE_ROWS, runner.piece_rows // 2)
            elif taken < seconds / 4:
                runner.piece_rows = min(runner.max_piece_rows, runner.piece_rows * 2)
            if now - began + taken > seconds:  # the time left is too short for another piece
                return

    def _compute(self) -> Generator[None, int, NDArray[np.float32]]:
        runner = self.runner
        arrays: Arrays = runner.tower.prepare(self.image, runner.host)
        computed, spare = Arrays(), Arrays()  # outputs of stages: the latest of each name, and the one before it
        for index, stage in enumerate(runner.stages):
            inputs = {name: group_rows(arrays[name], stage.group) for name in stage.rows}
            whole = {name: arrays[name] for name in stage.whole}
            num_rows, first, results = len(inputs[stage.rows[0]]), 0, dict[str, NDArray[Any]]()
            while first < num_rows:
                last = min(num_rows, first + max(1, runner.piece_rows // stage.group))
                piece = {name: np.ascontiguousarray(array[first:last]) for name, array in inputs.items()}
                for name, result in runner.run_piece(index, {**piece, **whole}).items():
                    if name not in results:
                        results[name] = _take_array(spare, name, (num_rows, *result.shape[1:]), result.dtype)
                    results[name][first:last] = result
                first = last
                yield
            arrays |= results
            spare |= {name: computed[name] for name in results if name in computed}
            computed |= results
        return np.array(runner.tower.finish(arrays["rows"], self.image, runner.host))


def _take_array(spare: Arrays, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array for results: a spare one if it has the shape, since fresh pages must be zeroed by the system."""
    array = spare.pop(name, None)
    return array if array is not None and array.shape == shape and array.dtype == dtype else np.empty(shape, dtype)


def make_spec(array: NDArray[Any]) -> Spec:
    """Return the spec of an array, float32 or int32."""
    return Spec(array.shape, I32 if array.dtype == np.int32 else F32)


def group_rows(array: NDArray[Any], group: int) -> NDArray[Any]:
    """Return an array [rows, width] as [rows / group, group * width]."""
    return array if group == 1 else array.reshape(len(array) // group, group * array.shape[1])
