"""A conformance case, and the random values of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from zlib import crc32

import numpy as np

from sporelm.evals.conformance.random_weights import FORMS, blocks_of
from sporelm.quant import FORMATS, QuantFormat
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32, DType

Arrays = list[np.ndarray]
RunOp = Callable[["On"], Any]

FORMAT_NAMES = tuple(each.name for each in sorted(FORMS, key=lambda each: each.ggml_id))
# What does not depend on the format is tried on few of them, where for each it would be one more kernel.
FEW_FORMATS = ("F32", "Q4_1", "Q6_K")
# One of each kind of panels: products of several weights are tried with these on lesser targets.
EACH_KIND = ("F32", "F16", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "Q3_K")


def width_of(format_name: str, blocks: int) -> int:
    """Return the columns of this number of blocks, or of runs of 32 numbers for a format without blocks."""
    return blocks * (FORMATS[format_name].values if FORMATS[format_name].values > 1 else 32)


class On:
    """A back-end as a case sees it: random values that are the same on every back-end, packed weights, results.

    `inputs` is the type to which float inputs are rounded: the back-end's activation type.
    """

    def __init__(self, backend: Any, name: str, inputs: DType = F32) -> None:
        self.backend, self.inputs = backend, inputs
        self.random = np.random.default_rng(crc32(name.encode()))

    def values(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Normal random float32."""
        return self.random.standard_normal(shape, np.float32) * np.float32(scale)

    def tensor(self, array: Any) -> Any:
        values = np.asarray(array)
        if self.inputs is not F32 and values.dtype == np.float32:
            values = self.inputs.to_f32(self.inputs.from_f32(values))
        return self.backend.tensor(values)

    def ints(self, values: Any) -> Any:
        return self.backend.tensor(np.ascontiguousarray(values, np.int32))

    def rows(self, *shape: int, scale: float = 1.0) -> Any:
        """A tensor of normal random values."""
        return self.tensor(self.values(*shape, scale=scale))

    def weight(self, format_name: str, out: int, width: int, change: Callable[[np.ndarray], None] | None = None) -> Any:
        """A packed random matrix of a number format; `change` may alter the values before they are rounded."""
        matrix = self.values(out, width)
        if change:
            change(matrix)
        return self.pack(FORMATS[format_name], matrix.shape, _blocks(format_name, matrix.shape, matrix.tobytes()))

    def experts(self, format_name: str, experts: int, out: int, width: int) -> Any:
        """Packed random matrices of experts."""
        values = self.values(experts * out, width)
        blocks = _blocks(format_name, values.shape, values.tobytes())
        return self.pack(FORMATS[format_name], (experts, out, width), blocks)

    @staticmethod
    def activation(format_name: str) -> str:
        """Return the number format of the activations that a format's weights multiply."""
        return FORMATS[format_name].activation

    def pack(self, number_format: type[QuantFormat], shape: tuple[int, ...], blocks: np.ndarray) -> Any:
        return self.backend.pack(StoredTensor("weight", number_format, shape, np.ascontiguousarray(blocks)))


@lru_cache(maxsize=512)
def _blocks(format_name: str, shape: tuple[int, ...], values: bytes) -> np.ndarray:
    """The blocks of a float32 matrix; the same ones are asked for on every back-end."""
    return blocks_of(FORMATS[format_name], np.frombuffer(values, np.float32).reshape(shape))


@dataclass(frozen=True)
class Case:
    """One op on one set of values. Only --all runs `rare` cases, and on lesser targets cases that are not `common`."""

    op: str
    name: str
    run_op: RunOp
    exact: bool = False
    common: bool = True
    rare: bool = False

    def run(self, backend: Any, inputs: DType = F32) -> Arrays:
        """The results as arrays."""
        results = self.run_op(On(backend, f"{self.op} {self.name}", inputs))
        results = results if isinstance(results, tuple) else (results,)
        return [result if isinstance(result, np.ndarray) else result.numpy() for result in results]

    def __str__(self) -> str:
        return f"{self.op} {self.name}"


def case(op: str, name: str, run_op: Callable[..., Any], *args: Any, **marks: bool) -> Case:
    """A case whose function takes an `On` and these arguments."""
    return Case(op, name, partial(_call, run_op, args), **marks)


def _call(run_op: Callable[..., Any], args: tuple[Any, ...], on: On) -> Any:
    return run_op(on, *args)
