"""Torch as a back-end: devices, threads, contexts, and the error where torch is missing."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

from available import open_available
from sporelm import ops
from sporelm.backends.backend_registry import open_backend
from sporelm.errors import BackendError, ContextError, MemoryShortage, install_command
from sporelm.ops import Spec, Symbol, trace
from sporelm.plan import Plan
from sporelm.tensor.dtype import F16, F32

SPECS = {"x": Spec((Symbol("tokens", 4), 8), F32)}
STEP: Any = ({"x": np.ones((2, 8), np.float32)}, {"tokens": 2})


def doubled(backend: Any) -> Plan:
    return Plan(trace(lambda x: {"y": ops.add(x, x)}, SPECS), backend)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from sporelm.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command",
    [
        ["run", "MODEL", "-p", "a", "-n", "1", "--backend", "torch"],
        ["doctor"],
        ["doctor", "--conformance", "--backend", "torch"],
    ],
)
def test_without_torch_one_line_names_the_remedy(command: list[str], story: Path) -> None:
    words = [str(story) if word == "MODEL" else word for word in command]
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    lines = [line.strip() for line in said.splitlines() if "[torch]" in line]
    if command == ["doctor"]:  # a line for each back-end that needs torch
        named = [line.partition(" ")[0] for line in lines]
        assert named[0] == "torch"
        assert len({*named}) == len(named), said
    else:
        assert len(lines) == 1, said
    assert all(f"torch is not installed: {install_command('torch')}" in line for line in lines)
    assert "Traceback" not in said
    assert ran.returncode == (0 if command == ["doctor"] else 1)


WITHOUT_NEED = """
import sys
from sporelm.cli.main import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("command", [["--help"], ["run", "MODEL", "-p", "a", "-n", "2", "--temp", "0"]], ids=len)
def test_torch_is_not_imported_without_need(command: list[str], story: Path) -> None:
    words = [str(story) if word == "MODEL" else word for word in command]
    ran = subprocess.run([sys.executable, "-c", WITHOUT_NEED, *words], capture_output=True, text=True, check=False)
    assert "AssertionError" not in ran.stderr, ran.stderr


def test_a_missing_device_is_reported_in_one_line() -> None:
    open_available("torch").close()
    allowed = "not a device name .allowed: cpu, cuda, mps, xpu, npu, mlu, musa"
    for device, reason in (
        ("cuda:99", ""),
        ("nonsense", allowed),
        ("", allowed),
        ("cpu:x", ""),
        ("musa", "torch_musa"),
    ):
        match = f"has no device '{device}' here: .*{reason}.*, or set the option device to cpu"
        with pytest.raises(BackendError, match=match) as caught:
            open_backend("torch", device=device)
        assert "\n" not in str(caught.value)


class Gpus:
    """A module of a device kind with two devices. The first one has 3 of 8 GB free."""

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def mem_get_info(device: Any) -> tuple[int, int]:
        if device.index == 1:
            raise RuntimeError("no such query")
        return 3 * 10**9, 8 * 10**9


def test_the_last_device_is_named_and_its_memory_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    open_available("torch").close()
    import torch

    from sporelm.backends.torch.device_queries import explain_missing_device, read_device_memory

    monkeypatch.setattr(torch, "cuda", Gpus)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Gpus)
    reason = explain_missing_device("cuda:7", RuntimeError("CUDA error: invalid device ordinal\nmore"), "go home")
    assert reason.endswith("device ordinal (the last one is 'cuda:1'). Set the option device to cuda:1, or go home")
    assert read_device_memory(torch.device("cuda:0")) == (3 * 10**9, 8 * 10**9)
    assert read_device_memory(torch.device("cuda:1")) is None
    assert read_device_memory(torch.device("cpu")) is read_device_memory(torch.device("meta")) is None


def test_a_device_without_values_is_reported_in_one_line(capsys: pytest.CaptureFixture[str], story: Path) -> None:
    open_available("torch").close()
    from sporelm.cli.main import main

    assert main(["run", str(story), "-p", "Once", "--backend", "torch", "--device", "meta"]) == 1
    assert "device 'meta' has shapes and no values" in capsys.readouterr().err


def test_the_number_of_threads_is_ours_only_while_we_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_available("torch", threads=3)
    torch = pytest.importorskip("torch")
    before, seen = torch.get_num_threads(), list[int]()
    add = backend.functions["add"]

    def watched(x: Any, y: Any) -> Any:
        seen.append(torch.get_num_threads())
        return add(x, y)

    monkeypatch.setattr(backend, "functions", {**backend.functions, "add": watched})
    plan = doubled(backend)
    plan.run(*STEP)
    ops.add(backend.tensor(STEP[0]["x"]), backend.tensor(STEP[0]["x"]))
    assert seen == [3, 3]
    assert torch.get_num_threads() == before

    def failing(x: Any, y: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(backend, "functions", {**backend.functions, "add": failing})
    with pytest.raises(RuntimeError, match="no memory"):
        ops.add(backend.tensor(STEP[0]["x"]), backend.tensor(STEP[0]["x"]))
    assert torch.get_num_threads() == before
    plan.close()
    backend.close()


def test_defaults_that_others_set_in_torch_do_not_matter() -> None:
    backend = open_available("torch")
    torch = pytest.importorskip("torch")
    try:
        torch.set_default_dtype(torch.float64)
        total = ops.add(backend.tensor(STEP[0]["x"]), backend.tensor(STEP[0]["x"]))
        caches = backend.allocate_pages(1, [(1, 16)], F16)
        assert total.storage.dtype == torch.float32
        assert caches[0].storage.values.dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    backend.free_pages(caches)
    backend.close()


def test_a_text_that_is_not_a_number_is_in_no_others_mean() -> None:
    backend, rows = open_available("torch"), np.ones((4, 8), np.float32)
    rows[0] = np.nan
    bounds = (backend.tensor(np.array(numbers, np.int32)) for numbers in ((0, 2), (2, 4)))
    assert np.array_equal(ops.mean_rows(backend.tensor(rows), *bounds).numpy()[1], rows[2])
    backend.close()


def test_a_program_is_stored_and_bound_again() -> None:
    backend, other = open_available("torch"), open_available("torch")
    plan = doubled(backend)
    program: Any = plan.bucket_program("any").program
    first = plan.run(*STEP)["y"]
    program.sporulate()
    with pytest.raises(ContextError, match="program of 1 calls is detached from context torch"):
        plan.run(*STEP)
    with pytest.raises(ContextError, match="belongs to context torch"):
        program.sprout(other.context)
    program.sprout(backend.context)
    assert (plan.run(*STEP)["y"] == 2).all()
    assert (first == 2).all()
    plan.close()
    with pytest.raises(ContextError, match="was freed"):
        program.run(*STEP)
    backend.close()
    other.close()


def test_pages_belong_to_their_pool_and_leaks_are_told() -> None:
    backend = open_available("torch")
    caches = backend.allocate_pages(2, [(1, 16), (2, 8)], F16)
    assert [cache.shape for cache in caches] == [(2, 2, 1, 64, 16), (2, 2, 2, 64, 8)]
    canonical = np.random.default_rng(0).standard_normal((1, 2, 2, 64, 8)).astype(np.float16)
    backend.import_pages(caches[1], [1], canonical)
    assert np.array_equal(backend.export_pages(caches[1], [1]), canonical)
    assert not backend.export_pages(caches[1], [0]).any()
    backend.free_pages(caches)
    rows, slots = backend.tensor(np.ones((1, 16), np.float32)), backend.tensor(np.zeros(1, np.int32))
    for use in (
        lambda: backend.export_pages(caches[1], [0]),
        lambda: ops.store_kv(rows, rows, caches[0], slots),
    ):
        with pytest.raises(ContextError, match="2 pages of 2 layers was freed"):
            use()
    plan, held = doubled(backend), backend.allocate_pages(3, [(1, 16)], F32)
    plan.run(*STEP)
    with pytest.warns(ResourceWarning, match="torch was closed before 3 pages of 1 layers; program of 1 calls"):
        backend.close()
    assert len(held) == 1
    with pytest.raises(BackendError, match="closed"):
        backend.tensor(np.ones(3, np.float32))


def test_memory_of_the_device_is_asked_for_where_it_has_its_own() -> None:
    backend = open_available("torch")
    assert backend.free_bytes() is None, "the host's memory is counted by the host"
    found = backend.measure_limits()
    assert found.keys() == {"stream_bytes_s", "stream_median_bytes_s", "int8_dot_ops_s", "f32_ops_s"}
    assert 0 < found["stream_median_bytes_s"] <= found["stream_bytes_s"]
    assert min(backend.measure_limits().values()) > 0
    backend.synchronize()
    backend.close()


def test_too_little_memory_is_a_shortage() -> None:
    backend = open_available("torch")
    import torch

    remedy = r"\. Lower the option max_context, or use a smaller model\.$"
    with pytest.raises(MemoryShortage, match=r"^device cpu: 2 GB are needed" + remedy), backend.on_device():
        raise torch.OutOfMemoryError("2 GB are needed.\nand more")
    with pytest.raises(MemoryShortage, match="can't allocate memory.*" + remedy), backend.on_device():
        torch.zeros(1 << 60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"^no shortage$"), backend.on_device():
        raise RuntimeError("no shortage")
    backend.close()


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu"])
def test_a_device_of_any_kind_is_waited_for(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """`torch.mps.synchronize` takes no device."""
    backend = open_available("torch")
    import torch

    synchronize = create_autospec(torch.get_device_module(kind).synchronize)
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(synchronize=synchronize))
    backend.device = torch.device(kind)
    backend.synchronize()
    synchronize.assert_called_once_with()
    backend.close()
