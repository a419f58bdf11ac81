"""Back-ends of other packages: whatever they raise is one reason, and never ends the program that only asked."""

from collections.abc import Callable
from typing import Any

import pytest

from sporelm import settings
from sporelm.backends import backend_registry
from sporelm.backends.protocol import Missing, Ready
from sporelm.errors import BackendError


class Fake:
    """A back-end of another package, so far as the registry looks at it."""

    def __init__(self, threads: int | None = None) -> None:
        pass

    def probe(self) -> Any:
        return Ready({"device": "fake"})

    def missing_kernels(self) -> list[str]:
        return ["top_k"]

    def close(self) -> None:
        pass


class NoThreads(Fake):
    def __init__(self) -> None:
        pass


class ProbeRaises(Fake):
    def probe(self) -> Any:
        raise ValueError("no driver\n  at line 5\n")


class ProbeSaysNothing(Fake):
    def probe(self) -> Any:
        return None


class LacksRaises(Fake):
    def missing_kernels(self) -> list[str]:
        raise KeyError("ops")


class CloseRaises(Fake):
    def close(self) -> None:
        raise OSError("device is gone")


class NotHere(Fake):
    def probe(self) -> Any:
        return Missing("no such device")


def raising(error: Exception) -> Callable[..., Any]:
    def construct(**options: Any) -> Any:
        raise error

    return construct


class Point:
    """An entry point."""

    name = "fake"

    def __init__(self, factory: Any) -> None:
        self.factory = factory

    def load(self) -> Any:
        if isinstance(self.factory, Exception):
            raise self.factory
        return self.factory


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Offer a back-end named "fake", as an installed package does; an exception is what loading it raises."""

    def offer(factory: Any) -> None:
        monkeypatch.setattr(backend_registry, "entry_points", lambda group: [Point(factory)])

    return offer


def test_a_good_one_is_opened_and_described(install: Callable[[Any], None]) -> None:
    install(Fake)
    assert "fake" in backend_registry.backend_names()
    assert isinstance(backend_registry.open_backend("fake", threads=2), Fake)
    assert backend_registry.describe_backend("fake") == (Ready({"device": "fake"}), ["top_k"])


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (ImportError("libfake.so is missing"), "libfake.so is missing"),
        (RuntimeError("driver too old\nTraceback"), "RuntimeError: driver too old Traceback"),
        (AttributeError("module has no attribute"), "AttributeError: module"),
        (raising(OSError("no device")), "OSError: no device"),
        (raising(ImportError("torch")), "torch"),
        (NoThreads, "TypeError: .*threads"),
        (ProbeRaises, "ValueError: no driver at line 5"),
        (NotHere, "cannot run here: no such device"),
    ],
)
def test_what_it_raises_is_the_reason(install: Callable[[Any], None], factory: Any, reason: str) -> None:
    install(factory)
    with pytest.raises(BackendError, match=f"back-end 'fake' .*{reason}") as caught:
        backend_registry.open_backend("fake", threads=2)
    assert "\n" not in str(caught.value)
    if factory is not NoThreads:
        found = backend_registry.all_backends()
        assert isinstance(found["fake"], Missing)
        assert not isinstance(found["reference"], Missing)
        assert isinstance(backend_registry.describe_backend("fake"), Missing)


@pytest.mark.parametrize("factory", [ProbeSaysNothing, LacksRaises, CloseRaises])
def test_what_it_says_of_itself_may_fail_too(install: Callable[[Any], None], factory: Any) -> None:
    install(factory)
    state = backend_registry.describe_backend("fake")
    assert isinstance(state, Missing)
    assert state.reason.startswith("back-end 'fake' failed: ")


def test_doctor_goes_on(install: Callable[[Any], None]) -> None:
    from sporelm.cli import doctor

    install(raising(RuntimeError("broken")))
    found = doctor.probe_backends()
    assert found["fake"] == {"ready": False, "reason": "back-end 'fake' failed: RuntimeError: broken"}
    assert found["reference"]["ready"]


def test_a_bug_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_registry, "_load", lambda path: raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        backend_registry.open_backend("reference")


def test_a_wrong_setting_is_the_reason_why_a_back_end_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.delenv("SPORE_THREADS", raising=False)
    wrong = settings.Setting("SPORE_THREADS", lambda: "abc", "", bounds=(1, 1024))
    monkeypatch.setattr(settings, "THREADS", wrong)
    state = backend_registry.describe_backend("cpu")
    assert isinstance(state, Missing)
    assert state.reason.startswith("SPORE_THREADS is 'abc': it must be a whole number from 1 to ")


@pytest.mark.parametrize(
    ("device", "expected"),
    [("CUDA:1", "cuda:1"), ("cpu:0", "cpu"), ("Cpu", "cpu"), ("cpu:1", "cpu:1"), ("Ascend:0", "Ascend:0")],
)
def test_names_of_known_devices_may_be_in_capitals(device: str, expected: str) -> None:
    assert backend_registry.normalize_device(device) == expected


def test_the_kinds_of_devices_are_those_of_torch() -> None:
    pytest.importorskip("torch")
    from sporelm.backends.torch.device_queries import KNOWN

    assert (*KNOWN, "meta") == backend_registry.DEVICE_KINDS


class OldCard(Fake):
    """Stands for the CUDA back-end: it runs on the second GPU only."""

    def __init__(self, threads: int | None = None, device: str = "cpu") -> None:
        self.device = device

    def probe(self) -> Any:
        return Ready() if self.device == "cuda:1" else Missing("the GPU is too old")


def test_each_device_of_torch_goes_to_the_back_end_that_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend_registry.OWN, "cuda", f"{__name__}:OldCard")
    monkeypatch.setattr(backend_registry, "list_torch_devices", lambda: ["cuda:0", "cuda:1", "xpu"])
    assert backend_registry.find_devices() == [("torch", "cuda:0"), ("cuda", "cuda:1"), ("torch", "xpu")]
