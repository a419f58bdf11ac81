"""The back-end's memory, pages, states and programs; what it says of failures of the device."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl as cl

from available import open_available
from opencl_faults import fault
from sporelm import ops
from sporelm.backends.file_cache import ObjectCache
from sporelm.backends.opencl import kernel_program as kernel_program_module
from sporelm.backends.opencl import opencl_backend, opencl_program
from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.device_tuning import GPU_DEFAULTS
from sporelm.backends.opencl.kernel_launch import KernelLaunch, PreparedLaunch, ScaledExtent
from sporelm.backends.opencl.kernel_program import ProgramCompiler, kernel_program
from sporelm.backends.opencl.measured_tuning import ActiveTuning
from sporelm.backends.protocol import Ready
from sporelm.errors import BackendError, ContextError, MemoryShortage, OpError, UnsupportedOp
from sporelm.evals.conformance.all_cases import CASES
from sporelm.evals.conformance.check import check_case
from sporelm.evals.conformance.conformance_case import On
from sporelm.ops import Spec, Symbol, trace
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.plan import Plan
from sporelm.tensor.dtype import F32, I32
from unit.backends.opencl.segmented_plan import build_segmented_plan


def test_probe_describes_the_device_and_all_others(opencl: Any) -> None:
    state = opencl.probe()
    assert isinstance(state, Ready)
    assert state.details["device"] in state.details["devices"]
    assert {"driver", "memory", "compute units", "dtype", "fp16", "tuning", "program cache"} <= state.details.keys()


@pytest.mark.parametrize("name", KV_TYPES)
def test_pages_are_exported_as_they_were_imported(opencl: Any, name: str) -> None:
    caches = opencl.allocate_pages(3, [(2, 16), (1, 32)], KV_TYPES[name])
    for cache in caches:
        shape = opencl.export_pages(cache, [0]).shape[1:]
        bits = opencl.export_pages(cache, range(3))
        assert not bits.any()
        given = np.random.default_rng(0).integers(0, 100, (2, *shape)).astype(bits.dtype)
        opencl.import_pages(cache, [2, 0], given)
        opencl.copy_pages([cache], [(0, 1), (2, 0)])
        assert np.array_equal(opencl.start_export_pages(cache, [2, 1, 0]).result(), given[[0, 1, 0]])
    opencl.free_pages(caches)
    with pytest.raises(ContextError, match="3 pages of 2 layers was freed"):
        opencl.export_pages(caches[0], [0])


def test_states_are_copied_exported_and_imported(opencl: Any) -> None:
    caches = opencl.allocate_states(3, [[(2, 3), (4,)], [(5,)]])
    assert [[tensor.shape for tensor in layer] for layer in caches] == [[(3, 2, 3), (3, 4)], [(3, 5)]]
    random = np.random.default_rng(0)
    given = [random.standard_normal((1, *shape), np.float32) for shape in ((2, 3), (4,), (5,))]
    opencl.import_states(caches, [1], given)
    opencl.copy_states(caches, [(1, 2)])
    for found, expected in zip(opencl.export_states(caches, [2]), given, strict=True):
        assert np.array_equal(found, expected)
    opencl.free_states(caches)


def test_steps_of_different_extents_alternate(opencl: Any) -> None:
    plan = build_segmented_plan(opencl)
    assert plan.fallback_calls == {"spread_streams": 1, "stream": 1}
    random = np.random.default_rng(0)
    for tokens, rows in ((512, [3, 511]), (1, [0]), (7, [6, 0, 2]), (1, [0]), (512, [1, 2])):
        x = random.standard_normal((tokens, 1024), np.float32)
        arrays = {"x": x, "rows": np.array(rows, np.int32)}
        found = plan.run(arrays, {"tokens": tokens, "rows": len(rows)})
        chosen = 2 * x[rows]
        np.testing.assert_allclose(found["sum"], 4 * chosen, rtol=1e-5)
        assert np.array_equal(found["best"], chosen.argmax(axis=1))
    plan.close()


def test_small_inputs_go_up_in_one_copy(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Symbol("tokens", 16)
    specs = {"x": Spec((tokens, 64), F32), "rows": Spec((tokens,), I32)}
    plan = Plan(trace(lambda x, rows: {"y": ops.select_rows(x, rows)}, specs), opencl)
    copies: list[Sequence[Any]] = []
    copy = cl.enqueue_copy

    def record(*arguments: Any, **options: Any) -> Any:
        copies.append(arguments)
        return copy(*arguments, **options)

    monkeypatch.setattr(opencl_program.cl, "enqueue_copy", record)
    arrays = {"x": np.ones((16, 64), np.float32), "rows": np.arange(16, dtype=np.int32)}
    handles = plan.launch(arrays, {"tokens": 16})
    assert len(copies) == 1
    assert np.array_equal(opencl.fetch_rows(handles["y"], [3]), arrays["x"][[3]])
    plan.close()


def test_rounding_beside_a_norm_leaves_the_norms_arguments(opencl: Any) -> None:
    """One launch writes the rounded rows while it reads rows of x: they may not share memory."""
    on = On(opencl, "rounding")
    weight, scale = on.weight("Q8_0", 256, 256), on.tensor(on.values(256))
    specs = {name: Spec((Symbol("tokens", 512), 256), F32) for name in "xy"}

    def function(x: Any, y: Any) -> Mapping[str, Any]:
        hidden = ops.scale(ops.add(x, y), factor=2.0)
        for _ in range(3):
            hidden = ops.linear(ops.rms_norm(hidden, scale, eps=1e-5), weight)
        return {"y": hidden}

    plan = Plan(trace(function, specs), opencl)
    arrays = {name: on.values(512, 256) for name in "xy"}
    expected = function(**{name: opencl.tensor(array) for name, array in arrays.items()})["y"].numpy()
    assert np.array_equal(plan.run(arrays, {"tokens": 512})["y"], expected)
    program: Any = plan.bucket_programs["any"].program
    offsets, nbytes = program._placement.offsets, 512 * 256 * 4
    norms = [call for call in program.graph.calls if call.op is ops.rms_norm]
    rounded = [call.results[0] for call in program.graph.calls if call.op is ops.quantize_rows]
    assert len(norms) == len(rounded) == 3
    for norm, result in zip(norms, rounded, strict=True):
        assert abs(offsets[id(norm.args[0])] - offsets[id(result)]) >= nbytes
    plan.close()


def test_a_freed_cache_is_not_written(opencl: Any) -> None:
    cache = opencl.allocate_pages(1, [(1, 16)], F32)[0]
    specs = {name: Spec((Symbol("tokens", 4), 16), F32) for name in "kv"} | {"slots": Spec((Symbol("tokens", 4),), I32)}

    def function(k: Any, v: Any, slots: Any) -> Mapping[str, Any]:
        ops.store_kv(k, v, cache, slots)
        return {"sum": ops.add(k, v)}

    plan = Plan(trace(function, specs), opencl)
    arrays = {"k": np.ones((1, 16), np.float32), "v": np.ones((1, 16), np.float32), "slots": np.zeros(1, np.int32)}
    plan.run(arrays, {"tokens": 1})
    opencl.free_pages([cache])
    with pytest.raises(ContextError, match="was freed"):
        plan.run(arrays, {"tokens": 1})
    plan.close()


def test_bytes_are_counted_until_they_are_freed(opencl: Any) -> None:
    before = opencl.allocated_bytes
    tensor = opencl.tensor(np.ones((4, 256), np.float32))
    caches = opencl.allocate_pages(2, [(1, 16)], F32)
    assert opencl.allocated_bytes - before == 4 * 256 * 4 + 2 * 2 * 64 * 16 * 4
    opencl.free_pages(caches)
    del tensor
    assert opencl.allocated_bytes == before


def test_a_device_with_memory_of_its_own_is_copied_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights go up as copies, and its memory is counted. Here the device says that it has its own."""
    monkeypatch.setattr(OpenClDevice, "shares_host_memory", False)
    backend = open_available("opencl")
    on = On(backend, "copied")
    weight, x = on.weight("Q4_K", 8, 256), on.values(3, 256)
    found = ops.linear(backend.tensor(x), weight).numpy()
    with monkeypatch.context() as patched:
        patched.setattr(OpenClDevice, "shares_host_memory", True)
        shared = open_available("opencl")
        assert np.array_equal(ops.linear(shared.tensor(x), On(shared, "copied").weight("Q4_K", 8, 256)).numpy(), found)
        assert shared.free_bytes() is None
        assert shared.total_bytes() is None
        total = int(shared.device.device.global_mem_size)
        patched.setattr(opencl_backend, "physical_bytes", lambda: 2 * total)  # a GPU that may use half of it
        assert shared.total_bytes() == total
        patched.setattr(opencl_backend, "available_bytes", lambda: 1 << 20)
        assert shared.free_bytes() == 1 << 20
        patched.setattr(opencl_backend, "available_bytes", lambda: 2 * total)
        assert shared.free_bytes() == total - shared.allocated_bytes
        shared.close()
    assert backend.total_bytes() - backend.free_bytes() == backend.allocated_bytes > 8 * 256 // 2
    backend.close()


def test_too_large_a_buffer_is_a_shortage(opencl: Any) -> None:
    """A shorter context helps where pages are too large, not where a weight is."""
    with pytest.raises(MemoryShortage, match=r"too large for a weight \(got .*; allowed .*\)\. Use a smaller model"):
        opencl.allocate_buffer(1 << 60, "a weight")
    with pytest.raises(MemoryShortage, match=r"too large for 1000000000 pages .*\. Lower the option max_context"):
        opencl.allocate_pages(1_000_000_000, [(32, 128)], F32)


def test_a_buffer_without_room_is_a_shortage_of_its_purpose(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise fault("clCreateBuffer", "MEM_OBJECT_ALLOCATION_FAILURE")

    monkeypatch.setattr(opencl_backend, "CountedBuffer", fail)
    with pytest.raises(MemoryShortage, match=r"no memory for a weight of 64 bytes .*clCreateBuffer.*\. Use a smaller"):
        opencl.allocate_buffer(64, "a weight")


def test_a_freed_program_gives_its_memory_back(opencl: Any) -> None:
    """Also while its object is still referenced."""
    before = opencl.allocated_bytes
    plan = build_segmented_plan(opencl)
    plan.run({"x": np.ones((3, 1024), np.float32), "rows": np.zeros(1, np.int32)}, {"tokens": 3, "rows": 1})
    programs = [program for program in opencl.context.live if isinstance(program, opencl_program.OpenClProgram)]
    assert opencl.allocated_bytes > before
    plan.close()
    assert opencl.allocated_bytes == before
    assert programs


@pytest.mark.parametrize("width", [64, 1024])
def test_inputs_of_another_type_are_converted(opencl: Any, width: int) -> None:
    """Small inputs, which go up together, and large ones."""
    plan = Plan(trace(lambda x: {"y": ops.add(x, x)}, {"x": Spec((Symbol("tokens", 512), width), F32)}), opencl)
    plan.run({"x": np.zeros((1, width), np.float32)}, {"tokens": 1})
    program: Any = plan.bucket_programs["any"].program
    x = (np.arange(512 * width) % 100).astype(np.float16).reshape(512, width)
    handles = program.run({"x": x}, {"tokens": 512})
    assert np.array_equal(opencl.fetch(handles["y"]), 2 * x.astype(np.float32))
    plan.close()


def test_heads_of_an_odd_width_have_no_kernel(opencl: Any) -> None:
    cache = opencl.allocate_pages(1, [(1, 15)], F32)[0]
    k = opencl.tensor(np.ones((1, 15), np.float32))
    with pytest.raises(UnsupportedOp, match="no kernel for store_kv"):
        ops.store_kv(k, k, cache, opencl.tensor(np.zeros(1, np.int32)))
    opencl.free_pages([cache])


def test_a_number_beyond_int32_is_an_error() -> None:
    launch = KernelLaunch(
        kernel_program("conversion", {}), "convert", [ScaledExtent(Symbol("n", 9), 1 << 30)], [1], [1]
    )
    kernel = SimpleNamespace(set_arg=lambda index, value: None)
    with pytest.raises(OpError, match=r"convert: a step has too many numbers \(got 2147483648; allowed 2147483647\)"):
        PreparedLaunch(launch, kernel).bind({"n": 2})


def generate_in_thread(folder: Path, barrier: Barrier, results: list[Any]) -> None:
    """Run a plan whose kernels are all compiled here."""
    backend = open_available("opencl")
    backend.compiler.binaries = ObjectCache(folder, 1 << 24)
    plan = build_segmented_plan(backend)
    barrier.wait()
    x = np.arange(3 * 1024, dtype=np.float32).reshape(3, 1024)
    found = plan.run({"x": x, "rows": np.array([2], np.int32)}, {"tokens": 3, "rows": 1})
    results.append((found["best"].tolist(), backend.compiler.num_compiled > 0))
    plan.close()
    backend.close()


def test_two_models_compile_in_two_threads(tmp_path: Path, opencl: Any) -> None:
    """Both with an empty cache: PoCL compiles in one folder of the process, one thread at a time."""
    barrier, results = Barrier(2), list[Any]()
    threads = [Thread(target=generate_in_thread, args=(tmp_path / str(n), barrier, results)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [([1023], True)] * 2


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, MemoryShortage, "Lower the option max_context"),
        (cl.status_code.OUT_OF_HOST_MEMORY, MemoryShortage, "Lower the option max_context"),
        (cl.status_code.OUT_OF_RESOURCES, BackendError, "failed: .*Load the model again"),
        (cl.status_code.INVALID_COMMAND_QUEUE, BackendError, "failed: .*Load the model again"),
    ],
)
def test_a_failure_in_a_step_is_one_line_with_a_remedy(
    opencl: Any, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception], words: str
) -> None:
    """The device is lost while a step is enqueued. Afterwards another step runs as before."""
    plan = build_segmented_plan(opencl)
    arrays = {"x": np.ones((3, 1024), np.float32), "rows": np.zeros(1, np.int32)}

    def fail(*arguments: Any) -> None:
        raise cl.RuntimeError(cl._cl._ErrorRecord("clEnqueueNDRangeKernel failed", code, "clEnqueueNDRangeKernel"))

    with monkeypatch.context() as patched:
        patched.setattr(opencl_program.cl, "enqueue_nd_range_kernel", fail)
        with pytest.raises(expected, match=f"device 0: .*{words}") as raised:
            plan.run(arrays, {"tokens": 3, "rows": 1})
    assert "\n" not in str(raised.value)
    assert plan.run(arrays, {"tokens": 3, "rows": 1})["best"] == [0]
    plan.close()


def test_strict_refuses_a_fallback(opencl: Any) -> None:
    opencl.strict = True
    x = opencl.tensor(np.ones((2, 8), np.float32))
    with pytest.raises(BackendError, match=r"opencl has no kernel for spread_streams.*option strict"):
        ops.spread_streams(x, (x,))


def test_a_case_without_a_kernel_is_unsupported(opencl: Any) -> None:
    """The reference cannot run an op on packed weights, caches or states."""
    case = next(case for case in CASES if case.op == "linear_heads")
    reference = open_available("reference")
    row = check_case("opencl", case, opencl, reference)
    assert (row["state"], row["kernel"]) == ("unsupported", "reference")
    assert "opencl has no kernel for linear_heads" in row["error"]
    reference.close()


def test_rates_are_positive(opencl: Any) -> None:
    rates = opencl.measure_limits()
    assert rates.keys() == {"stream_bytes_s", "stream_median_bytes_s", "int8_dot_ops_s", "f32_ops_s", "token_bytes_s"}
    assert min(rates.values()) > 1e8


def test_rates_of_a_gpu_are_measured_with_its_groups(opencl: Any) -> None:
    opencl.device, opencl.tuning = replace(opencl.device, kind="gpu"), GPU_DEFAULTS
    assert min(opencl.measure_limits().values()) > 1e7


@pytest.mark.parametrize(("head_dim", "name"), [(64, "Q4_K"), (80, "Q8_0"), (32, "Q8_0")])
def test_heads_that_are_not_whole_groups_are_rounded_apart(opencl: Any, head_dim: int, name: str) -> None:
    """The norm of heads and the rounding of its result are one launch only where each head has whole groups."""
    width = head_dim * 4
    on = On(opencl, "heads")
    weight, scale = on.weight(name, 16, width), on.tensor(on.values(head_dim))

    def function(x: Any) -> Mapping[str, Any]:
        return {"y": ops.linear(ops.rms_norm(x, scale, eps=1e-5), weight)}

    plan = Plan(trace(function, {"x": Spec((Symbol("tokens", 8), width), F32)}), opencl)
    x = on.values(7, width)
    expected = function(opencl.tensor(x))["y"].numpy()
    assert np.array_equal(plan.run({"x": x}, {"tokens": 7})["y"], expected)
    program: Any = plan.bucket_programs["any"].program
    assert [launch.name for launch in program._launches].count("quantize_groups") == (head_dim != 32)
    plan.close()
    reference = open_available("reference")
    on = On(reference, "heads")
    weight, scale = on.weight(name, 16, width), on.tensor(on.values(head_dim))
    found = function(reference.tensor(x))["y"].numpy()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(found).max()
    reference.close()


@pytest.mark.parametrize("limit", [16, 24])
def test_no_group_is_larger_than_the_device_allows(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The defaults of a GPU on a device with small groups: each launch fits."""
    monkeypatch.setattr(OpenClDevice, "max_group_size", limit)
    monkeypatch.setattr(opencl_backend, "tuning_in_use", lambda device: ActiveTuning(GPU_DEFAULTS, "defaults"))
    backend, reference = open_available("opencl"), open_available("reference")
    groups: list[int] = []
    enqueue = cl.enqueue_nd_range_kernel

    def record(queue: Any, kernel: Any, sizes: Any, group: Any) -> Any:
        groups.append(prod(group))
        return enqueue(queue, kernel, sizes, group)

    monkeypatch.setattr(opencl_program.cl, "enqueue_nd_range_kernel", record)
    results = []
    for each in (backend, reference):
        on = On(each, "small groups")
        weight, scale, x = on.weight("Q8_0", 40, 64), on.tensor(on.values(64)), each.tensor(on.values(20, 64))
        normed = ops.linear(ops.rms_norm(x, scale, eps=1e-5), weight)
        results.append([normed.numpy(), ops.add(x, x).numpy(), ops.argmax(normed).numpy()])
        each.close()
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert max(groups) == 16


def test_groups_that_meet_at_barriers_have_no_dummy_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL 3.1 crashes where work-items return before a barrier."""
    assert kernel_program("norm", {"LOCAL": 1}).has_dummy_launches
    assert not kernel_program("norm", {"LOCAL": 64}).has_dummy_launches
    monkeypatch.setattr(opencl_backend, "tuning_in_use", lambda device: ActiveTuning(GPU_DEFAULTS, "defaults"))
    backend = open_available("opencl")
    x = np.random.default_rng(0).standard_normal((121, 7)).astype(np.float32)
    normed = ops.rms_norm(backend.tensor(x), backend.tensor(np.ones(7, np.float32)), eps=1e-5).numpy()
    backend.close()
    np.testing.assert_allclose(normed, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5), rtol=1e-5)


def test_first_launches_without_a_dummy_hold_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PoCL finishes compiling there, in a cache folder that the threads of a process share without locks."""
    monkeypatch.setattr(opencl_backend, "tuning_in_use", lambda device: ActiveTuning(GPU_DEFAULTS, "defaults"))
    backend = open_available("opencl")
    backend.compiler.binaries = ObjectCache(tmp_path / "binaries", 1 << 24)
    x, scale = backend.tensor(np.ones((3, 8), np.float32)), backend.tensor(np.ones(8, np.float32))
    enqueue, owned = cl.enqueue_nd_range_kernel, []

    def watch(*arguments: Any) -> Any:
        owned.append(kernel_program_module.COMPILE_LOCK._is_owned())  # type: ignore[attr-defined]
        return enqueue(*arguments)

    monkeypatch.setattr(opencl_backend.cl, "enqueue_nd_range_kernel", watch)
    for _ in range(2):
        ops.rms_norm(x, scale, eps=1e-5).numpy()
    assert owned == [True, False]
    monkeypatch.setattr(kernel_program_module, "RECOMPILE_THRESHOLD_SECONDS", 60.0)
    binaries = backend.compiler.binaries
    backend.compiler = ProgramCompiler(backend.device, backend.cl_context, binaries)
    backend.time_calls()
    monkeypatch.setattr(binaries, "put", lambda *arguments: pytest.fail("a complete binary is not saved again"))
    ops.rms_norm(x, scale, eps=1e-5).numpy()
    assert owned == [True, False, True], "timed launches too"
    assert backend.compiler.num_compiled == 0
    backend.close()


def test_a_group_that_a_kernel_does_not_allow_is_an_error(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = opencl.tensor(np.ones((2, 8), np.float32))
    monkeypatch.setattr(opencl_backend.cl, "Kernel", lambda *arguments: SmallKernel(*arguments))
    with pytest.raises(BackendError, match=r"work-group of map_numbers too large \(got 128; allowed 3\)\. Run 'spore"):
        ops.add(x, x)


class SmallKernel(cl.Kernel):
    """A kernel whose registers leave room for three work-items."""

    def get_work_group_info(self, what: Any, device: Any) -> int:
        return 3


def test_times_are_recorded_per_kernel(opencl: Any) -> None:
    take = opencl.time_calls()
    x = opencl.tensor(np.ones((2, 8), np.float32))
    ops.add(x, x)
    (time,) = take()
    assert (time.call.op, time.kernel) == (ops.add, "map_numbers")
    assert time.seconds > 0
    assert take() == []


def test_an_unknown_dtype_is_an_error() -> None:
    from sporelm.backends.opencl import OpenClBackend

    with pytest.raises(BackendError, match=r"dtype: .* \(got 'bf16'; allowed auto, f32, f16\)"):
        OpenClBackend(dtype="bf16")
