"""The kinds of CPU that kernels are compiled for, one file per family: vector width, integer dot product, tiles."""

from sporelm.backends.cpu.targets.cpu_target import CpuTarget
from sporelm.backends.cpu.targets.target_selection import available_targets, select_target

__all__ = ["CpuTarget", "available_targets", "select_target"]
