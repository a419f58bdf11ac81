"""The protocol that engines of decoders and of encoders share, for callers that serve both."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from sporelm.engine.engine import EngineObserver
from sporelm.engine.engine_config import EngineConfig
from sporelm.engine.metrics import Metrics
from sporelm.engine.request import RowsCallback


class InferenceEngine(Protocol):
    """Computes queued work step by step. Threads may share it."""

    limits: EngineConfig
    metrics: Metrics
    observer: EngineObserver | None
    max_waiting: int  # requests, or lists of texts, that may wait

    @property
    def is_idle(self) -> bool:
        """Whether no work waits or runs."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step."""

    def step(self) -> Sequence[Any]:
        """Run one step, if there is work; return an output for each request that advanced."""

    def hidden(self, tokens: Sequence[int], on_rows: RowsCallback, adapter_id: int = 0) -> Generator[None, None, None]:
        """Compute the last hidden states of a text, while the caller steps the engine after each yield."""

    def estimate_step_seconds(self) -> float:
        """Return about how long the largest step takes; 0 before any step was measured."""

    def close(self) -> None:
        """End all work. The engine stays closed."""
