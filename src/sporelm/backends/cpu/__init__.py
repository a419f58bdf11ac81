"""The CPU back-end: kernels traced to LLVM, generic over number formats and CPUs, and run by a thread pool."""

from sporelm.backends.cpu.cpu_backend import CpuBackend

__all__ = ["CpuBackend"]
