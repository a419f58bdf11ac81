"""Kernels are compiled when a model is loaded, with progress; an interrupt ends it, and later steps compile nothing."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.backends.file_cache import ObjectCache

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from available import open_available
from sporelm import ops
from sporelm.backends.opencl import kernel_program, opencl_backend
from sporelm.backends.opencl.device_tuning import GPU_DEFAULTS
from sporelm.backends.opencl.kernel_program import POCL_LARGE_GRID
from sporelm.backends.opencl.measured_tuning import ActiveTuning
from sporelm.backends.opencl.opencl_program import iterate_expected_extents
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32
from unit.backends.opencl.segmented_plan import build_segmented_plan

PHASE = "compiling kernels"


@pytest.fixture
def plan(opencl: Any, tmp_path: Path) -> Any:
    """A plan of several segments on a back-end without compiled programs."""
    opencl.compiler.binaries = ObjectCache(tmp_path / "binaries", 1 << 24)
    made = build_segmented_plan(opencl)
    yield made
    made.close()


def run(plan: Any, tokens: int, rows: int) -> dict[str, np.ndarray]:
    x = np.arange(tokens * 1024, dtype=np.float32).reshape(tokens, 1024)
    found = plan.run({"x": x, "rows": np.zeros(rows, np.int32)}, {"tokens": tokens, "rows": rows})
    return {name: array.copy() for name, array in found.items()}


def test_programs_without_dummy_launches_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels may finish compiling at first launches, which `prepare` cannot do."""
    monkeypatch.setattr(opencl_backend, "tuning_in_use", lambda device: ActiveTuning(GPU_DEFAULTS, "defaults"))
    backend = open_available("opencl")
    plan = build_segmented_plan(backend)
    phases: list[str] = []
    for _ in range(2):
        plan.prepare(progress=lambda phase, done, total: phases.append(phase))
        phases.append("end")
    plan.close()
    backend.close()
    first, second = " ".join(phases).split("end")[:2]
    assert "compiling kernels" in first
    assert "compiling kernels" not in second


def test_no_step_compiles_after_prepare(plan: Any, opencl: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    compiler = opencl.compiler
    before = compiler.num_compiled  # when the device was opened
    plan.prepare(progress=lambda *each: seen.append(each))
    total = len([phase for phase, _, _ in seen if phase == PHASE]) - 1
    assert seen == [("compile", 0, 1), ("compile", 1, 1), *((PHASE, done, total) for done in range(total + 1))]
    assert compiler.num_compiled - before == len(compiler.binaries.entries()) == total > 2
    compiled = set(compiler._compiled)
    for tokens, rows in ((1, 1), (3, 3), (512, 4), (100, 1)):
        run(plan, tokens, rows)
    assert compiler._compiled == compiled
    seen.clear()
    plan.prepare(progress=lambda *each: seen.append(each))
    assert seen == [("compile", 0, 1), ("compile", 1, 1)]


def test_kernels_for_large_grids_are_compiled_too(opencl: Any) -> None:
    specs = {"x": Spec((Symbol("tokens", 512), 16 * 256), F32)}
    plan = Plan(trace(lambda x: {"y": ops.add(x, x)}, specs), opencl)
    opencl.compiler._compiled.clear()
    plan.prepare()
    vectors = 512 * 16 * 256 // opencl.tuning.vector
    assert {variant.is_small for variant in opencl.compiler._compiled} == {True, vectors < POCL_LARGE_GRID}
    plan.close()


def test_dummy_launches_do_not_change_results(plan: Any, opencl: Any) -> None:
    before = run(plan, 5, 2)
    handles = plan.launch(
        {"x": np.ones((5, 1024), np.float32), "rows": np.zeros(2, np.int32)}, {"tokens": 5, "rows": 2}
    )
    expected = {name: opencl.fetch(handle).copy() for name, handle in handles.items()}
    opencl.compiler._compiled.clear()
    plan.prepare()
    assert all(np.array_equal(opencl.fetch(handles[name]), expected[name]) for name in handles)
    after = run(plan, 5, 2)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_interrupted_compilation_keeps_finished_programs(plan: Any, opencl: Any) -> None:
    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == PHASE and done == 1:
            raise KeyboardInterrupt

    compiler = opencl.compiler
    with pytest.raises(KeyboardInterrupt):
        plan.prepare(progress=interrupt)
    assert compiler.num_compiled == len(compiler.binaries.entries()) == 1
    seen: list[tuple[str, int, int]] = []
    plan.prepare(progress=lambda *each: seen.append(each))
    assert compiler.num_compiled == len(compiler.binaries.entries()) == seen[-1][2] + 1


def test_a_long_compilation_in_a_step_is_logged(
    plan: Any, opencl: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sporelm")
    monkeypatch.setattr(kernel_program, "LOGGED_SECONDS", 1e9)
    run(plan, 1, 1)
    assert not caplog.messages
    opencl.compiler._compiled.clear()
    monkeypatch.setattr(kernel_program, "LOGGED_SECONDS", 0.0)
    run(plan, 2, 2)
    assert len(caplog.messages) == 2, "one for each segment"
    assert f"{opencl.device.label}: kernels compiled during a step, " in caplog.messages[0]
    assert caplog.messages[0].endswith(" s")
    caplog.clear()
    run(plan, 3, 3)
    assert not caplog.messages


def test_expected_steps_have_one_sequence_or_many() -> None:
    specs = {"a": Spec((Symbol("tokens", 6),), I32), "b": Spec((Symbol("sequences", 2),), I32)}
    graph = trace(lambda a, b: {"a": a, "b": b}, specs)
    found = [(each["tokens"], each["sequences"]) for each in iterate_expected_extents(graph)]
    assert found == [(1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (6, 2), (6, 1)]
