"""The kinds of CPU that kernels are compiled for, one file per family: vector width, integer dot product, tiles."""

from sporelm.backends.cpu.targets.choose import available, choose
from sporelm.backends.cpu.targets.target import Target

__all__ = ["Target", "available", "choose"]
