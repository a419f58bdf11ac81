"""Runs each op by its numpy meaning. Slow, and the oracle for every other back-end."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from sporelm.backends.backend import Placement, Program, Ready, WeightArray
from sporelm.backends.meaning import by_meaning, contiguous_arguments
from sporelm.errors import BackendError
from sporelm.ops import Call, Graph, Op, Spec
from sporelm.ops.attention import PAGE
from sporelm.ops.graph import Value
from sporelm.ops.linear import QuantizedRows
from sporelm.tensor.dtype import DType, ElementType, dtype_of
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor, seen_through


class ReferenceWeight:
    """A weight with its format's name on it, dequantized once."""

    def __init__(self, weight: WeightArray) -> None:
        self.format = weight.format
        self.array = weight.dequantize()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def dequantize(self) -> np.ndarray:
        return self.array

    def take(self, ids: np.ndarray) -> np.ndarray:
        return self.array[ids]


class ReferenceBackend:
    """Numpy meanings on numpy arrays; tensors hold arrays of their logical shape."""

    name = "reference"
    rules: tuple[str, ...] = ()
    row_by_row: frozenset[str] = frozenset()
    regimes: Mapping[str, int] = {"any": 512}

    def __init__(self, threads: int | None = None) -> None:
        self.threads = 1

    def probe(self) -> Ready:
        return Ready({"numpy": np.__version__})

    def lacks(self) -> list[str]:
        return []

    def tensor(self, array: np.ndarray) -> Tensor:
        return self._wrap(np.array(array))

    def _wrap(self, array: Any) -> Tensor:
        dtype: Any = array.dtype if isinstance(array, QuantizedRows) else dtype_of(array)
        return Tensor(dtype, Layout.contiguous(array.shape), array, self)

    def pack(self, weight: WeightArray) -> Tensor:
        if len(weight.shape) == 1:
            return self._wrap(weight.dequantize())
        return Tensor(weight.format, Layout.contiguous(weight.shape), ReferenceWeight(weight), self)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * 4

    def page_pool(self, count: int, heads: Sequence[tuple[int, int]], dtype: ElementType) -> list[Tensor]:
        assert isinstance(dtype, DType)
        shapes = [(count, 2, kv_heads, PAGE, head_dim) for kv_heads, head_dim in heads]
        return [self._wrap(np.zeros(shape, dtype.numpy)) for shape in shapes]

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        return None  # numpy frees what nobody holds

    def page_bytes(self, kv_heads: int, head_dim: int, dtype: ElementType) -> int:
        return 2 * kv_heads * PAGE * head_dim * dtype.nbytes

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return np.asarray(cache.storage[list(pages)])

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        cache.storage[list(pages)] = canonical

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        args = contiguous_arguments(self, op, args)
        op.check(args, options)
        results = tuple(map(self._wrap, by_meaning(op, args, options, _stored)))
        return results[0] if len(results) == 1 else results or None

    def contiguous(self, tensor: Tensor) -> Tensor:
        stored = tensor.storage
        if tensor.layout == Layout.contiguous(stored.shape):
            return tensor
        if not isinstance(stored, np.ndarray):
            raise BackendError(f"{tensor} is a view of a packed weight or of rounded rows; pass the whole tensor")
        return self._wrap(np.array(seen_through(stored.reshape(-1), tensor.layout)))

    def is_plain(self, tensor: Tensor) -> bool:
        return True  # whatever it holds can be dequantized

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        stored = tensor.storage
        array = stored if isinstance(stored, np.ndarray) else stored.dequantize()
        if tensor.layout == Layout.contiguous(array.shape):
            return array
        return seen_through(array.reshape(-1), tensor.layout)

    def value_bytes(self, spec: Spec) -> int:
        return 0  # numpy allocates

    def kernel(self, call: Call, regime: str) -> Any:
        return call.op.meaning

    def compile(self, graph: Graph) -> Program | None:
        return None

    def program(self, graph: Graph, placement: Placement, regime: str) -> Program:
        return ReferenceProgram(graph)

    def limits(self) -> Mapping[str, float]:
        """What numpy reaches: reading 64 MB, and a float32 product; it has no integer dot product of its own."""
        block = np.ones(16 << 20, np.float32)
        square = np.ones((768, 768), np.float32)
        read, multiply = (min(_seconds(work) for _ in range(5)) for work in (block.sum, lambda: square @ square))
        flops = 2 * 768**3 / multiply
        return {"stream_bytes_s": block.nbytes / read, "int8_dot_ops_s": flops, "f32_ops_s": flops}

    def synchronize(self) -> None:
        return None

    def close(self) -> None:
        return None


class ReferenceProgram:
    """A graph, interpreted call by call."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        values: dict[int, Any] = {id(value): arrays[name] for name, value in self.graph.inputs.items()}

        def read(value: Any) -> Any:
            return values[id(value)] if isinstance(value, Value) else _stored(value)

        for call in self.graph.calls:
            results = by_meaning(call.op, call.args, call.options, read)
            values.update({id(value): array for value, array in zip(call.results, results, strict=True)})
        return {name: values[id(value)] for name, value in self.graph.outputs.items()}

    def free(self) -> None:
        return None


def _stored(tensor: Tensor) -> Any:
    """What the numpy meanings take for a tensor."""
    return tensor.storage


def _seconds(work: Any) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
