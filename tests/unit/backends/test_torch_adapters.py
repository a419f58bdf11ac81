"""Stacked adapters in torch: nothing read from the device, no order of sums that depends on the other rows."""

from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close
from sporelm import ops
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32

SLOTS, RANK, WIDTH, OUT = 4, 8, 96, 64
RANDOM = np.random.default_rng(7)
A, B = (RANDOM.standard_normal((SLOTS, RANK, each), np.float32) / 8 for each in (WIDTH, OUT))
X, Y = (RANDOM.standard_normal((90, each), np.float32) for each in (WIDTH, OUT))
WHICH = RANDOM.integers(-1, SLOTS, 90).astype(np.int32)


def plan_of(backend: Any, max_rows: int = 90) -> Plan:
    rows = Symbol("tokens", max_rows)
    a, b = backend.tensor(A), backend.tensor(B)
    specs = {"y": Spec((rows, OUT), F32), "x": Spec((rows, WIDTH), F32), "which": Spec((rows,), I32)}
    return Plan(trace(lambda y, x, which: {"y": ops.add_lora(y, x, which, a, b)}, specs), backend)


def run_rows(plan: Plan, backend: Any, rows: slice) -> np.ndarray:
    arrays = {"y": Y[rows], "x": X[rows], "which": backend.upload(WHICH[rows])}
    return plan.run(arrays, {"tokens": len(Y[rows])})["y"].copy()


def test_groups_tiles_and_single_rows_have_the_results_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_available("torch", threads=1)
    import torch

    expected, plan = ops.add_lora.reference(Y, X, WHICH, A, B), plan_of(backend)
    for has_groups in (True, False):
        if not has_groups:
            monkeypatch.delattr(torch.nn.functional, "grouped_mm", raising=False)
        for rows in (slice(0, 90), slice(3, 4), slice(5, 9), slice(7, 24)):
            assert_close(run_rows(plan, backend, rows), expected[rows], "f32")
    idle = np.flatnonzero(WHICH == -1)
    assert np.array_equal(run_rows(plan, backend, slice(0, 90))[idle], Y[idle])
    plan.close()
    backend.close()


def test_a_row_is_the_same_alone_if_batches_must_not_matter() -> None:
    open_available("torch").close()
    from sporelm.backends.torch import TorchBackend

    backend = TorchBackend(threads=1, batch_invariant=True)
    plan = plan_of(backend)
    together = run_rows(plan, backend, slice(0, 90))
    assert_close(together, ops.add_lora.reference(Y, X, WHICH, A, B), "f32")
    for rows in (slice(0, 1), slice(17, 18), slice(40, 43), slice(60, 90)):
        assert_close(run_rows(plan, backend, rows), together[rows], "exact")
    plan.close()
    backend.close()


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_nothing_is_read_from_the_device(batch_invariant: bool) -> None:
    open_available("torch").close()
    from sporelm.backends.torch import TorchBackend

    backend = TorchBackend(threads=1, device="meta", batch_invariant=batch_invariant)
    backend.probe()
    plan = plan_of(backend)
    for count in (1, 4, 5, 90):
        arrays = {"y": Y[:count], "x": X[:count], "which": backend.upload(WHICH[:count])}
        assert plan.launch(arrays, {"tokens": count})["y"].shape == (count, OUT)
    plan.close()
    backend.close()
