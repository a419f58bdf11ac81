"""The cost of a decode step beside the model: memory does not grow, and no arrays are allocated."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import sporelm
from sporelm.engine import Engine, EngineConfig, ModelOutput, Request, ScheduledSequence, Step
from sporelm.engine.runner import MAX_VIEWS, InputArrays

PACKAGE = str(Path(sporelm.__file__).parent)


class Instant:
    """Fills the inputs as a runner does and always answers token 5."""

    def __init__(self, limits: EngineConfig) -> None:
        self.inputs = InputArrays(limits)
        self.best = np.full(limits.max_batch, 5, np.int32)
        self.logits = np.zeros((limits.max_batch, 50), np.float32)
        self.filled: list[int] = []

    def run(self, step: Step) -> ModelOutput:
        arrays, _ = self.inputs.fill(step)
        self.filled.append(id(arrays))
        return ModelOutput(self.best[: len(step.sequences)], self.logits[: len(step.sequences)])

    @property
    def kv(self) -> str:
        return "f32"

    def embed(self, step: Step) -> np.ndarray:
        raise NotImplementedError

    def export_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        raise NotImplementedError

    def import_pages(self, pages: Sequence[int], layers: Sequence[np.ndarray]) -> None:
        raise NotImplementedError

    def export_states(self, states: Sequence[int]) -> list[np.ndarray]:
        raise NotImplementedError

    def import_states(self, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("batch", [1, 4])
def test_decoding_makes_no_arrays_and_keeps_no_memory(batch):
    limits = EngineConfig(
        max_context=4096, model_context=4096, vocab=50, token_budget=64, max_batch=batch, num_pages=64 * batch
    )
    runner = Instant(limits)
    engine = Engine(runner, limits)
    for _ in range(batch):
        engine.add(Request([1, 2, 3], max_tokens=4000))
    for _ in range(100):
        engine.step()
    runner.filled.clear()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    steps = 640
    for _ in range(steps):
        engine.step()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    arrays = [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]
    grown = sum(
        entry.size_diff for entry in after.filter_traces(arrays).compare_to(before.filter_traces(arrays), "filename")
    )
    assert grown == 0
    assert len(set(runner.filled)) == 1  # the same views of the same arrays in every step
    # Two lists of token ids a request, and a page number a 64 tokens, are all that may be kept.
    kept = sum(
        entry.size_diff
        for entry in after.compare_to(before, "filename")
        if entry.traceback[0].filename.startswith(PACKAGE)
    )
    assert kept < batch * steps * 40


def test_views_of_many_step_shapes_are_forgotten_again():
    limits = EngineConfig(max_context=4096, model_context=4096, vocab=50, token_budget=256, max_batch=1, num_pages=64)
    inputs = InputArrays(limits)
    table = tuple(range(64))
    for length in range(2, 2 + 3 * MAX_VIEWS):
        arrays, extents = inputs.fill(Step([ScheduledSequence(1, list(range(length)), 100, table, 1)], []))
        assert arrays["slots"].tolist() == list(range(100, 100 + length))
        assert (extents["tokens"], extents["rows"], arrays["rows"].tolist()) == (length, 1, [length - 1])
    assert len(inputs.views) <= MAX_VIEWS
