"""Which targets this CPU can run, and which of them is taken."""

import platform

import llvmlite.binding as llvm

from sporelm import settings
from sporelm.backends.cpu.targets.amx import Amx, amx_targets, ask_for_tiles
from sporelm.backends.cpu.targets.arm import arm_targets
from sporelm.backends.cpu.targets.arm_features import arm_features
from sporelm.backends.cpu.targets.target import Target
from sporelm.backends.cpu.targets.x86 import x86_targets
from sporelm.errors import BackendError


def available() -> dict[str, Target]:
    """The targets that this CPU can run, best first; last AMX, which must be asked for by name."""
    machine, cpu = platform.machine().lower(), llvm.get_host_cpu_name()
    found: list[Target]
    if machine in ("x86_64", "amd64"):
        features = dict(llvm.get_host_cpu_features())
        found = [*x86_targets(cpu, features), *amx_targets(cpu, features)]
    elif machine in ("arm64", "aarch64"):
        found = arm_targets(cpu, arm_features())
    else:
        found = [Target()]
    return {target.name: target for target in found}


def choose(name: str | None = None) -> Target:
    """The named target (SPORE_CPU_TARGET when `name` is None), or the best. Raises BackendError with the list."""
    wanted = settings.CPU_TARGET.value if name is None else name
    targets = available()
    if not wanted:
        return next(iter(targets.values()))
    if wanted not in targets:
        raise BackendError(f"no CPU target {wanted!r} on this CPU; there are {', '.join(targets)} (SPORE_CPU_TARGET)")
    if isinstance(targets[wanted], Amx):
        ask_for_tiles()
    return targets[wanted]
