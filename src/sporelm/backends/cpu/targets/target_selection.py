"""Selection of the target among the targets that this CPU supports."""

import platform

import llvmlite.binding as llvm

from sporelm import settings
from sporelm.backends.cpu.targets.amx import Amx, amx_targets, request_tiles
from sporelm.backends.cpu.targets.arm import arm_targets
from sporelm.backends.cpu.targets.arm_features import arm_features
from sporelm.backends.cpu.targets.cpu_target import CpuTarget
from sporelm.backends.cpu.targets.x86 import x86_targets
from sporelm.errors import BackendError


def available_targets() -> dict[str, CpuTarget]:
    """Return the targets that this CPU supports, best first; AMX, which must be named explicitly, is last."""
    machine, cpu = platform.machine().lower(), llvm.get_host_cpu_name()
    found: list[CpuTarget]
    if machine in ("x86_64", "amd64"):
        features = dict(llvm.get_host_cpu_features())
        found = [*x86_targets(cpu, features), *amx_targets(cpu, features)]
    elif machine in ("arm64", "aarch64"):
        found = arm_targets(cpu, arm_features())
    else:
        found = [CpuTarget()]
    return {target.name: target for target in found}


def select_target(name: str | None = None) -> CpuTarget:
    """Return the named target (SPORE_CPU_TARGET when `name` is None), or the best. Raise BackendError with the list."""
    wanted = settings.CPU_TARGET.value if name is None else name
    targets = available_targets()
    if not wanted:
        return next(iter(targets.values()))
    if wanted not in targets:
        raise BackendError(
            f"CPU target: not supported on this CPU (got {wanted!r}; allowed {', '.join(targets)}). Change "
            "SPORE_CPU_TARGET."
        )
    if isinstance(targets[wanted], Amx):
        request_tiles()
    return targets[wanted]
