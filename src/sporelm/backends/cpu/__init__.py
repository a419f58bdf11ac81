"""The CPU back-end: a kernel language traced to LLVM, kernels generic over formats and targets, a team of threads."""

from sporelm.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
