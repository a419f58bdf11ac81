"""A worker: one rank's cut of every weight, its pages and its plan; it runs steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.memory_residency import available_on
from sporelm.backends.protocol import Backend, Progress
from sporelm.engine import caches
from sporelm.engine.capacity import (
    DEFAULT_CONTEXT,
    SHARE,
    bytes_per_page,
    bytes_per_state,
    choose,
    choose_states,
    interval_of,
)
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.lora_runtime import LoraRuntime, LoraWeights
from sporelm.engine.runner import Model, ModelOutput, Runner
from sporelm.engine.step import Step
from sporelm.errors import UnsupportedModel
from sporelm.models.inputs import ROPE
from sporelm.tensor.dtype import F16, ElementType

Share = tuple[int, int, int]  # start, length, total: this rank owns parts start .. start + length of `total` equal ones
WHOLE: Share = (0, 1, 1)
BATCH = 16  # requests that run together unless limits say otherwise


@dataclass(frozen=True)
class LoadedModel:
    """A model and its weights on a device."""

    model: Model
    weights: Mapping[str, Any]


class Recorder(Protocol):
    """Who is told what a worker computed."""

    def ran(self, step: Step, scores: ModelOutput, seconds: float) -> None: ...
    def embedded(self, step: Step, hidden: NDArray[np.float32], seconds: float) -> None: ...
    def imported(self, pages: Sequence[int]) -> None: ...


class Worker:
    """Runs the steps of one model on one device."""

    def __init__(
        self,
        model: LoadedModel,
        device: Backend,
        share: Share = WHOLE,
        *,
        limits: EngineConfig | None = None,
        kv: ElementType = F16,
        eager: bool = False,
    ) -> None:
        """Allocate the caches, of numbers of type `kv`, and trace the model; `limits` default to `default_limits`.

        Raises UnsupportedModel for a part, MemoryShortage if not one context fits.
        """
        start, length, total = share
        if not 0 <= start < start + length <= total:
            raise UnsupportedModel(f"share {share} must be (start, length, total) with start + length <= total")
        if length != total:
            raise UnsupportedModel(f"share {share} is a part: only whole models, (0, 1, 1), are supported")
        self.device = device
        self.recorder: Recorder | None = None
        self.share = share
        self.limits = limits or default_limits(model, device, kv)
        memory, counts = model.model.memory(), (self.limits.num_pages, self.limits.num_states)
        if not counts[1] and bytes_per_state(memory, device):
            raise UnsupportedModel("limits.num_states is 0: this model keeps recurrent states, and needs one at least")
        kept = caches.allocate_caches(memory, device, *counts, kv)
        try:
            self.runner = Runner(model.model, model.weights, kept, device, self.limits, eager=eager)
        except BaseException:
            caches.free_caches(kept, device)
            raise

    def prepare(self, progress: Progress | None = None) -> None:
        """Make all programs now."""
        self.runner.prepare(progress)

    def run(self, step: Step) -> ModelOutput:
        """Compute a step. Changes the caches; the scores are valid until the next step."""
        if self.recorder is None:
            return self.runner.run(step)
        began = perf_counter()
        scores = self.runner.run(step)
        self.recorder.ran(step, scores, perf_counter() - began)
        return scores

    def embed(self, step: Step) -> NDArray[np.float32]:
        """What a step's wanted rows are before tokens are scored. Changes the caches; valid until the next step."""
        if self.recorder is None:
            return self.runner.embed(step)
        began = perf_counter()
        hidden = self.runner.embed(step)
        self.recorder.embedded(step, hidden, perf_counter() - began)
        return hidden

    def export_pages(self, pages: Sequence[int]) -> list[NDArray[Any]]:
        """What pages hold, of each layer: [pages, 2, kv_heads, PAGE, head_dim], or [pages, 1, 1, PAGE, width]."""
        return self.runner.export_pages(pages)

    def import_pages(self, pages: Sequence[int], layers: Sequence[NDArray[Any]]) -> None:
        """Put into pages what `export_pages` gave. Changes the caches."""
        self.runner.import_pages(pages, layers)
        if self.recorder is not None:
            self.recorder.imported(pages)

    def export_states(self, states: Sequence[int]) -> list[NDArray[Any]]:
        """What recurrent states hold, each array of each layer: [states, ...]. None of models without such."""
        return self.runner.export_states(states)

    def import_states(self, states: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Put into states what `export_states` gave. Changes the caches. A recording is told by `import_pages`."""
        self.runner.import_states(states, arrays)

    def build_lora_runtime(self, adapters: Mapping[int, LoraWeights]) -> LoraRuntime:
        """What runs steps with these adapters, by number; for `use`. Steps may run meanwhile."""
        return self.runner.build_lora_runtime(adapters)

    def missing_adapter(self, step: Step) -> int | None:
        """The number of an adapter that a step names and that is not loaded."""
        adapted = self.runner.lora_runtime
        known = adapted.places if adapted is not None else ()
        return next(
            (
                scheduled.adapter_id
                for scheduled in step.sequences
                if scheduled.adapter_id and scheduled.adapter_id not in known
            ),
            None,
        )

    def use(self, adapted: LoraRuntime | None) -> None:
        """Run steps with these adapters from the next one on; None: with none."""
        self.runner.use(adapted)

    def close(self) -> None:
        """Free the programs and the caches; no step can run after that."""
        self.runner.close()
        caches.free_caches(self.runner.caches, self.device)


def default_limits(model: LoadedModel, device: Backend, kv: ElementType) -> EngineConfig:
    """`BATCH` requests in the context that the model, its tables and the memory allow."""
    config = model.model.config
    table = model.weights.get(ROPE)  # none of models without rotary positions
    asked = min(config.context_length, DEFAULT_CONTEXT, DEFAULT_CONTEXT if table is None else table.shape[0])
    memory, available = model.model.memory(), available_on(device)
    page_bytes, state_bytes = bytes_per_page(memory, device, kv), bytes_per_state(memory, device)
    room = None if available is None else available // SHARE
    states = choose_states(state_bytes, room, BATCH, shared=page_bytes > 0)
    beside = states * state_bytes
    context, pages = choose(asked, config.context_length, BATCH, page_bytes, available, beside=beside)
    most = max(device.step_buckets.values())
    own = {"num_states": states, "state_interval": interval_of(state_bytes, page_bytes)} if states else {}
    return EngineConfig(context, config.context_length, config.vocab, most, min(BATCH, most), pages, **own)
