"""A model's results do not depend on how it is run: eager or planned, whole or in chunks, alone or in a batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from close import assert_close
from stepping import Stepper
from tiny_models import TINY, Tiny

# The reference multiplies with numpy, which picks its order of sums by the number of rows.
SAME_ORDER = {"reference": "f32"}


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_eager_is_planned(
    tiny: Tiny, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    """Bitwise, in every regime: one token, a few, many."""
    runners = [load(folder_of(tiny), backend, context=192, eager=eager, sequences=2) for eager in (True, False)]
    ids = tiny.ids()
    steps = [[(0, ids[:40])], [(0, ids[40:41])], [(1, ids[:3]), (0, ids[41:43])], [(1, ids[3:4]), (0, ids[43:44])]]
    for parts in steps:
        eager, planned = (runner.step(parts) for runner in runners)
        assert_close(planned["logits"], eager["logits"], "exact")
        assert_close(planned["tokens"], eager["tokens"], "exact")


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_whole_is_chunks(
    tiny: Tiny, chunk: int, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    whole = load(folder_of(tiny), backend, context=192, eager=False).logits(tiny.ids())
    parts = load(folder_of(tiny), backend, context=192, eager=False).logits(tiny.ids(), chunk=chunk)
    assert_close(parts, whole, SAME_ORDER.get(backend.name, "exact"))


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_alone_is_in_a_batch(
    tiny: Tiny, backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    ids = tiny.ids()
    batch = load(folder_of(tiny), backend, context=192, sequences=3, eager=False)
    batch.step([(0, ids[:5]), (1, ids[5:30]), (2, ids[30:31])])
    together = batch.step([(1, ids[30:32]), (2, ids[31:33])])["logits"]
    for sequence, start, rows in ((1, 5, together[:2]), (2, 30, together[2:])):
        alone = load(folder_of(tiny), backend, context=192, eager=False)
        alone.step([(0, ids[start : {1: 30, 2: 31}[sequence]])])
        last = alone.step([(0, ids[{1: 30, 2: 31}[sequence] : {1: 32, 2: 33}[sequence]])])["logits"]
        assert_close(rows, last, SAME_ORDER.get(backend.name, "exact"))


def test_rows_are_the_rows_asked_for(
    backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper]
) -> None:
    every = load(folder_of(TINY[0]), backend, context=192, eager=False).logits(TINY[0].ids()[:9])
    picked = load(folder_of(TINY[0]), backend, context=192, eager=False).step([(0, TINY[0].ids()[:9])], rows=[8, 2])
    assert_close(picked["logits"], every[[8, 2]], SAME_ORDER.get(backend.name, "exact"))
    assert picked["tokens"].tolist() == np.argmax(every[[8, 2]], axis=1).tolist()


def test_one_trace_serves_every_length(
    backend: Any, folder_of: Callable[[Tiny], Path], load: Callable[..., Stepper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's code runs once; there are at most as many programs as regimes."""
    runner = load(folder_of(TINY[0]), backend, context=192, eager=False)
    assert runner.plan is not None

    def traced_again(*_: Any) -> None:
        raise AssertionError("the model was traced a second time")

    monkeypatch.setattr(type(runner.model), "forward", traced_again)
    ids = TINY[0].ids()
    for length in (1, 2, 3, 5, 8, 13, 1, 21):
        runner.step([(0, ids[:length])])
    made = dict(runner.plan.built)
    assert 1 <= runner.plan.num_programs <= len(backend.regimes)
    runner.step([(0, ids[:4])])
    runner.step([(0, ids[:1])])
    assert runner.plan.built == made
