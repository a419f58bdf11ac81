"""Small kernels for tests, and ways to run them."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, f32, i8, i16, i32, i64, vec
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.runtime.run_kernel import run_kernel

ELEMENTS = {"float32": f32, "int32": i32, "int16": i16, "int8": i8, "int64": i64}
numbers = itertools.count()


def apply(
    compiler: Compiler, function: Callable[..., Val], *arrays: np.ndarray, out: str, scalar: bool = False
) -> np.ndarray:
    """`function(k, *values)` of arrays of one length, vector by vector (or one by one), as an array of type `out`."""
    lanes = 1 if scalar else compiler.target.lanes
    count = len(arrays[0])
    padded = -(-count // lanes) * lanes
    sources = [np.ascontiguousarray(np.resize(array, padded)) for array in arrays]
    result = np.zeros(padded, out)
    kinds = [ELEMENTS[str(array.dtype)] for array in arrays]

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            values = []
            for number, (kind, source) in enumerate(zip(kinds, sources, strict=True)):
                at = item * (lanes * source.itemsize)
                values.append(k.load(kind if scalar else vec(kind, lanes), getattr(f, f"x{number}"), at))
            k.store(function(k, *values), f.out, item * (lanes * result.itemsize))

    names = " ".join(f"x{number}:p" for number in range(len(arrays)))
    kernel = Kernel(f"test_{next(numbers)}", parse_fields(f"{names} out:p"), body)
    given = {f"x{number}": source.ctypes.data for number, source in enumerate(sources)}
    run_kernel(compiler, kernel, given | {"out": result.ctypes.data}, padded // lanes)
    return result[:count]


def run_body(
    compiler: Compiler, body: Callable[[Builder, Any, Val], None], out: np.ndarray, **integers: int
) -> np.ndarray:
    """Run `body(k, fields, out)` once; `fields` hold the given integers; returns `out`, which it writes."""
    text = " ".join(["out:p", *(f"{name}:i" for name in integers)])

    def whole(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        body(k, f, f.out)

    kernel = Kernel(f"test_{next(numbers)}", parse_fields(text), whole)
    run_kernel(compiler, kernel, {"out": out.ctypes.data, **integers}, 1)
    return out


def run_on(
    compiler: Compiler, body: Callable[[Builder, Any, Val], None], out: np.ndarray, **arrays: np.ndarray
) -> np.ndarray:
    """Run `body(k, fields, out)` once; `fields` hold the addresses of the given arrays; returns `out`."""
    text = " ".join(["out:p", *(f"{name}:p" for name in arrays)])
    kernel = Kernel(f"test_{next(numbers)}", parse_fields(text), lambda k, f, first, last, scratch: body(k, f, f.out))
    addresses = {name: array.ctypes.data for name, array in arrays.items()}
    run_kernel(compiler, kernel, {"out": out.ctypes.data, **addresses}, 1)
    return out
