"""A worker made as the contract says, `Worker(model, device, share)`: limits follow from the model and its tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from close import assert_close
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import load_parameters
from sporelm.engine import LoadedModel, Worker
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import ContextError, UnsupportedModel
from sporelm.models import build

PROMPT = [1, 80, 147, 33, 5, 299]


def loaded(path: Path, backend: Any, context: int) -> LoadedModel:
    source = open_model(path)
    model = build(source.config)
    weights = load_parameters(source, model.params(), backend)
    source.close()
    tables = {name: backend.tensor(table) for name, table in model.tables(context).items()}
    return LoadedModel(model, weights | tables)


def test_a_worker_needs_a_model_and_a_device(story: Path, backend: Any) -> None:
    worker = Worker(loaded(story, backend, 100), backend, (0, 1, 1))
    assert worker.limits.max_context == 100, "no more than the table of angles has"
    assert worker.limits.num_pages >= worker.limits.max_batch * count_pages(100)
    scores = worker.run(Step([ScheduledSequence(0, PROMPT, 0, (3, 1), len(PROMPT))], []))
    eager = Worker(loaded(story, backend, 100), backend, eager=True)
    expected = eager.run(Step([ScheduledSequence(0, PROMPT, 0, (0, 2), len(PROMPT))], []))
    assert np.array_equal(scores.argmax, expected.argmax)
    assert_close(scores.logits, expected.logits, "exact")
    worker.close()
    eager.close()


def test_a_closed_worker_runs_no_step(story: Path) -> None:
    from sporelm.backends.cpu import CpuBackend

    backend = CpuBackend(threads=1)
    worker = Worker(loaded(story, backend, 64), backend)
    step = Step([ScheduledSequence(0, PROMPT, 0, (0,), 1)], [])
    worker.run(step)
    worker.close()
    with pytest.raises(ContextError, match="was freed"):
        worker.run(step)
    backend.close()


def test_another_share_than_the_loaded_one_is_refused(story: Path, backend: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"other weights are loaded \(got \(0, 1, 1\)\)"):
        Worker(loaded(story, backend, 64), backend, (0, 1, 2))
