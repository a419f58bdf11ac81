"""Runs steps of a model on a back-end: fills the input arrays, then replays the plan, or runs op by op if eager."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.backend import Backend, Progress
from sporelm.engine.kv.pages import pages_for
from sporelm.engine.limits import Limits
from sporelm.engine.step import Step
from sporelm.models import StepInputs, input_specs, trace_model
from sporelm.ops.attention import PAGE
from sporelm.plan import Plan

MOST_VIEWS = 64  # sets of input views that are kept for step shapes met before


class Model(Protocol):
    """What is run: the configuration, the blocks' `memory`, and `forward`."""

    @property
    def config(self) -> Any: ...
    def memory(self) -> Sequence[Any]: ...
    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]: ...


class Scores(NamedTuple):
    """What a step gives for each wanted row. Both are views that the next step overwrites."""

    best: NDArray[np.int32]  # [rows] the argmax, -1 for a row with NaN
    logits: NDArray[np.float32]  # [rows, vocab]


class Inputs:
    """The int32 arrays of a step, allocated once for the largest one and seen through views of the right extents."""

    def __init__(self, limits: Limits) -> None:
        tokens, sequences = limits.token_budget, limits.max_batch
        self.arrays = {
            "tokens": np.zeros(tokens, np.int32),
            "positions": np.zeros(tokens, np.int32),
            "slots": np.zeros(tokens, np.int32),
            "starts": np.zeros(sequences + 1, np.int32),
            "lengths": np.zeros(sequences, np.int32),
            "pages": np.zeros((sequences, pages_for(limits.max_context)), np.int32),
            "rows": np.zeros(tokens, np.int32),
        }
        # Writing one number through a memoryview takes half the time it takes through the array.
        self.cells = {name: array.data for name, array in self.arrays.items() if array.ndim == 1}
        self.tables: list[tuple[int, ...] | None] = [None] * sequences  # whose pages each line of "pages" holds
        self.views: dict[tuple[int, int, int], tuple[dict[str, np.ndarray], dict[str, int]]] = {}

    def fill(self, step: Step) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """The arrays of a step by name, and its extents by symbol. Valid until the next fill."""
        cells, arrays = self.cells, self.arrays
        tokens, positions, slots = cells["tokens"], cells["positions"], cells["slots"]
        starts, lengths, rows = cells["starts"], cells["lengths"], cells["rows"]
        row = wanted = 0
        for index, (_, ids, position, pages, outputs) in enumerate(step.parts):
            if self.tables[index] is not pages:
                arrays["pages"][index, : len(pages)] = pages
                self.tables[index] = pages
            count = len(ids)
            if count == 1:
                tokens[row] = ids[0]
                positions[row] = position
                slots[row] = pages[position // PAGE] * PAGE + position % PAGE
            else:
                places = np.arange(position, position + count, dtype=np.int32)
                arrays["tokens"][row : row + count] = ids
                arrays["positions"][row : row + count] = places
                arrays["slots"][row : row + count] = arrays["pages"][index, places // PAGE] * PAGE + places % PAGE
            row += count
            starts[index + 1] = row
            lengths[index] = position + count
            for output in range(row - outputs, row):
                rows[wanted] = output
                wanted += 1
        if not wanted:  # a program computes at least one row
            rows[0], wanted = row - 1, 1
        key = (row, len(step.parts), wanted)
        return self.views.get(key) or self._view(key)

    def _view(self, key: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        tokens, sequences, rows = key
        extents = {"tokens": tokens, "sequences": sequences, "starts": sequences + 1, "rows": rows}
        lengths = {"positions": tokens, "slots": tokens, "lengths": sequences, "pages": sequences, **extents}
        del lengths["sequences"]
        if len(self.views) >= MOST_VIEWS:
            self.views.clear()
        self.views[key] = {name: array[: lengths[name]] for name, array in self.arrays.items()}, extents
        return self.views[key]


class Runner:
    """One model on one back-end. `caches` holds the pages of each layer."""

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, Any],
        caches: Sequence[Any],
        backend: Backend,
        limits: Limits,
        *,
        eager: bool = False,
    ) -> None:
        self.model, self.weights, self.caches, self.backend = model, weights, caches, backend
        self.inputs = Inputs(limits)
        self.compile_s = 0.0  # seconds spent making programs
        self.plan: Plan | None = None
        if not eager:
            began = perf_counter()
            tokens, sequences = limits.token_budget, limits.max_batch
            specs = input_specs(tokens, sequences, tokens, pages_for(limits.max_context))
            self.plan = Plan(trace_model(model, weights, caches, specs), backend)
            self.compile_s = perf_counter() - began

    def prepare(self, progress: Progress | None = None) -> None:
        """Make all programs now rather than when a step first needs one. Does nothing if eager."""
        if self.plan is not None:
            began = perf_counter()
            self.plan.prepare(None, progress)
            self.compile_s += perf_counter() - began

    def run(self, step: Step) -> Scores:
        """Compute a step. Changes the caches."""
        if step.copies:
            self.copy_pages(step.copies)
        arrays, extents = self.inputs.fill(step)
        if self.plan is None:
            tensors = StepInputs(**{name: self.backend.tensor(array) for name, array in arrays.items()})
            results = self.model.forward(tensors, self.weights, self.caches)
            return Scores(results["tokens"].numpy(), results["logits"].numpy())
        if len(self.plan.built) < len(self.backend.regimes):
            began = perf_counter()
            self.plan.regime(self.plan.regime_of(extents))
            self.compile_s += perf_counter() - began
        outputs = self.plan.run(arrays, extents)
        return Scores(outputs["tokens"], outputs["logits"])

    def close(self) -> None:
        """Free the programs."""
        if self.plan is not None:
            self.plan.close()

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, target) in every cache, one after the other. Changes the caches."""
        for source, target in copies:
            for cache in self.caches:
                self.backend.import_pages(cache, [target], self.backend.export_pages(cache, [source]))

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """What pages hold, of each layer: [pages, 2, kv_heads, PAGE, head_dim]."""
        return [self.backend.export_pages(cache, pages) for cache in self.caches]

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Put into pages what `export_pages` gave. Changes the caches."""
        for cache, layer in zip(self.caches, layers, strict=True):
            self.backend.import_pages(cache, pages, layer)
