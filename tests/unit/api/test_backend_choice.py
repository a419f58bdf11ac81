"""`--backend auto`: the fastest device that holds the model, with stand-ins for devices."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sporelm import LLM, settings
from sporelm.api import backend_choice
from sporelm.api.backend_choice import BackendChoice, TokenCost, choose_backend
from sporelm.api.engine_loader import open_device
from sporelm.backends import backend_registry, torch_detection
from sporelm.backends.cpu import CpuBackend
from sporelm.backends.protocol import Backend
from sporelm.backends.reference import ReferenceBackend
from sporelm.cli.main import main
from sporelm.errors import BackendError, RequestError

GB = 10**9
CPU_RATES = {"stream_bytes_s": 20e9, "stream_median_bytes_s": 20e9, "int8_dot_ops_s": 1e11, "f32_ops_s": 1e11}


class Gpu(ReferenceBackend):
    """A back-end with two devices of other speeds."""

    name = "gpu"
    devices: ClassVar[list[str]] = ["gpu:0", "gpu:1"]
    bandwidth: ClassVar[dict[str, float]] = {"gpu:0": 100e9, "gpu:1": 900e9}
    free: ClassVar[dict[str, int]] = {"gpu:0": 16 * GB, "gpu:1": 8 * GB}
    failure: ClassVar[str] = ""

    def __init__(self, threads: int | None = None, device: str = "gpu:0", dtype: str = "auto") -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        super().__init__()
        self.device = device

    @staticmethod
    def list_devices() -> list[str]:
        return Gpu.devices

    def free_bytes(self) -> int:
        return self.free[self.device]

    def measure_limits(self) -> Mapping[str, float]:
        return dict.fromkeys(CPU_RATES, self.bandwidth[self.device])


class Point:
    """An entry point."""

    name = "gpu"

    @staticmethod
    def load() -> Any:
        return Gpu


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry, "entry_points", lambda group: [Point()])
    monkeypatch.setattr(backend_registry, "list_torch_devices", list)
    monkeypatch.setattr(backend_registry, "list_opencl_candidates", lambda devices: [])
    monkeypatch.setattr(backend_choice, "find_driver_failure", lambda: None)
    monkeypatch.setattr(CpuBackend, "measure_limits", lambda self: CPU_RATES)


def choose(stream: int, memory: int = 0, device: str = "cpu", **options: bool) -> BackendChoice:
    return choose_backend(
        device, lambda name, place: open_device(name, place, 1), lambda backend: TokenCost(stream, 0, memory), **options
    )


def test_the_fastest_device_is_picked_and_its_rate_named() -> None:
    choice = choose(1 * GB, 2 * GB)
    assert (choice.name, choice.device) == ("gpu", "gpu:1")
    assert str(choice).startswith("backend: gpu on gpu:1 (bandwidth and memory allow at most cpu 20 tokens/s; ")
    assert "gpu on gpu:0 100 tokens/s; gpu on gpu:1 900 tokens/s" in choice.reason


def test_a_device_with_too_little_memory_is_passed_over() -> None:
    choice = choose(6 * GB, 9 * GB)
    assert (choice.name, choice.device) == ("gpu", "gpu:0")
    assert "gpu on gpu:1 cannot be used: the model needs 9.0 GB, 8.0 GB are free" in choice.reason


def test_the_cpu_remains_if_no_device_holds_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.backends.memory_residency.available_bytes", lambda: 64 * GB)
    assert choose(6 * GB, 30 * GB).name == "cpu"
    monkeypatch.setattr("sporelm.backends.memory_residency.available_bytes", lambda: GB)
    choice = choose(6 * GB, 30 * GB)
    assert choice.name == "cpu"
    assert choice.reason.count("cannot be used") == 3


def test_a_model_that_no_device_holds_may_be_split() -> None:
    """Of 30 GB the device reads 6 GB in 60 ms, and the CPU the rest in 1.2 s; all on the CPU takes 1.5 s."""

    def cost_on(backend: Backend) -> TokenCost:
        if backend.free_bytes() is None:
            return TokenCost(30 * GB)
        return TokenCost(6 * GB, 0, 0, 24 * GB / 20e9 if backend.free_bytes() == 16 * GB else 1.0, "6 of 30 layers")

    choice = choose_backend("cpu", lambda name, place: open_device(name, place, 1), cost_on)
    assert choice.device == "gpu:1"
    assert "cpu 0.667 tokens/s; gpu on gpu:0 0.794 tokens/s with 6 of 30 layers" in choice.reason


def test_a_little_faster_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "bandwidth", {"gpu:0": 20.5e9, "gpu:1": 23e9})
    assert choose(GB).name == "cpu"
    monkeypatch.setattr(Gpu, "bandwidth", {"gpu:0": 20.5e9, "gpu:1": 25e9})
    assert choose(GB).device == "gpu:1"


def test_work_beyond_reading_counts() -> None:
    def cost_on(backend: Backend) -> TokenCost:
        return TokenCost(0, 10**9)

    choice = choose_backend("cpu", lambda name, place: open_device(name, place, 1), cost_on)
    assert choice.device == "gpu:1"
    assert "cpu 100 tokens/s" in choice.reason


@pytest.mark.parametrize(("device", "found"), [("gpu", "gpu:1"), ("gpu:0", "gpu:0"), ("CPU:0", "gpu:1")])
def test_a_named_device_other_than_the_cpu_excludes_the_others(device: str, found: str) -> None:
    choice = choose(GB, device=device)
    assert choice.device == found
    assert ("cpu" in choice.reason) == (device == "CPU:0")


def test_no_device_of_that_name_is_an_error() -> None:
    with pytest.raises(
        BackendError,
        match=r"'auto' finds no device: no back-end that auto may choose has .* 'npu' here\.",
    ):
        choose(GB, device="npu")


def test_a_device_that_fails_is_passed_over_unless_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "failure", "driver too old")
    choice = choose(GB)
    assert choice.name == "cpu"
    assert "gpu on gpu:0 cannot be used: back-end 'gpu' failed: RuntimeError: driver too old" in choice.reason
    with pytest.raises(BackendError, match=r"^the option strict: gpu on gpu:0 cannot be used: .*driver too old"):
        choose(GB, strict=True)
    with pytest.raises(BackendError, match=r"finds no device: gpu on gpu:0 cannot be used"):
        choose(GB, allows_host=False)


def test_a_device_that_cannot_be_measured_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(backend: Gpu) -> Mapping[str, float]:
        raise TypeError("synchronize() takes 0\narguments")

    monkeypatch.setattr(Gpu, "measure_limits", fail)
    choice = choose(GB)
    assert choice.name == "cpu"
    expected = "gpu on gpu:1 cannot be used: measuring its speed failed: TypeError: synchronize() takes 0 arguments"
    assert expected in choice.reason


def test_any_error_while_a_device_is_opened_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_candidate(name: str, place: str) -> Backend:
        if name == "gpu":
            raise RuntimeError("no\nmemory")
        return open_device(name, place, 1)

    choice = choose_backend("cpu", open_candidate, lambda backend: TokenCost(GB))
    assert choice.name == "cpu"
    assert "gpu on gpu:1 cannot be used: opening it failed: RuntimeError: no memory" in choice.reason


def test_too_little_memory_is_an_error_if_strict() -> None:
    with pytest.raises(BackendError, match=r"^the option strict: gpu on gpu:1 cannot be used: the model needs 9\.0 GB"):
        choose(6 * GB, 9 * GB, strict=True)


def test_alone_the_host_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "devices", [])

    def refuse(name: str, place: str) -> Backend:
        raise AssertionError("opened")

    choice = choose_backend("cpu", refuse, lambda backend: TokenCost(GB))
    assert str(choice) == "backend: cpu (the only device that is ready here)"


def test_a_driver_that_crashes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its devices are unknown, so that none is a candidate; `strict` does not go on without them."""
    monkeypatch.setattr(backend_choice, "find_driver_failure", lambda: "the driver crashed. Update it.")
    named = "opencl cannot be used: the driver crashed. Update it"
    assert choose(GB).reason.endswith(named) or named + "; " in choose(GB).reason
    assert named in choose(GB, allows_host=False).reason
    for device in ("cpu", "opencl:1"):
        with pytest.raises(BackendError, match=rf"^the option strict: {named}\. Remove the option strict"):
            choose(GB, device=device, strict=True)
    with pytest.raises(BackendError, match=f"finds no device: {named}"):
        choose(GB, device="opencl:1")
    assert choose(GB, device="gpu:0", strict=True).device == "gpu:0"
    monkeypatch.setattr(Gpu, "devices", [])
    assert choose(GB).reason == f"the only device that is ready here; {named}"


def test_a_model_runs_on_the_choice(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(story, backend="auto", max_context=64) as llm:
        assert llm.backend.name == "gpu"
        assert llm.notes[0].startswith("backend: gpu on gpu:1 (bandwidth")
    assert main(["info", str(story), "--backend", "auto", "--no-speed", "--context", "64"]) == 0
    shown = capsys.readouterr()
    assert "spore: backend: gpu on gpu:1 (" in shown.err
    assert "device memory  8.0 GB free" in shown.out


def test_a_model_that_no_device_holds_runs_on_both(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(story, backend="auto", max_context=64) as llm:
        nbytes = llm.model_bytes
    monkeypatch.setattr(Gpu, "free", {"gpu:0": nbytes - 1, "gpu:1": 1000})
    monkeypatch.setattr(Gpu, "step_buckets", {"any": 16})
    with LLM(story, backend="auto", max_context=64) as llm:
        assert llm.backend.name == "gpu+cpu"
        assert llm.split is not None
        choice, split = llm.notes[:2]
        assert re.search(r"gpu on gpu:0 [0-9.e+]+ tokens/s with [12] of 2 layers", choice)
        assert "gpu on gpu:1 cannot be used: the model needs" in choice
        assert split.startswith(f"device split: {llm.split.layer_text} on gpu on gpu:0")
    with pytest.raises(BackendError, match="the option strict: gpu on gpu:0 cannot be used: the model needs"):
        LLM(story, backend="auto", max_context=64, strict=True)


def test_other_options_apply(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="it must be a name"):
        LLM(story, backend=3)  # type: ignore[arg-type]
    monkeypatch.setenv("SPORE_BACKEND", "auto")  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "BACKEND", settings.Setting("SPORE_BACKEND", lambda: "cpu", ""))
    with LLM(story, max_context=64) as llm:
        assert llm.backend.name == "gpu"


@pytest.mark.parametrize(("token_bytes", "expected"), [(21e9, "cpu"), (60e9, "gpu")])
def test_what_kernels_reach_counts_more_than_the_memory_s_peak(
    token_bytes: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An integrated GPU reads the same memory as the CPU: it is chosen only if its products are faster."""
    rates = dict.fromkeys(CPU_RATES, 1e12) | {"token_bytes_s": token_bytes}
    monkeypatch.setattr(Gpu, "measure_limits", lambda self: rates)
    assert choose(1 * GB).name == expected


def test_doctor_shows_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "\nauto         --backend auto picks gpu, device gpu:1: bandwidth" in shown
    assert "\nsplit        a model that takes more than 16.0 GB on gpu, device gpu:0 has its first layers" in shown


WITHOUT_DRIVER = """
import sys
from sporelm.backends.backend_registry import find_devices
print(find_devices(), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("build", "has_driver", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True, False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", True, True),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", False, False),
        ("cuda = None\nhip = '7.0'\n", False, True),
    ],
)
def test_torch_is_imported_only_for_a_build_with_a_driver(
    build: str, has_driver: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(build)

    class Spec:
        origin = str(tmp_path / "__init__.py")

    find: Callable[[str], Any] = lambda name: Spec  # noqa: E731
    monkeypatch.setattr(torch_detection, "find_spec", find)
    monkeypatch.setattr(torch_detection, "entry_points", lambda group: [])
    monkeypatch.setattr(torch_detection, "has_cuda_driver", lambda: has_driver)
    monkeypatch.setattr(torch_detection.sys, "platform", "linux")
    assert torch_detection.can_have_devices() == expected
    monkeypatch.setattr(torch_detection, "find_spec", lambda name: None)
    assert not torch_detection.can_have_devices()


def test_devices_of_this_torch_are_found_without_importing_a_cpu_build() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_DRIVER], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("[]") == ran.stdout.endswith("False\n")
