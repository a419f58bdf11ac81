"""A back-end made of functions, one for each op, on the arrays of a library similar to numpy.

A subclass gives the functions, copies arrays in and out, and packs weights. Eager runs, replayed graphs, views, pages,
contexts and leaks are handled here.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from sporelm.backends.context import Context, Resource
from sporelm.backends.fetched import Fetched
from sporelm.backends.protocol import (
    HOST_TRAITS,
    Backend,
    CallTime,
    DeviceTraits,
    Fetch,
    Handle,
    MemoryPlanner,
    Program,
    StateShapes,
)
from sporelm.backends.reference_fallback import contiguous_arguments, map_values, run_fallback
from sporelm.errors import BackendError
from sporelm.ops import ALL, Call, Graph, Op, Value
from sporelm.ops.canonical_pages import BlockPages, CarrierPages, canonical_shape
from sporelm.ops.number_types import NumberTypes
from sporelm.ops.op import leaves
from sporelm.ops.paged_attention import page_shape
from sporelm.tensor.dtype import F32, U8, DType, ElementType, dtype_of
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor, strided_view

REPEATS = 8  # measurements of each rate; the best one counts
MATRIX_SIDE = 768  # of the square product that measures float32 arithmetic


class CacheAllocation(Resource):
    """The caches of a pool of pages, or of `kind`, freed together."""

    def __init__(self, context: Context, caches: list[Any], kind: str = "pages") -> None:
        super().__init__(context, f"{caches[0].shape[0]} {kind} of {len(caches)} layers")
        self.caches = caches

    def release(self) -> None:
        self.caches = []


@dataclass(frozen=True)
class LayerCache:
    """The storage of a cache: one layer of a page pool."""

    memory: CacheAllocation
    layer: int
    shape: tuple[int, ...]

    @property
    def values(self) -> Any:
        """Return pages in the cache's shape: an array, BlockPages or CarrierPages. Raise ContextError once it is
        freed."""
        self.memory.check()
        return self.memory.caches[self.layer]

    @property
    def canonical(self) -> Any:
        """Return all pages in canonical form."""
        held = self.values
        if isinstance(held, CarrierPages):
            return held.bits
        return held.blocks if isinstance(held, BlockPages) else held


class FunctionBackend(ABC):
    """A back-end whose ops are `functions`. A tensor's storage is what the subclass's `copy_in` or `pack` returned; it
    has a `shape`.

    A function takes the arguments of the op's numpy reference, in the same order, with the unwrapped storage of each
    tensor; arguments that the op reads on the host come as numpy arrays. It returns its result, or a tuple of several,
    and changes in place what the op changes. An op without a function is a fallback: the reference runs it where
    possible.
    """

    name: str
    rules: tuple[str, ...] = ()
    step_buckets: Mapping[str, int] = {"any": 512}  # functions take arrays of any length: one program serves all steps
    strict = False  # whether an op without a kernel is an error, instead of a fallback to the reference
    traits: DeviceTraits = HOST_TRAITS
    padded_ops: Collection[str] = ()  # whose functions take the arguments of `Op.host` on the device as well
    functions: Mapping[str, Callable[..., Any]]  # by the op's name

    def __init__(self) -> None:
        self.context = Context(self.name)
        self.times: list[CallTime] | None = None  # of calls, if they are recorded

    # ---- to be given by a subclass, or changed

    @abstractmethod
    def copy_in(self, array: np.ndarray) -> Any:
        """Return a copy of an array, as the functions take it."""

    @abstractmethod
    def copy_out(self, stored: Any) -> np.ndarray:
        """Return the result of `copy_in` or of a function as an array."""

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Allocate a zeroed cache, as the functions take it."""

    @abstractmethod
    def is_plain(self, tensor: Tensor) -> bool:
        """Return whether `copy_out` can read it: not a packed weight, a cache or rows rounded to int8."""

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Surround each op and each step, for a device that must be made current, or a number of threads."""
        yield

    def number_types(self, op: Op) -> NumberTypes:
        return NumberTypes()

    def free_bytes(self) -> int | None:
        return None

    def synchronize(self) -> None:
        return None

    # ---- tensors

    def tensor(self, array: np.ndarray) -> Tensor:
        self.context.check()
        return Tensor(dtype_of(array), Layout.contiguous(array.shape), self.copy_in(array), self)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        self.context.check()
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor} has a layout of its own; export it instead of reading it")
        array = self.copy_out(tensor.storage)
        shown = array if is_whole(tensor) else strided_view(np.ascontiguousarray(array).reshape(-1), tensor.layout)
        return shown.copy()

    def contiguous(self, tensor: Tensor) -> Tensor:
        if is_whole(tensor):
            return tensor
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor} is a view of a packed weight, a cache or rounded rows; pass the whole tensor")
        return self.tensor(self.to_numpy(tensor))

    def unwrap(self, stored: Any) -> Any:
        """Return a tensor's storage as the functions take it. Raise ContextError for freed pages."""
        return stored.values if isinstance(stored, LayerCache) else stored

    # ---- pages, in canonical form

    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        shapes = [(count, *page_shape(each)) for each in kept]
        memory = CacheAllocation(self.context, [self.allocate_cache(shape, dtype) for shape in shapes])
        return [
            Tensor(dtype, Layout.contiguous(shape), LayerCache(memory, layer, shape), self)
            for layer, shape in enumerate(shapes)
        ]

    def allocate_cache(self, shape: tuple[int, ...], dtype: ElementType) -> Any:
        """Allocate a zeroed cache of pages of one layer, as the functions take it."""
        if isinstance(dtype, DType):
            return self.allocate(shape, dtype)
        return BlockPages(self.allocate(canonical_shape(shape, dtype), U8), shape)

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        for cache in caches:
            cache.storage.memory.free()

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        element_bytes = dtype.nbytes if isinstance(dtype, DType) else 1
        return prod(canonical_shape(page_shape(kept), dtype)) * element_bytes

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return self.copy_out(cache.storage.canonical[list(pages)])

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        cache.storage.canonical[list(pages)] = self.copy_in(canonical)

    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetch:
        return Fetched(self.export_pages(cache, pages))

    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        for pages in [cache.storage.canonical for cache in caches]:
            for source, target in copies:
                pages[target] = pages[source]

    # ---- inputs and outputs of programs

    def upload(self, array: np.ndarray) -> Handle:
        return self.copy_in(array)

    def fetch(self, handle: Handle) -> np.ndarray:
        return handle if isinstance(handle, np.ndarray) else self.copy_out(handle)

    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        return self.fetch(handle[list(rows)])

    def start_fetch(self, handle: Handle) -> Fetch:
        return Fetched(self.fetch(handle))

    # ---- recurrent states

    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        shapes = [(count, *shape) for layer in layers for shape in layer]
        memory = CacheAllocation(self.context, [self.allocate(shape, F32) for shape in shapes], "states")
        tensors = [
            Tensor(F32, Layout.contiguous(shape), LayerCache(memory, number, shape), self)
            for number, shape in enumerate(shapes)
        ]
        return group_by_layer(tensors, layers)

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        self.free_pages([tensor for cache in caches for tensor in cache])

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        return sum(prod(shape) * 4 for layer in layers for shape in layer)

    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        for held in [tensor.storage.values for cache in caches for tensor in cache]:
            for source, target in copies:
                held[target] = held[source]

    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        return [self.copy_out(tensor.storage.values[list(states)]) for cache in caches for tensor in cache]

    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        tensors = [tensor for cache in caches for tensor in cache]
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.storage.values[list(states)] = self.copy_in(array)

    # ---- running

    def find_function(self, op: Op) -> Callable[..., Any] | None:
        """Return the function that computes an op, or None if the reference does."""
        return self.functions.get(op.name)

    def missing_kernels(self) -> list[str]:
        return sorted(name for name, op in ALL.items() if self.find_function(op) is None)

    def kernel(self, call: Call, bucket: str) -> Callable[..., Any] | None:
        return self.find_function(call.op)

    def compile(self, graph: Graph) -> Program | None:
        return None

    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        return FunctionProgram(graph, self)

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        self.context.check()
        itself = cast("Backend", self)  # the subclass gives the other verbs
        args = contiguous_arguments(itself, op, args)
        specs = op.check(args, options)
        function = self.find_function(op)
        if function is None:
            return run_fallback(itself, op, args, options)

        def value(tensor: Tensor, on_host: bool) -> Any:
            return self.to_numpy(tensor) if on_host else self.unwrap(tensor.storage)

        with self.on_device():
            results = self.timed(
                Call(op, tuple(args), options, ()), partial(call_function, function, op, args, options, value)
            )
        tensors = tuple(
            Tensor(spec.dtype, Layout.contiguous(spec.bound), result, self)
            for spec, result in zip(specs, results, strict=True)
        )
        return tensors[0] if len(tensors) == 1 else tensors or None

    def time_calls(self) -> Callable[[], list[CallTime]]:
        """Wait for each call from now on, also on devices that work asynchronously."""
        self.times = []
        return self._take_times

    def _take_times(self) -> list[CallTime]:
        taken, self.times = self.times or [], []
        return taken

    def timed(self, call: Call, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the results of a call. Record its time if times are recorded."""
        if self.times is None:
            return work()
        self.synchronize()
        began = perf_counter()
        results = work()
        self.synchronize()
        self.times.append(CallTime(call, "", 0, began, perf_counter() - began))
        return results

    def measure_limits(self) -> Mapping[str, float]:
        """Measure the library's rates: reading 64 MB, and a float32 product, which also stands for integers."""
        block, square = (self.copy_in(np.ones(shape, np.float32)) for shape in (1 << 24, (MATRIX_SIDE, MATRIX_SIDE)))
        with self.on_device():
            reads, products = self._times(block.sum), self._times(lambda: square @ square)
        flops = 2 * MATRIX_SIDE**3 / min(products)
        return {
            "stream_bytes_s": (1 << 26) / min(reads),
            "stream_median_bytes_s": (1 << 26) / median(reads),
            "int8_dot_ops_s": flops,
            "f32_ops_s": flops,
        }

    def _times(self, work: Callable[[], Any]) -> list[float]:
        """Return the seconds of several repetitions."""
        taken = []
        for _ in range(REPEATS):
            self.synchronize()
            began = perf_counter()
            work()
            self.synchronize()
            taken.append(perf_counter() - began)
        return taken

    def close(self) -> None:
        """End the context. Programs and caches that are still referenced are freed, and reported as leaks."""
        if leaks := self.context.close():
            warnings.warn(f"back-end {self.name} was closed before {'; '.join(leaks)}", ResourceWarning, stacklevel=2)


class FunctionProgram(Resource):
    """A graph replayed call by call. A value is dropped after its last use."""

    def __init__(self, graph: Graph, backend: FunctionBackend) -> None:
        self.graph, self.backend = graph, backend
        self._functions = [backend.find_function(call.op) for call in graph.calls]
        outputs = {id(value) for value in graph.outputs.values()}
        host, device = set[int](), set(outputs)  # inputs that only the host reads need not go to the device
        for call in graph.calls:
            for index, arg in enumerate(call.args):
                (host if index in call.op.host else device).update(map(id, leaves((arg,))))
        self._host = {name for name, value in graph.inputs.items() if id(value) in host}
        self._device = {name for name, value in graph.inputs.items() if id(value) in device}
        kept, self._last = set(outputs), list[set[int]]()
        for call in reversed(graph.calls):
            ending = {id(value) for value in (*call.values(), *call.results)} - kept
            self._last.insert(0, ending)
            kept |= ending
        super().__init__(backend.context, f"program of {len(graph.calls)} calls")

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        self.check()
        backend, inputs = self.backend, self.graph.inputs
        with backend.on_device():
            host = {id(inputs[name]): arrays[name] for name in self._host}
            values = {
                id(inputs[name]): backend.copy_in(array) if isinstance(array, np.ndarray) else array
                for name in self._device
                for array in (arrays[name],)
            }

            def value(given: Any, on_host: bool) -> Any:
                if isinstance(given, Value):
                    return (host if on_host else values)[id(given)]
                return backend.to_numpy(given) if on_host else backend.unwrap(given.storage)

            for call, function, ending in zip(self.graph.calls, self._functions, self._last, strict=True):
                work = partial(call_function, function, call.op, call.args, call.options, value)
                results = backend.timed(call, work)
                values.update({id(made): result for made, result in zip(call.results, results, strict=True)})
                for key in ending:
                    values.pop(key, None)
            return {name: values[id(value)] for name, value in self.graph.outputs.items()}

    def release(self) -> None:
        self.graph = Graph()  # it holds the constants


def call_function(
    function: Any, op: Op, args: Sequence[Any], options: Mapping[str, Any], value: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return the results of an op's function on `value(argument, on_host=...)`, always as a tuple."""
    given: list[Any] = []
    for index, arg in enumerate(args):
        given += map_values((arg,), partial(value, on_host=index in op.host))
    results = function(*given, **options)
    return results if type(results) is tuple else (results,)  # a named tuple is one result


def group_by_layer(tensors: Sequence[Tensor], layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
    """Group tensors, one for each shape of each layer, into a tuple per layer."""
    left = iter(tensors)
    return [tuple(islice(left, len(layer))) for layer in layers]


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor shows all of its storage in order."""
    return tensor.layout == Layout.contiguous(tuple(tensor.storage.shape))
