"""Runs a single kernel on the calling thread, for packing at load, where the loader provides the threads."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm.backends.cpu.jit import Compiler, Kernel

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def run_kernel(compiler: Compiler, kernel: Kernel, fields: Mapping[str, Any], items: int) -> None:
    """Run all items of a kernel whose fields are addresses and integers. Release the interpreter lock meanwhile."""
    words = np.array([fields[name] for name, _ in kernel.fields], np.int64)
    scratch = np.zeros(max(1, kernel.scratch), np.uint8)
    _SIGNATURE(compiler.address(kernel))(words.ctypes.data, 0, items, scratch.ctypes.data)
