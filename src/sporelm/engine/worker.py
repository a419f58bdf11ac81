"""A worker: runs steps with one rank's shard of every weight, its pages and its plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.memory_residency import available_on
from sporelm.backends.protocol import Backend, Progress
from sporelm.engine import caches
from sporelm.engine.capacity import (
    DEFAULT_CONTEXT,
    bytes_per_page,
    bytes_per_state,
    choose,
    choose_states,
    snapshot_interval,
)
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.lora_runtime import LoraRuntime, LoraWeights
from sporelm.engine.model_output import ModelOutput, PreviousTokens
from sporelm.engine.runner import Model, Runner, StartedExport
from sporelm.engine.step import Step
from sporelm.errors import UnsupportedModel
from sporelm.models.inputs import ROPE
from sporelm.tensor.dtype import F16, ElementType

T = TypeVar("T")
Share = tuple[int, int, int]  # start, length, total: the shards start .. start + length of `total` equal ones
WHOLE: Share = (0, 1, 1)
BATCH = 16  # requests that run together, by default


@dataclass(frozen=True)
class LoadedModel:
    """A model and its weights on a device. A `ShardedModel` has one rank's part of them."""

    model: Model
    weights: Mapping[str, Any]

    @property
    def share(self) -> Share:
        """The part of the weights that is loaded."""
        return getattr(self.model, "share", WHOLE)


class Recorder(Protocol):
    """Is told about the steps that a worker computed."""

    def record_step(self, step: Step, output: ModelOutput, seconds: float) -> None: ...
    def record_embed(self, step: Step, hidden: NDArray[np.float32], seconds: float) -> None: ...
    def record_import(self, pages: Sequence[int]) -> None: ...


def run_recorded(compute: Callable[[Step], T], step: Step, record: Callable[[Step, T, float], None]) -> T:
    """Return the result of a step, and tell `record` about both and the seconds that it took."""
    start = perf_counter()
    result = compute(step)
    record(step, result, perf_counter() - start)
    return result


class Worker:
    """Runs the steps of one model on one device."""

    def __init__(
        self,
        model: LoadedModel,
        device: Backend,
        share: Share | None = None,
        *,
        limits: EngineConfig | None = None,
        kv: ElementType = F16,
        eager: bool = False,
    ) -> None:
        """Allocate the caches, of numbers of type `kv`, and trace the model; `limits` default to `default_limits`.

        share   the part of the weights, if it is to be compared with the loaded part

        Raises UnsupportedModel for another share than the loaded one, MemoryShortage if not one context fits.
        """
        if share is not None and share != model.share:
            raise UnsupportedModel(f"share {share}: other weights are loaded (got {model.share}). Load that share.")
        self.device = device
        self.recorder: Recorder | None = None
        self.share = model.share
        self.limits = limits or default_limits(model, device, kv)
        memory, counts = model.model.memory(), (self.limits.num_pages, self.limits.num_states)
        if not counts[1] and bytes_per_state(memory, device):
            raise UnsupportedModel("limits.num_states is 0: this model keeps recurrent states, and needs one at least")
        # Padded rows write to one page more and one state more, which no sequence has.
        num_pages, num_states = (count + (device.traits.input_buckets is not None) for count in counts)
        layer_caches = caches.allocate_caches(memory, device, num_pages, num_states, kv)
        try:
            self.runner = Runner(model.model, model.weights, layer_caches, device, self.limits, eager=eager)
        except BaseException:
            caches.free_caches(layer_caches, device)
            raise

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile all programs now."""
        self.runner.prepare(progress)

    def run(self, step: Step, previous: PreviousTokens | None = None) -> ModelOutput:
        """Launch a step. Changes the caches; the output is valid until the next step.

        `previous`: the tokens of the step in flight, from which UNKNOWN tokens are taken.
        """
        if self.recorder is None:
            return self.runner.run(step, previous)
        return run_recorded(self.runner.run, step, self.recorder.record_step)

    def embed(self, step: Step) -> NDArray[np.float32]:
        """Compute a step; return its last hidden states, valid until the next step. Changes the caches."""
        if self.recorder is None:
            return self.runner.embed(step)
        return run_recorded(self.runner.embed, step, self.recorder.record_embed)

    @property
    def kv(self) -> str:
        """The data type of pages, a value of --kv."""
        return self.runner.kv

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """Return the pages of each layer: [pages, 2, kv_heads, PAGE, head_dim], or [pages, 1, 1, PAGE, width]."""
        return self.runner.export_pages(pages)

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Fill pages with the result of `export_pages`. Changes the caches."""
        self.runner.import_pages(pages, layers)
        if self.recorder is not None:
            self.recorder.record_import(pages)

    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]:
        """Return recurrent states, each array of each layer: [states, ...]; nothing for models without them."""
        return self.runner.export_states(states)

    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Fill states with the result of `export_states`. Changes the caches. `import_pages` tells the recorder."""
        self.runner.import_states(states, arrays)

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> StartedExport:
        """Begin to copy pages and states to the host; see `Runner.start_export`."""
        return self.runner.start_export(pages, states)

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        """Return a runtime for these adapters, by id; for `set_lora_runtime`. Steps may run meanwhile."""
        return self.runner.build_lora_runtime(adapters)

    def missing_adapter(self, step: Step) -> int | None:
        """Return the id of an adapter of a step that is not loaded."""
        lora_runtime = self.runner.lora_runtime
        loaded = lora_runtime.places if lora_runtime is not None else ()
        return next(
            (
                scheduled.adapter_id
                for scheduled in step.sequences
                if scheduled.adapter_id and scheduled.adapter_id not in loaded
            ),
            None,
        )

    def set_lora_runtime(self, lora_runtime: LoraRuntime | None) -> None:
        """Run steps with these adapters from the next one on; None: with none."""
        self.runner.set_lora_runtime(lora_runtime)

    def discard_lora_runtime(self, lora_runtime: LoraRuntime) -> None:
        """Free a runtime that `set_lora_runtime` did not get."""
        self.runner.discard_lora_runtime(lora_runtime)

    def close(self) -> None:
        """Free the programs and the caches; no step can run after that."""
        self.runner.close()
        caches.free_caches(self.runner.caches, self.device)


def default_limits(model: LoadedModel, device: Backend, kv: ElementType) -> EngineConfig:
    """Return limits for BATCH requests in the context that the model, its tables and the memory allow."""
    config = model.model.config
    table = model.weights.get(ROPE)  # models without rotary positions have none
    wanted = min(config.context_length, DEFAULT_CONTEXT, DEFAULT_CONTEXT if table is None else table.shape[0])
    memory, available = model.model.memory(), available_on(device)
    page_bytes, state_bytes = bytes_per_page(memory, device, kv), bytes_per_state(memory, device)
    room = None if available is None else int(available * device.traits.memory_share)
    states = choose_states(state_bytes, room, BATCH, shared=page_bytes > 0)
    beside = states * state_bytes
    context, pages = choose(
        wanted,
        config.context_length,
        BATCH,
        page_bytes,
        available,
        beside=beside,
        share=device.traits.memory_share,
    )
    max_tokens = max(device.step_buckets.values())
    state_options = (
        {"num_states": states, "state_interval": snapshot_interval(state_bytes, page_bytes)} if states else {}
    )
    max_batch = min(BATCH, max_tokens)
    return EngineConfig(context, config.context_length, config.vocab, max_tokens, max_batch, pages, **state_options)
