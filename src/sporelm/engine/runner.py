"""The runner: fills the input arrays of a step, then replays the plan, or runs op by op if eager."""

from collections.abc import Mapping, Sequence
from threading import Lock
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.context import Context
from sporelm.backends.protocol import Backend, Fetch, Handle, Progress, SlotWriter, WarmupStep
from sporelm.backends.reference_fallback import substitute_values
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.lora_runtime import AdapterTable, LoraRuntime, LoraWeights, fill_table, unknown_adapter_error
from sporelm.engine.model_output import ModelOutput, PreviousTokens
from sporelm.engine.padded_inputs import PaddedInputs
from sporelm.engine.step import UNKNOWN, Step, vocabulary_ids
from sporelm.models import StepInputs, compute, input_specs, trace_model
from sporelm.models.inputs import ADAPTERS, SAMPLED, SOURCES, Forward, image_specs, sampled_specs
from sporelm.models.sharded_model import ShardedModel
from sporelm.ops import Graph, Spec
from sporelm.ops.paged_attention import PAGE
from sporelm.plan import Plan

NO_TOKENS, NO_LOGITS = np.zeros(0, np.int32), np.zeros((0, 0), np.float32)
MAX_VIEWS = 64  # sets of input views that are kept, one for each step shape


class Model(Protocol):
    """A model: its configuration, the `memory` that its blocks keep, `forward` to logits, and `embed`."""

    @property
    def config(self) -> Any: ...
    def memory(self) -> Sequence[Any]: ...
    @property
    def has_rope_positions(self) -> bool: ...
    @property
    def attends_images_both_ways(self) -> bool: ...
    def forward(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]: ...
    def embed(self, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> dict[str, Any]: ...


class InputArrays:
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
        self.page_tables: list[tuple[int, ...] | None] = [None] * sequences  # in each row of "pages"
        self.views: dict[tuple[int, int, int], tuple[dict[str, np.ndarray], dict[str, int]]] = {}

    def fill(self, step: Step) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the arrays of a step by name, and its extents by symbol. Valid until the next fill."""
        cells, arrays = self.cells, self.arrays
        tokens, positions, slots = cells["tokens"], cells["positions"], cells["slots"]
        starts, lengths, rows, states = cells["starts"], cells["lengths"], cells["rows"], cells["states"]
        row = num_rows = 0
        for index, scheduled in enumerate(step.sequences):
            _, ids, position, page_table, num_outputs, _, state_slot, _, images, _ = scheduled
            if self.page_tables[index] is not page_table:
                arrays["pages"][index, : len(page_table)] = page_table
                self.page_tables[index] = page_table
            count = len(ids)
            if count == 1:
                tokens[row] = vocabulary_ids(scheduled)[0] if images else ids[0]
                positions[row] = position
                slots[row] = page_table[position // PAGE] * PAGE + position % PAGE
            else:
                span = np.arange(position, position + count, dtype=np.int32)
                arrays["tokens"][row : row + count] = vocabulary_ids(scheduled) if images else ids
                arrays["positions"][row : row + count] = span
                arrays["slots"][row : row + count] = arrays["pages"][index, span // PAGE] * PAGE + span % PAGE
            row += count
            starts[index + 1] = row
            lengths[index] = position + count
            states[index] = state_slot
            for output in range(row - num_outputs, row):
                rows[num_rows] = output
                num_rows += 1
        if not num_rows:  # a program computes at least one row
            rows[0], num_rows = row - 1, 1
        key = (row, len(step.sequences), num_rows)
        return self.views.get(key) or self._view(key)

    def _view(self, key: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        tokens, sequences, rows = key
        extents = {"tokens": tokens, "sequences": sequences, "starts": sequences + 1, "rows": rows}
        lengths = dict.fromkeys(("tokens", "positions", "slots"), tokens)
        lengths |= dict.fromkeys(("lengths", "pages", "states"), sequences) | {"starts": sequences + 1, "rows": rows}
        if len(self.views) >= MAX_VIEWS:
            self.views.clear()
        self.views[key] = {name: array[: lengths[name]] for name, array in self.arrays.items()}, extents
        return self.views[key]


class Runner:
    """One model on one back-end. `caches` has the memory of each layer: pages, or a tuple of state arrays."""

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
        self.limits, self.is_async = limits, backend.traits.is_async
        self.inputs = InputArrays(limits)
        self.compile_s = 0.0  # seconds spent compiling programs
        self.filled_at = 0.0  # when the last step's inputs were ready, of perf_counter
        tokens, sequences = limits.token_budget, limits.max_batch
        self.padded_inputs: PaddedInputs | None = None
        self.specs = input_specs(tokens, sequences, tokens, count_pages(limits.max_context))
        self.plan: Plan | None = None
        if not eager:
            self._pad_inputs()
            self.plan = self._trace_plan(model.forward)
        self.embedding_plan: Plan | None = None  # traced when it is first needed
        self.image_plans: dict[str, Plan] = {}  # of steps with images, by the name of the forward function; likewise
        self.image_columns = 0  # values of a row of an image; 0: the model takes no images
        self.lora_runtime: LoraRuntime | None = None  # in use, if any adapter is loaded
        self.adapter_table: AdapterTable | None = None  # of it, or of the one before

    @property
    def kv(self) -> str:
        """The data type of pages, a value of --kv."""
        return str(self.paged[0].dtype.name).lower() if self.paged else "f16"

    def _pad_inputs(self) -> None:
        """Pad inputs to the device's buckets, if it wants that and has functions for all ops that need it."""
        buckets = self.backend.traits.input_buckets
        if buckets is None:
            return
        padded = PaddedInputs(self.limits, buckets)
        specs = input_specs(
            padded.max_tokens, padded.max_sequences, padded.outputs[-1], padded.columns[-1], padded=True
        )
        # Of exact extents: ops with host arguments may need a fixed number of columns.
        graph = trace_model(self.model.forward, self.weights, self.caches, self.specs)
        if {call.op.name for call in graph.calls if call.op.host} <= set(self.backend.padded_ops):
            self.padded_inputs, self.specs = padded, specs

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile all programs now rather than when a step first needs one, and capture graphs for the steps of
        decoding and of short prompts. Does nothing if eager."""
        if self.plan is not None:
            began = perf_counter()
            self.plan.prepare(None, progress, self._list_warmup_steps())
            self.compile_s += perf_counter() - began

    def prepare_images(self) -> None:
        """Compile the programs of steps with images now rather than at the first one. Does nothing if eager."""
        if self.plan is not None:
            plan = self._find_image_plan(self.model.forward, self._image_specs())
            began = perf_counter()
            plan.prepare()
            self.compile_s += perf_counter() - began

    def run(self, step: Step, previous: PreviousTokens | None = None) -> ModelOutput:
        """Launch a step. Changes the caches. `previous` has the tokens that are UNKNOWN in the step."""
        outputs = self._compute(step, self.model.forward, self.plan, previous)
        if not outputs:  # of a stage before the last
            return ModelOutput(NO_TOKENS, NO_LOGITS)
        num_rows = None if self.padded_inputs is None else step.num_outputs
        return ModelOutput(outputs["tokens"], outputs["logits"], self.backend, num_rows)

    def embed(self, step: Step) -> NDArray[np.float32]:
        """Compute a step; return its last hidden states: float32 [rows, width], a view that the next step overwrites.
        Changes the caches."""
        if self.plan is not None and self.embedding_plan is None:
            self.embedding_plan = self._trace_plan(self.model.embed)
        hidden = self._compute(step, self.model.embed, self.embedding_plan).get("hidden")
        if hidden is None:  # of a stage before the last
            return NO_LOGITS
        if self.padded_inputs is not None:
            hidden = hidden[: step.num_outputs]
        return self.backend.fetch(hidden)

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        """Return a compiled runtime for these adapters, by id, for `set_lora_runtime`. Changes nothing that a step
        uses."""
        trace_plan = None if self.plan is None else self._trace_plan
        if isinstance(self.backend, SlotWriter):
            used = self.lora_runtime.places if self.lora_runtime is not None else {}
            table, slots = fill_table(self.adapter_table, used, adapters, self.backend)
            lora_runtime = LoraRuntime(adapters, self.weights, trace_plan, table, slots)
        else:
            lora_runtime = LoraRuntime(adapters, self.weights, trace_plan)
        plan = lora_runtime.plan(self.model.forward, self.specs["tokens"].shape[0])
        if plan is not None:
            began = perf_counter()
            plan.prepare()
            self.compile_s += perf_counter() - began
        return lora_runtime

    def set_lora_runtime(self, lora_runtime: LoraRuntime | None) -> None:
        """Run steps with these adapters from now on, and free the programs of the former ones, if they have others.

        A table stays after its last adapter: its programs serve the next one.
        """
        former, self.lora_runtime = self.lora_runtime, lora_runtime
        if former is not None and former.table is None:
            former.close()
        table = lora_runtime.table if lora_runtime is not None else self.adapter_table
        if table is not self.adapter_table and self.adapter_table is not None:
            self.adapter_table.close()
        self.adapter_table = table

    def discard_lora_runtime(self, lora_runtime: LoraRuntime) -> None:
        """Free the programs of a runtime that `set_lora_runtime` did not get, unless the current one has them too."""
        if lora_runtime.table is None or lora_runtime.table is not self.adapter_table:
            lora_runtime.close()

    def _trace(self, forward: Forward, weights: Mapping[str, Any], specs: Mapping[str, Spec]) -> Graph:
        """Return the graph of one step: of this rank's stage, if the model has several."""
        graph = trace_model(forward, weights, self.caches, specs)
        return self.model.local_graph(graph) if isinstance(self.model, ShardedModel) else graph

    def _trace_plan(
        self, forward: Forward, weights: Mapping[str, Any] | None = None, extra_specs: Mapping[str, Spec] | None = None
    ) -> Plan:
        began = perf_counter()
        specs = {**self.specs, **(extra_specs or {})}
        if self.is_async:
            specs |= sampled_specs(
                self.specs["tokens"].bound[0], max(self.limits.max_batch, self.specs["rows"].bound[0])
            )
        graph = self._trace(forward, weights or self.weights, specs)
        plan = Plan(graph, self.backend, self.specs["tokens"].bound[0] if self.padded_inputs is not None else 0)
        self.compile_s += perf_counter() - began
        return plan

    def _compute(
        self, step: Step, forward: Forward, plan: Plan | None, previous: PreviousTokens | None = None
    ) -> dict[str, Handle]:
        """Launch a step and return handles of its outputs: by its plan, or op by op without one."""
        if step.copies:
            self.backend.copy_pages(self.paged, step.copies)
        if step.state_copies:
            self.backend.copy_states(self.states, step.state_copies)
        arrays: Mapping[str, Handle]
        if self.padded_inputs is not None:
            arrays, extents, first_rows = self.padded_inputs.fill(step)
            arrays |= self._upload_host_arguments(arrays)
        else:
            arrays, extents = self.inputs.fill(step)
            first_rows = None
        weights = self.weights
        extra_specs: dict[str, Spec] = {}
        if self.image_columns and step.has_images:
            rows = first_rows or np.cumsum([0, *[len(each.tokens) for each in step.sequences[:-1]]]).tolist()
            arrays = {**arrays, **self._image_inputs(step, rows, np.asarray(arrays["positions"]))}
            extents = {**extents, "image_rows": len(arrays["image_values"])}
            extra_specs = self._image_specs()
            if plan is not None and not any(scheduled.adapter_id for scheduled in step.sequences):
                plan = self._find_image_plan(forward, extra_specs)
        if any(scheduled.adapter_id for scheduled in step.sequences):
            if self.lora_runtime is None:
                raise unknown_adapter_error(max(scheduled.adapter_id for scheduled in step.sequences))
            adapter_rows = self.lora_runtime.adapter_rows(step)
            if first_rows is not None:
                adapter_rows = spread_rows(adapter_rows, step, first_rows, extents["tokens"])
            is_stacked = self.lora_runtime.table is not None and plan is not None
            is_uploaded = is_stacked and "add_lora" in self.backend.padded_ops
            arrays = {**arrays, ADAPTERS: self.backend.upload(adapter_rows) if is_uploaded else adapter_rows}
            weights = self.lora_runtime.weights
            plan = self.lora_runtime.plan(forward, self.specs["tokens"].shape[0], extra_specs)
        if plan is not None and self.is_async:
            num_sampled = 1 if first_rows is None else extents["rows"]
            arrays = {**arrays, **sampled_inputs(step, previous, first_rows, extents["tokens"], num_sampled)}
            extents = {**extents, "sampled": len(arrays[SAMPLED])}
        self.filled_at = perf_counter()
        if plan is None:
            tensors = {name: self.backend.tensor(array) for name, array in arrays.items()}
            if isinstance(self.model, ShardedModel) and self.model.parallel.pp > 1:  # only a graph has stages
                results = run_calls(self._trace(forward, weights, {**self.specs, **extra_specs}), tensors)
            else:
                results = compute(forward, tensors, weights, self.caches)
            return {name: result.numpy() for name, result in results.items()}
        if len(plan.bucket_programs) < len(self.backend.step_buckets):
            began = perf_counter()
            plan.bucket_program(plan.find_bucket(extents))
            self.compile_s += perf_counter() - began
        return plan.launch(arrays, extents)

    def _upload_host_arguments(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Handle]:
        """Return the arguments on the device that ops read on the host in steps of exact extents."""
        names = ("starts", "lengths", "states") if self.states else ("starts", "lengths")
        return {name: self.backend.upload(arrays[name]) for name in names}

    def _list_warmup_steps(self) -> list[WarmupStep]:
        """Return warm-up steps, whose rows are all padding; none if inputs are not padded."""
        steps = []
        for padding, extents in self.padded_inputs.iterate_warmup_inputs() if self.padded_inputs is not None else ():
            arrays = {**padding, **self._upload_host_arguments(padding)}
            if self.is_async:
                arrays |= sampled_inputs(Step([], []), None, (), extents["tokens"], extents["rows"])
                extents["sampled"] = extents["rows"]
            steps.append(WarmupStep(arrays, extents))
        return steps

    def _image_specs(self) -> dict[str, Spec]:
        """Return the specs of the inputs that steps with images have besides."""
        return image_specs(
            self.specs["tokens"].shape[0],
            self.limits.token_budget,
            self.image_columns,
            rope_positions=self.model.has_rope_positions,
            spans=self.model.attends_images_both_ways,
        )

    def _find_image_plan(self, forward: Forward, extra_specs: Mapping[str, Spec]) -> Plan:
        """Return the plan of a forward function for steps with images, traced when it is first needed."""
        name = forward.__name__
        if name not in self.image_plans:
            self.image_plans[name] = self._trace_plan(forward, extra_specs=extra_specs)
        return self.image_plans[name]

    def _image_inputs(
        self, step: Step, first_rows: Sequence[int], positions: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Return the inputs of images, by name; `first_rows` of each sequence, and all rows' `positions`."""
        image_rows = np.full(len(positions), -1, np.int32)
        spans = np.zeros((len(positions), 2), np.int32)
        rope_positions = np.repeat(positions[:, None], 3, axis=1)
        values, count = list[NDArray[np.float32]](), 0
        for scheduled, row in zip(step.sequences, first_rows, strict=True):
            if scheduled.rope_positions is not None:
                rope_positions[row : row + len(scheduled.tokens)] = scheduled.rope_positions
            for each in scheduled.images:
                rows = slice(row + each.first, row + each.first + len(each.values))
                image_rows[rows] = np.arange(count, count + len(each.values))
                spans[rows] = each.start, each.stop
                values.append(each.values)
                count += len(each.values)
        joined = np.concatenate(values) if values else np.zeros((1, self.image_columns), np.float32)
        arrays = {"image_rows": image_rows, "image_values": joined}
        arrays |= {"rope_positions": rope_positions} if self.model.has_rope_positions else {}
        return arrays | ({"spans": spans} if self.model.attends_images_both_ways else {})

    def close(self) -> None:
        """Free the programs."""
        for owner in (
            *(self.plan, self.embedding_plan, self.lora_runtime, self.adapter_table),
            *self.image_plans.values(),
        ):
            if owner is not None:
                owner.close()

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """Return the pages of each layer: [pages, 2, kv_heads, PAGE, head_dim], or [pages, 1, 1, PAGE, width]."""
        return [self.backend.export_pages(cache, pages) for cache in self.paged]

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> "StartedExport":
        """Begin to copy pages and states to the host. Later steps do not change the copies."""
        layers = [self.backend.start_export_pages(cache, pages) for cache in self.paged]
        return StartedExport(self.backend.context, layers, self.export_states(states))

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Fill pages with the result of `export_pages`. Changes the caches."""
        for cache, layer in zip(self.paged, layers, strict=True):
            self.backend.import_pages(cache, pages, layer)

    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]:
        """Return recurrent states, each array of each layer: [states, ...]; nothing for models without them."""
        return self.backend.export_states(self.states, states) if self.states else []

    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Fill states with the result of `export_states`. Changes the caches."""
        if self.states:
            self.backend.import_states(self.states, states, arrays)


class StartedExport:
    """Pages and states while the device copies them to the host. Any thread may wait for them: the copies are detached,
    and bound to the thread that asks first."""

    def __init__(self, context: Context, layers: Sequence[Fetch], states: list[NDArray[Any]]) -> None:
        self._context, self._states = context, states
        self._fetches = [layer.sporulate() for layer in layers]
        self._layers: list[NDArray[Any]] = []
        self._lock = Lock()

    def __call__(self) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Return the arrays of `export_pages` and `export_states`."""
        with self._lock:
            while self._fetches:
                fetch = self._fetches[0].sprout(self._context)
                try:
                    self._layers.append(fetch.result())
                except BaseException:
                    fetch.sporulate()
                    raise
                del self._fetches[0]
        return self._layers, self._states


def run_calls(graph: Graph, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Run a graph op by op on tensors by the names of its inputs; return its outputs."""
    known: dict[int, Any] = {id(value): tensors[name] for name, value in graph.inputs.items()}
    for call in graph.calls:
        results = call.op(*substitute_values(call.args, known), **call.options)
        found = () if results is None else results if isinstance(results, tuple) else (results,)
        known |= {id(value): result for value, result in zip(call.results, found, strict=True)}
    return {name: known[id(value)] for name, value in graph.outputs.items()}


def sampled_inputs(
    step: Step, previous: PreviousTokens | None, first_rows: Sequence[int] | None, num_rows: int, num_sampled: int = 1
) -> dict[str, Handle]:
    """Return the inputs SOURCES and SAMPLED: for each row of a step with an UNKNOWN id, the sampled row that has it.

    num_sampled   rows of SAMPLED without a step in flight
    """
    sources = np.full(num_rows, -1, np.int32)
    row = 0
    for index, scheduled in enumerate(step.sequences):
        if scheduled.tokens[-1] == UNKNOWN:
            assert previous is not None
            first = row if first_rows is None else first_rows[index]
            sources[first + len(scheduled.tokens) - 1] = previous.rows[scheduled.request_id]
        row += len(scheduled.tokens)
    return {SOURCES: sources, SAMPLED: np.zeros(num_sampled, np.int32) if previous is None else previous.handle}


def spread_rows(values: NDArray[np.int32], step: Step, first_rows: Sequence[int], num_rows: int) -> NDArray[np.int32]:
    """Return values of the real rows of a step, in order, in the rows of its padded inputs; -1 for the others."""
    found = np.full(num_rows, -1, np.int32)
    row = 0
    for scheduled, first in zip(step.sequences, first_rows, strict=True):
        count = len(scheduled.tokens)
        found[first : first + count] = values[row : row + count]
        row += count
    return found
