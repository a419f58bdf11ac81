"""Runs steps of a model on a back-end: fills the input arrays, then replays the plan, or runs op by op if eager."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, Progress
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.lora_runtime import LoraRuntime, LoraWeights, unknown
from sporelm.engine.step import Step
from sporelm.models import StepInputs, compute, input_specs, trace_model
from sporelm.models.inputs import ADAPTERS, Forward
from sporelm.ops import Spec
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan

MOST_VIEWS = 64  # sets of input views that are kept for step shapes met before


class Model(Protocol):
    """What is run: the configuration, the blocks' `memory`, `forward` to scores, and `embed`."""

    @property
    def config(self) -> Any: ...
    def memory(self) -> Sequence[Any]: ...
    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]: ...
    def embed(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]: ...


class ModelOutput(NamedTuple):
    """What a step gives for each wanted row. Both are views that the next step overwrites."""

    best: NDArray[np.int32]  # [rows] the argmax, -1 for a row with NaN
    logits: NDArray[np.float32]  # [rows, vocab]


class Inputs:
    """The int32 arrays of a step, allocated once for the largest one and seen through views of the right extents."""

    def __init__(self, limits: EngineConfig) -> None:
        tokens, sequences = limits.token_budget, limits.max_batch
        self.arrays = {
            "tokens": np.zeros(tokens, np.int32),
            "positions": np.zeros(tokens, np.int32),
            "slots": np.zeros(tokens, np.int32),
            "starts": np.zeros(sequences + 1, np.int32),
            "lengths": np.zeros(sequences, np.int32),
            "pages": np.zeros((sequences, count_pages(limits.max_context)), np.int32),
            "rows": np.zeros(tokens, np.int32),
            "states": np.zeros(sequences, np.int32),
        }
        # Writing one number through a memoryview takes half the time it takes through the array.
        self.cells = {name: array.data for name, array in self.arrays.items() if array.ndim == 1}
        self.tables: list[tuple[int, ...] | None] = [None] * sequences  # whose pages each line of "pages" holds
        self.views: dict[tuple[int, int, int], tuple[dict[str, np.ndarray], dict[str, int]]] = {}

    def fill(self, step: Step) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """The arrays of a step by name, and its extents by symbol. Valid until the next fill."""
        cells, arrays = self.cells, self.arrays
        tokens, positions, slots = cells["tokens"], cells["positions"], cells["slots"]
        starts, lengths, rows, states = cells["starts"], cells["lengths"], cells["rows"], cells["states"]
        row = wanted = 0
        for index, (_, ids, position, pages, outputs, _, state) in enumerate(step.sequences):
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
            states[index] = state
            for output in range(row - outputs, row):
                rows[wanted] = output
                wanted += 1
        if not wanted:  # a program computes at least one row
            rows[0], wanted = row - 1, 1
        key = (row, len(step.sequences), wanted)
        return self.views.get(key) or self._view(key)

    def _view(self, key: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        tokens, sequences, rows = key
        extents = {"tokens": tokens, "sequences": sequences, "starts": sequences + 1, "rows": rows}
        lengths = dict.fromkeys(("tokens", "positions", "slots"), tokens)
        lengths |= dict.fromkeys(("lengths", "pages", "states"), sequences) | {"starts": sequences + 1, "rows": rows}
        if len(self.views) >= MOST_VIEWS:
            self.views.clear()
        self.views[key] = {name: array[: lengths[name]] for name, array in self.arrays.items()}, extents
        return self.views[key]


class Runner:
    """One model on one back-end. `caches` has what each layer keeps: pages, or a tuple of arrays of states."""

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, Any],
        caches: Sequence[Any],
        backend: Backend,
        limits: EngineConfig,
        *,
        eager: bool = False,
    ) -> None:
        self.model, self.weights, self.caches, self.backend = model, weights, caches, backend
        self.states = [cache for cache in caches if isinstance(cache, tuple)]
        self.paged = [cache for cache in caches if not isinstance(cache, tuple)]
        self.inputs = Inputs(limits)
        self.compile_s = 0.0  # seconds spent making programs
        self.filled_at = 0.0  # when the last step's inputs were ready, of perf_counter
        tokens, sequences = limits.token_budget, limits.max_batch
        self.specs = input_specs(tokens, sequences, tokens, count_pages(limits.max_context))
        self.plan = None if eager else self._traced(model.forward)
        self.embedding_plan: Plan | None = None  # made when something is embedded
        self.lora_runtime: LoraRuntime | None = None  # in use, if any adapter is

    def prepare(self, progress: Progress | None = None) -> None:
        """Make all programs now rather than when a step first needs one. Does nothing if eager."""
        if self.plan is not None:
            began = perf_counter()
            self.plan.prepare(None, progress)
            self.compile_s += perf_counter() - began

    def run(self, step: Step) -> ModelOutput:
        """Compute a step. Changes the caches."""
        outputs = self._compute(step, self.model.forward, self.plan)
        return ModelOutput(outputs["tokens"], outputs["logits"])

    def embed(self, step: Step) -> NDArray[np.float32]:
        """What a step's wanted rows are before tokens are scored: float32 [rows, width], a view that the next step
        overwrites. Changes the caches."""
        if self.plan is not None and self.embedding_plan is None:
            self.embedding_plan = self._traced(self.model.embed)
        found: NDArray[np.float32] = self._compute(step, self.model.embed, self.embedding_plan)["hidden"]
        return found

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        """What runs steps with these adapters, by number, its programs made. Changes nothing: `use` does."""
        made = LoraRuntime(adapters, self.weights, None if self.plan is None else self._traced)
        plan = made.plan(self.model.forward, self.specs["tokens"].shape[0])
        if plan is not None:
            began = perf_counter()
            plan.prepare()
            self.compile_s += perf_counter() - began
        return made

    def use(self, adapted: LoraRuntime | None) -> None:
        """Run steps with these adapters from now on, and free the programs of those before."""
        if self.lora_runtime is not None:
            self.lora_runtime.close()
        self.lora_runtime = adapted

    def _traced(
        self, forward: Forward, weights: Mapping[str, Any] | None = None, more: Mapping[str, Spec] | None = None
    ) -> Plan:
        began = perf_counter()
        graph = trace_model(forward, weights or self.weights, self.caches, {**self.specs, **(more or {})})
        plan = Plan(graph, self.backend)
        self.compile_s += perf_counter() - began
        return plan

    def _compute(self, step: Step, forward: Forward, plan: Plan | None) -> dict[str, np.ndarray]:
        """The outputs of a step: by its plan, or op by op without one."""
        if step.copies:
            self.copy_pages(step.copies)
        if step.state_copies:
            self.backend.copy_states(self.states, step.state_copies)
        arrays, extents = self.inputs.fill(step)
        weights = self.weights
        if any(scheduled.adapter_id for scheduled in step.sequences):
            if self.lora_runtime is None:
                raise unknown(max(scheduled.adapter_id for scheduled in step.sequences))
            arrays = {**arrays, ADAPTERS: self.lora_runtime.rows(step)}
            weights, plan = self.lora_runtime.weights, self.lora_runtime.plan(forward, self.specs["tokens"].shape[0])
        self.filled_at = perf_counter()
        if plan is None:
            tensors = {name: self.backend.tensor(array) for name, array in arrays.items()}
            results = compute(forward, tensors, weights, self.caches)
            return {name: result.numpy() for name, result in results.items()}
        if len(plan.bucket_programs) < len(self.backend.step_buckets):
            began = perf_counter()
            plan.bucket_program(plan.find_bucket(extents))
            self.compile_s += perf_counter() - began
        return plan.run(arrays, extents)

    def close(self) -> None:
        """Free the programs."""
        for plan in (self.plan, self.embedding_plan, self.lora_runtime):
            if plan is not None:
                plan.close()

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, target) in every cache, one after the other. Changes the caches."""
        for source, target in copies:
            for cache in self.paged:
                self.backend.import_pages(cache, [target], self.backend.export_pages(cache, [source]))

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """What pages hold, of each layer: [pages, 2, kv_heads, PAGE, head_dim], or [pages, 1, 1, PAGE, width]."""
        return [self.backend.export_pages(cache, pages) for cache in self.paged]

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Put into pages what `export_pages` gave. Changes the caches."""
        for cache, layer in zip(self.paged, layers, strict=True):
            self.backend.import_pages(cache, pages, layer)

    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]:
        """What recurrent states hold, each array of each layer: [states, ...]. None of models without such."""
        return self.backend.export_states(self.states, states) if self.states else []

    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Put into states what `export_states` gave. Changes the caches."""
        if self.states:
            self.backend.import_states(self.states, states, arrays)
