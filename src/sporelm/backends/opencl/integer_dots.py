"""Integer dot products: the instructions that a device has, and the formats that use them.

"packed" are the functions of cl_khr_integer_dot_product; "emulated" the same in plain C, for tests. "x86" are the
instructions of x86 CPUs, which drivers made of Clang offer as built-in functions. Each is a file of `kernels/dots`. A
device uses one only if a small product comes out right; otherwise rows that are rounded to int8 are multiplied as the
floats that they stand for.
"""

from typing import Any

import numpy as np

from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.kernel_program import ProgramCompiler, kernel_program, run_probe

DOT_EXTENSION = "cl_khr_integer_dot_product"
DOT_FORMATS = frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})  # with a file in `kernels/dots`
MAX_RUNS = 4  # that are multiplied at once


KINDS = {"packed": ("packed",), "emulated": ("emulated", "packed"), "x86": ("x86",)}  # the files of each


def list_dot_snippets(kind: str) -> list[str]:
    """Return the files of `kernels` with the functions of a kind of products."""
    return [f"dots/{name}.h" for name in KINDS[kind]]


def choose_dot_kind(device: OpenClDevice, compiler: ProgramCompiler, queue: Any) -> str | None:
    """Return the kind of products of integers that a device computes right, or None."""
    if DOT_EXTENSION in device.device.extensions.split():
        kind = "packed"
    elif device.kind == "cpu":
        kind = "x86"
    else:
        return None
    return kind if passes_self_test(kind, compiler, queue) else None


def passes_self_test(kind: str, compiler: ProgramCompiler, queue: Any) -> bool:
    """Return whether a kind of products compiles and computes a small product."""
    random = np.random.default_rng(0)
    weight = random.integers(0, 256, 16 * MAX_RUNS, np.uint8)
    x = random.integers(-127, 128, 16 * MAX_RUNS, np.int16).astype(np.int8)
    found = np.zeros(3, np.float32)
    program = kernel_program("dot_probe", {"VEC": 4, "LOCAL": 1}, list_dot_snippets(kind))
    if not run_probe(compiler, queue, program, "multiply_probe", (weight, x), found):
        return False
    codes = 16 * int(found[2])
    if not 0 < codes <= len(weight):
        return False
    wide, signed, v = weight[:codes].astype(np.int64), weight.view(np.int8)[:codes].astype(np.int64), x[:codes]
    expected = [((wide & 15) + (wide >> 4) - 16) @ v, (signed + v) @ v]
    return found[:2].tolist() == expected
