"""Calls of OpenCL that fail: one line with a remedy, and all else goes on.

A fault is raised by the call of pyopencl itself, for one back-end's queue; others on the same device work.
"""

import gc
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from available import open_available
from opencl_faults import QUEUE_CALLS, FaultyCalls, fault
from sporelm import ops
from sporelm.backends.opencl import OpenClBackend, kernel_program, opencl_backend
from sporelm.backends.protocol import Missing
from sporelm.errors import BackendError
from sporelm.evals.conformance.conformance_case import On
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32

ARRAYS = {"x": np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 256)}


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyCalls:
    return FaultyCalls(monkeypatch)


@pytest.fixture
def other() -> Iterator[Any]:
    """Another back-end on the same device."""
    backend = open_available("opencl")
    yield backend
    backend.close()


def small_plan(backend: Any) -> Plan:
    def function(x: Any) -> Mapping[str, Any]:
        return {"y": ops.scale(ops.add(x, x), factor=3.0)}

    return Plan(trace(function, {"x": Spec((Symbol("tokens", 512), 256), F32)}), backend)


def check_line(raised: pytest.ExceptionInfo[BackendError]) -> None:
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith("device ")
    assert "option device" in text


@pytest.mark.parametrize("broken", ["enqueue_nd_range_kernel", "enqueue_copy", "finish"])
def test_a_failed_call_in_a_step_leaves_later_steps_and_other_models(
    opencl: Any, other: Any, faulty: FaultyCalls, broken: str
) -> None:
    plans = [small_plan(backend) for backend in (opencl, other)]
    expected = plans[1].run(ARRAYS, {"tokens": 3})["y"]
    faulty.arm(opencl)
    faulty.broken.add(broken)
    with pytest.raises(BackendError, match=r"failed: .*Load the model again") as raised:
        plans[0].run(ARRAYS, {"tokens": 3})
    check_line(raised)
    assert np.array_equal(plans[1].run(ARRAYS, {"tokens": 3})["y"], expected)
    faulty.broken.clear()
    assert np.array_equal(plans[0].run(ARRAYS, {"tokens": 3})["y"], expected)
    for plan in plans:
        plan.close()


def test_a_failed_read_is_an_error_of_the_caller_that_reads(opencl: Any, faulty: FaultyCalls) -> None:
    plan = small_plan(opencl)
    handles = plan.launch(ARRAYS, {"tokens": 3})
    faulty.arm(opencl)
    faulty.broken.add("enqueue_copy")
    for read in (opencl.fetch, lambda handle: opencl.fetch_rows(handle, [1]), opencl.start_fetch):
        with pytest.raises(BackendError, match=r"failed: .*Load the model again") as raised:
            read(handles["y"])
        check_line(raised)
    faulty.broken.clear()
    assert opencl.fetch(handles["y"]).shape == (3, 256)
    plan.close()


def test_a_kernel_that_failed_on_the_device_fails_the_reads(opencl: Any) -> None:
    """Its launch was accepted, and ended with a negative status."""
    plan = small_plan(opencl)
    handles, caches = plan.launch(ARRAYS, {"tokens": 3}), opencl.allocate_pages(2, [(1, 16)], F32)
    opencl.last_launch = SimpleNamespace(command_execution_status=cl.status_code.OUT_OF_RESOURCES)
    reads = (
        lambda: opencl.fetch(handles["y"]),
        lambda: opencl.fetch_rows(handles["y"], [1]),
        lambda: opencl.export_pages(caches[0], [0, 1]),
    )
    for read in reads:
        with pytest.raises(BackendError, match=r"failed: a kernel ended with status -5. Load the model again"):
            read()
    assert plan.run(ARRAYS, {"tokens": 3})["y"].shape == (3, 256), "the next step runs"
    opencl.last_launch = SimpleNamespace(command_execution_status=cl.status_code.OUT_OF_RESOURCES)
    with pytest.raises(BackendError, match="a kernel ended with status -5"):
        plan.run(ARRAYS, {"tokens": 3})  # after a step whose outputs were not read
    assert plan.run(ARRAYS, {"tokens": 3})["y"].shape == (3, 256)
    opencl.free_pages(caches)
    plan.close()


def test_a_page_that_cannot_be_read_fails_the_export(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read is waited for: none but the last of them fails here."""
    caches = opencl.allocate_pages(4, [(1, 16)], F32)
    copies: list[bool] = []
    copy = cl.enqueue_copy

    def record(*arguments: Any, **options: Any) -> Any:
        copies.append(options["is_blocking"])
        return copy(*arguments, **options)

    monkeypatch.setattr(opencl_backend.cl, "enqueue_copy", record)
    opencl.export_pages(caches[0], [0, 3, 1, 2])
    assert copies == [True, True, True], "neighbours are one copy"
    opencl.free_pages(caches)


def test_a_block_that_fails_uploads_nothing(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(opencl.device), "shares_host_memory", False)
    buffer = opencl.copy_to_buffer(np.ones(4, np.uint8))

    def write() -> None:
        with opencl_backend.MappedBytes(opencl, buffer, 4) as place:
            place[:] = 7
            raise ValueError("a damaged weight")

    with pytest.raises(ValueError, match="a damaged weight"):
        write()
    found = np.zeros(4, np.uint8)
    cl.enqueue_copy(opencl.queue, found, buffer, is_blocking=True)
    assert found.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("broken", ["enqueue_map_buffer", "enqueue_copy"])
def test_a_failure_while_weights_go_up_frees_them(
    opencl: Any, faulty: FaultyCalls, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "enqueue_copy":
        monkeypatch.setattr(type(opencl.device), "shares_host_memory", False)
    faulty.arm(opencl)
    before = opencl.allocated_bytes
    faulty.broken.add(broken)
    with pytest.raises(BackendError, match="failed: ") as raised:
        On(opencl, "weights").weight("Q4_K", 8, 256)
    check_line(raised)
    faulty.broken.clear()
    del raised
    gc.collect()
    assert opencl.allocated_bytes == before
    On(opencl, "weights").weight("Q4_K", 8, 256)


def test_a_failure_while_pages_are_allocated_frees_them(opencl: Any, faulty: FaultyCalls) -> None:
    faulty.arm(opencl)
    before = opencl.allocated_bytes
    faulty.broken.add("enqueue_fill_buffer")
    with pytest.raises(BackendError, match="failed: ") as raised:
        opencl.allocate_pages(2, [(1, 16)], F32)
    assert opencl.allocated_bytes == before, "at once, while the error is handled"
    check_line(raised)
    faulty.broken.clear()
    opencl.free_pages(opencl.allocate_pages(2, [(1, 16)], F32))


def test_a_program_that_does_not_build_is_an_error_of_its_model_alone(
    opencl: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler fails in the first step of one model; the other one runs, and so does this one afterwards."""
    plans = [small_plan(backend) for backend in (opencl, other)]
    expected = plans[1].run(ARRAYS, {"tokens": 3})["y"]

    def fail(program: Any, flags: Any) -> Any:
        raise fault("clBuildProgram failed: BUILD_PROGRAM_FAILURE", "BUILD_PROGRAM_FAILURE")

    with monkeypatch.context() as patched:
        patched.setattr(kernel_program, "build_program", fail)
        with pytest.raises(
            BackendError, match=r"its driver does not compile elementwise.cl \(.*Update the driver"
        ) as raised:
            plans[0].run(ARRAYS, {"tokens": 3})
        check_line(raised)
        assert np.array_equal(plans[1].run(ARRAYS, {"tokens": 3})["y"], expected)
    assert np.array_equal(plans[0].run(ARRAYS, {"tokens": 3})["y"], expected)
    for plan in plans:
        plan.close()


def test_a_kernel_that_a_binary_lacks_is_an_error(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(opencl)

    def fail(program: Any, name: str) -> Any:
        raise fault("clCreateKernel", "INVALID_KERNEL_NAME")

    with monkeypatch.context() as patched:
        patched.setattr(kernel_program.cl, "Kernel", fail)
        with pytest.raises(BackendError, match="failed: clCreateKernel") as raised:
            plan.run(ARRAYS, {"tokens": 3})
        check_line(raised)
    assert plan.run(ARRAYS, {"tokens": 3})["y"].shape == (3, 256)
    plan.close()


def test_a_lost_device_is_closed_without_an_error(faulty: FaultyCalls, other: Any) -> None:
    """Every call fails from now on. What the back-end has is freed all the same, and nothing is a leak."""
    backend = open_available("opencl")
    plan, caches = small_plan(backend), backend.allocate_pages(2, [(1, 16)], F32)
    plan.run(ARRAYS, {"tokens": 3})
    faulty.arm(backend)
    faulty.broken |= {"finish", *QUEUE_CALLS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BackendError, match="failed: "):
            plan.run(ARRAYS, {"tokens": 3})
        with pytest.raises(BackendError, match="failed: "):
            backend.export_pages(caches[0], [0])
        plan.close()
        backend.free_pages(caches)
        backend.close()
    assert small_plan(other).run(ARRAYS, {"tokens": 3})["y"].shape == (3, 256)


@pytest.mark.parametrize("call", ["Context", "CommandQueue"])
def test_a_device_that_cannot_be_opened_has_a_reason_and_a_remedy(
    other: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: Any) -> Any:
        raise fault(f"clCreate{call}", "OUT_OF_RESOURCES")

    monkeypatch.setattr(opencl_backend.cl, call, fail)
    state = OpenClBackend(device=str(other.device.number)).probe()
    assert isinstance(state, Missing)
    assert f"cannot be opened (clCreate{call}" in state.reason
    assert "option device" in state.reason


def test_a_device_that_is_lost_before_it_is_described_is_missing(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`spore doctor` shows the reason."""

    def fail() -> Any:
        raise fault("clGetPlatformIDs")

    monkeypatch.setattr(cl, "get_platforms", fail)
    state = other.probe()
    assert isinstance(state, Missing)
    assert "clGetPlatformIDs" in state.reason
