"""Which targets a CPU has, by the features that LLVM and the system tell, and which of them is taken."""

from importlib import import_module
from typing import Any

import pytest

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.targets.amx import amx_targets, request_tiles
from sporelm.backends.cpu.targets.arm import arm_targets
from sporelm.backends.cpu.targets.arm_features import arm_features
from sporelm.backends.cpu.targets.x86 import AVX2, AVX512, x86_targets
from sporelm.errors import BackendError

choosing = import_module("sporelm.backends.cpu.targets.target_selection")  # the package's name for it is its function

HASWELL = dict.fromkeys(AVX2, True)
ICE_LAKE = HASWELL | dict.fromkeys(AVX512, True)
SAPPHIRE_RAPIDS = ICE_LAKE | {"avxvnni": True, "amx-tile": True, "amx-int8": True}


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({}, ["generic"]),
        (HASWELL | {"fma": False}, ["generic"]),
        (HASWELL, ["avx2", "generic"]),
        (HASWELL | {"avxvnni": True}, ["avx-vnni", "avx2", "generic"]),
        (ICE_LAKE, ["avx512-vnni", "avx-vnni", "avx2", "generic"]),
        (ICE_LAKE | {"avx512vnni": False}, ["avx2", "generic"]),
    ],
)
def test_x86(features: dict[str, bool], expected: list[str]) -> None:
    assert [target.name for target in x86_targets("some-cpu", features)] == expected


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({}, ["neon", "generic"]),
        ({"dotprod": True}, ["neon-dotprod", "neon", "generic"]),
        ({"dotprod": True, "i8mm": True}, ["neon-i8mm", "neon-dotprod", "neon", "generic"]),
        ({"dotprod": False, "i8mm": True}, ["neon", "generic"]),
    ],
)
def test_arm(features: dict[str, bool], expected: list[str]) -> None:
    assert [target.name for target in arm_targets("apple-m2", features)] == expected


def test_amx_is_of_linux_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert [target.name for target in amx_targets("sapphirerapids", SAPPHIRE_RAPIDS)] == ["amx"]
    assert amx_targets("sapphirerapids", SAPPHIRE_RAPIDS | {"amx-int8": False}) == []
    monkeypatch.setattr("sys.platform", "win32")
    assert amx_targets("sapphirerapids", SAPPHIRE_RAPIDS) == []


def on(monkeypatch: pytest.MonkeyPatch, machine: str, features: dict[str, bool]) -> None:
    """Pretend to be on another machine; on Arm `features` are what the system tells."""
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(choosing, "arm_features", lambda: features)
    monkeypatch.setattr(choosing.llvm, "get_host_cpu_features", lambda: features)


def test_amx_is_never_taken_by_itself_and_asks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    on(monkeypatch, "x86_64", SAPPHIRE_RAPIDS)
    monkeypatch.setattr(choosing, "request_tiles", lambda: asked.append("tiles"))
    assert list(targets.available_targets()) == ["avx512-vnni", "avx-vnni", "avx2", "generic", "amx"]
    assert targets.select_target("").name == "avx512-vnni"
    assert not asked
    assert targets.select_target("amx").name == "amx"
    assert asked == ["tiles"]


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "ARM64"])
def test_arm_machines_take_the_best_they_have(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    on(monkeypatch, machine, {"dotprod": True})
    assert targets.select_target("").name == "neon-dotprod"
    assert targets.select_target("neon").name == "neon"
    with pytest.raises(BackendError, match=r"'neon-i8mm'.*neon-dotprod, neon, generic"):
        targets.select_target("neon-i8mm")


def test_other_machines_have_the_portable_target(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "riscv64", {})
    assert list(targets.available_targets()) == ["generic"]


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_systems_that_do_not_tell_have_nothing(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    class Silent:
        def __init__(self, name: Any = None) -> None:
            raise OSError("no such library")

    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("ctypes.CDLL", Silent)
    assert arm_features() == {}


@pytest.mark.parametrize("name", ["neon-i8mm", "amx", "sse9"])
def test_a_target_the_cpu_lacks_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    on(monkeypatch, "x86_64", HASWELL)
    with pytest.raises(BackendError) as found:
        targets.select_target(name)
    assert str(found.value) == (
        f"CPU target: not supported on this CPU (got {name!r}; allowed avx2, generic). Change SPORE_CPU_TARGET."
    )


def test_a_system_that_refuses_tiles_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, name: Any = None) -> None:
            self.syscall = lambda *args: -1

    on(monkeypatch, "x86_64", SAPPHIRE_RAPIDS)
    monkeypatch.setattr("ctypes.CDLL", Refusing)
    request_tiles.cache_clear()  # an earlier test may have had the real system's permission
    with pytest.raises(BackendError, match="does not permit AMX tiles"):
        targets.select_target("amx")
