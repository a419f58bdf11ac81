"""Arithmetic in half precision: whether a device computes in it, for products of many tokens with `--dtype f16`.

"native" is the arithmetic of cl_khr_fp16; "emulated" computes in float and rounds to half after each operation, for
tests of the results on devices without it. Each is a file of `kernels/halves`. Sums of 16 products are added in half
precision, and these sums in float32. A device uses it only if a small product comes out right.
"""

from typing import Any

import numpy as np

from sporelm.backends.opencl.device_selection import OpenClDevice
from sporelm.backends.opencl.kernel_program import ProgramCompiler, kernel_program, run_probe
from sporelm.ops.number_types import UNIT_ROUNDOFF
from sporelm.tensor.dtype import F16

KINDS = ("native", "emulated")
TERMS = 4  # of the sums of the probe


def get_half_snippet(kind: str) -> str:
    """Return the file of `kernels` with the functions of a kind of arithmetic."""
    return f"halves/{kind}.h"


def find_half_arithmetic(device: OpenClDevice, compiler: ProgramCompiler, queue: Any) -> str | None:
    """Return "native" if the device computes correctly in half precision, else None."""
    return "native" if device.has_fp16 and adds_halves(compiler, queue, "native") else None


def adds_halves(compiler: ProgramCompiler, queue: Any, kind: str) -> bool:
    """Return whether a kind of arithmetic compiles, and computes a known dot product within one rounding per product
    and per addition: some devices round a product before they add it."""
    found = add_probe(compiler, queue, kind)
    if found is None:
        return False
    x, weight = (array.astype(np.float64) for array in probe_inputs())
    allowed = 2 * TERMS * UNIT_ROUNDOFF[F16] * (np.abs(x) @ np.abs(weight))
    with np.errstate(invalid="ignore"):  # sums that are not numbers are wrong
        return bool((np.abs(found - x @ weight) <= allowed).all())


def probe_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of the probe: halves [TERMS] and [TERMS, 16]."""
    random = np.random.default_rng(0)
    return random.standard_normal(TERMS).astype(np.float16), random.standard_normal((TERMS, 16)).astype(np.float16)


def add_probe(compiler: ProgramCompiler, queue: Any, kind: str) -> np.ndarray | None:
    """Return the sums of the probe, or None if it does not compile or run."""
    found = np.empty(16, np.float32)
    program = kernel_program("half_probe", {"VEC": 4, "LOCAL": 1}, [get_half_snippet(kind)])
    return found if run_probe(compiler, queue, program, "add_products", probe_inputs(), found) else None
