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
from math import prod
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from sporelm.backends.context import Context, Resource
from sporelm.backends.device_context import enters_context
from sporelm.backends.fetched import Fetched
from sporelm.backends.layer_states import list_tensors, pool_shapes, state_bytes, wrap_pool
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
from sporelm.ops.paged_attention import page_shape
from sporelm.tensor.dtype import F32, U8, DType, ElementType, dtype_of
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor, strided_view

REPEATS = 8  # measurements of each rate; the best one counts
STREAM_BYTES, MAX_STREAM_BYTES = 1 << 26, 1 << 32  # of the array that is read to measure the memory's bandwidth
MATRIX_SIDE = 768  # of the square product that measures arithmetic
MATRICES = 3  # arrays of a product while one more is allocated
MIN_SECONDS = 5e-4  # a measurement takes at least, if the memory allows: a launch takes about 1e-5
GROWTH = 4  # of the bytes of an array, from one measurement to the next
MEMORY_PART = 8  # of the free memory, that measuring may use


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

    def to_output(self, stored: Any) -> Handle:
        """Return an output of a program as a handle."""
        return stored

    def free_bytes(self) -> int | None:
        return None

    def total_bytes(self) -> int | None:
        return None

    def synchronize(self) -> None:
        return None

    # ---- tensors

    @enters_context
    def tensor(self, array: np.ndarray) -> Tensor:
        self.context.check()
        return Tensor(dtype_of(array), Layout.contiguous(array.shape), self.copy_in(array), self)

    @enters_context
    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        self.context.check()
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor}: cannot be read as an array. Use export_pages or export_states.")
        array = self.copy_out(tensor.storage)
        shown = array if is_whole(tensor) else strided_view(np.ascontiguousarray(array).reshape(-1), tensor.layout)
        return shown.copy()

    def contiguous(self, tensor: Tensor) -> Tensor:
        if is_whole(tensor):
            return tensor
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor} is a view of a packed weight, a cache or rounded rows; pass the whole tensor")
        return self.tensor(self.to_numpy(tensor))

    @enters_context
    def write_slot(self, stacked: Tensor, slot: int, matrix: Tensor | np.ndarray | None) -> None:
        """See `SlotWriter`."""
        self.context.check()
        table = stacked.storage
        table[slot] = 0
        if matrix is not None:
            rows = self.copy_in(matrix) if isinstance(matrix, np.ndarray) else self.contiguous(matrix).storage
            table[slot, : rows.shape[0]] = rows

    def unwrap(self, stored: Any) -> Any:
        """Return a tensor's storage as the functions take it. Raise ContextError for freed pages."""
        return stored.values if isinstance(stored, LayerCache) else stored

    # ---- pages, in canonical form

    @enters_context
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

    @enters_context
    def free_pages(self, caches: Sequence[Tensor]) -> None:
        for cache in caches:
            cache.storage.memory.free()

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        element_bytes = dtype.nbytes if isinstance(dtype, DType) else 1
        return prod(canonical_shape(page_shape(kept), dtype)) * element_bytes

    @enters_context
    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return self.copy_out(cache.storage.canonical[list(pages)])

    @enters_context
    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        cache.storage.canonical[list(pages)] = self.copy_in(canonical)

    @enters_context
    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetch:
        return Fetched(self.export_pages(cache, pages))

    @enters_context
    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        for pages in [cache.storage.canonical for cache in caches]:
            for source, target in copies:
                pages[target] = pages[source]

    # ---- inputs and outputs of programs

    @enters_context
    def upload(self, array: np.ndarray) -> Handle:
        return self.copy_in(array)

    @enters_context
    def fetch(self, handle: Handle) -> np.ndarray:
        return handle if isinstance(handle, np.ndarray) else self.copy_out(handle)

    @enters_context
    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        return self.fetch(handle[list(rows)])

    @enters_context
    def start_fetch(self, handle: Handle) -> Fetch:
        return Fetched(self.fetch(handle))

    # ---- recurrent states

    @enters_context
    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        shapes = pool_shapes(count, layers)
        memory = CacheAllocation(self.context, [self.allocate(shape, F32) for shape in shapes], "states")
        return wrap_pool(self, count, layers, partial(LayerCache, memory))

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        self.free_pages(list_tensors(caches))

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        return state_bytes(layers)

    @enters_context
    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        for held in [tensor.storage.values for tensor in list_tensors(caches)]:
            for source, target in copies:
                held[target] = held[source]

    @enters_context
    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        return [self.copy_out(tensor.storage.values[list(states)]) for tensor in list_tensors(caches)]

    @enters_context
    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        for tensor, array in zip(list_tensors(caches), arrays, strict=True):
            tensor.storage.values[list(states)] = self.copy_in(array)

    # ---- running

    def find_function(self, op: Op) -> Callable[..., Any] | None:
        """Return the function that computes an op, or None if the reference does."""
        return self.functions.get(op.name)

    def missing_kernels(self) -> list[str]:
        return sorted(name for name, op in ALL.items() if self.find_function(op) is None)

    def kernel(self, call: Call, bucket: str) -> Callable[..., Any] | None:
        # Ranks may meet on the host: such calls must not be part of a captured graph.
        meets_on_host = not getattr(call.options.get("group"), "is_on_device", True)
        return None if meets_on_host else self.find_function(call.op)

    def compile(self, graph: Graph) -> Program | None:
        return None

    @enters_context
    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        return FunctionProgram(graph, self)

    @enters_context
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

    @enters_context
    def measure_limits(self) -> Mapping[str, float]:
        """Measure the library's rates: reading memory, and a product, which also stands for integers.

        Arrays have the type of activations of a product. They grow until the device works for MIN_SECONDS, so that the
        time is not that of a launch, or until they take MEMORY_PART of its free memory.
        """
        max_bytes = self._max_measured_bytes()
        dtype = self.number_types(ALL["linear"]).activation
        with self.on_device():
            reads = self._read_rates(max_bytes)
            side = MATRIX_SIDE
            products = self._times(self._product(side, dtype))
            while min(products) < MIN_SECONDS and MATRICES * (2 * side) ** 2 * dtype.nbytes <= max_bytes:
                side *= 2
                products = self._times(self._product(side, dtype))
        flops = 2 * side**3 / min(products)
        return {
            "stream_bytes_s": max(reads),
            "stream_median_bytes_s": median(reads),
            "int8_dot_ops_s": flops,
            "f32_ops_s": flops,
        }

    @enters_context
    def measure_stream(self) -> float:
        with self.on_device():
            return median(self._read_rates(self._max_measured_bytes()))

    def _max_measured_bytes(self) -> int:
        """Return the largest size of arrays used in a measurement."""
        free = self.free_bytes()
        return MAX_STREAM_BYTES if free is None else min(MAX_STREAM_BYTES, free // MEMORY_PART)

    def _read_rates(self, max_bytes: int) -> list[float]:
        """Return the read bandwidth in bytes per second of several reads of an array of at most `max_bytes`."""
        count = STREAM_BYTES // F32.nbytes
        reads = self._times(self._filled((count,), F32).sum)
        while min(reads) < MIN_SECONDS and (larger := GROWTH * count) * F32.nbytes <= max_bytes:
            count = larger
            reads = self._times(self._filled((count,), F32).sum)
        return [count * F32.nbytes / seconds for seconds in reads]

    def _filled(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return an array of ones, made on the device. Untouched memory would be read faster."""
        return self.allocate(shape, dtype) + 1

    def _product(self, side: int, dtype: DType) -> Callable[[], Any]:
        square = self._filled((side, side), dtype)
        return lambda: square @ square

    def _times(self, work: Callable[[], Any]) -> list[float]:
        """Return the seconds of several repetitions, after a first one that is not counted."""
        taken = []
        for _ in range(1 + REPEATS):
            self.synchronize()
            began = perf_counter()
            work()
            self.synchronize()
            taken.append(perf_counter() - began)
        return taken[1:]

    @enters_context
    def close(self) -> None:
        """End the context. Programs and caches that are still referenced are freed, and reported as leaks."""
        if leaks := self.context.close():
            warnings.warn(f"back-end {self.name} was closed before {'; '.join(leaks)}", ResourceWarning, stacklevel=2)


class FunctionProgram(Resource):
    """A graph replayed call by call. A value is dropped after its last use."""

    def __init__(self, graph: Graph, backend: FunctionBackend) -> None:
        self.backend = backend
        self._slots: dict[tuple[int, bool], int] = {}  # of values, by their id and whether the host reads them
        self._constants: list[Any] = [None]  # of each slot, as the functions take it; slot 0 is an absent argument
        self._caches: list[tuple[int, Any]] = []  # slots of constants that must be checked before each run
        self._graph = graph  # the slots name its values by their ids
        self._inputs = {
            name: (self._slot(value, False), self._slot(value, True)) for name, value in graph.inputs.items()
        }
        calls = [self._prepare(call) for call in graph.calls]
        self._outputs = {name: self._slot(value, False) for name, value in graph.outputs.items()}
        used = {slot for call in calls for slot in _slots_in(call.arguments)} | set(self._outputs.values())
        self._inputs = {
            name: (device if device in used else 0, host if host in used else 0)
            for name, (device, host) in self._inputs.items()
        }
        kept = {*self._outputs.values(), *self._constant_slots}
        for call in reversed(calls):
            mentioned = {*_slots_in(call.arguments), *call.results}
            call.ending = tuple(mentioned - kept)
            kept |= mentioned
        self._calls = calls
        super().__init__(backend.context, f"program of {len(graph.calls)} calls")

    @property
    def _constant_slots(self) -> set[int]:
        values = {slot for slot, constant in enumerate(self._constants) if constant is not None}
        return {0, *values, *(slot for slot, _ in self._caches)}

    def _slot(self, value: Any, on_host: bool) -> int:
        """Return the slot of a value of the graph, or of a constant."""
        key = (id(value), on_host)
        if key not in self._slots:
            slot = self._slots[key] = len(self._constants)
            self._constants.append(None)
            if isinstance(value, Value):
                return slot
            if on_host:
                self._constants[slot] = self.backend.to_numpy(value)
            elif isinstance(value.storage, LayerCache):
                self._caches.append((slot, value.storage))
            else:
                self._constants[slot] = self.backend.unwrap(value.storage)
        return self._slots[key]

    def _prepare(self, call: Call) -> "_PreparedCall":
        def slots(arg: Any, on_host: bool) -> Any:
            if isinstance(arg, tuple):
                return tuple(slots(each, on_host) for each in arg)
            return 0 if arg is None else self._slot(arg, on_host)

        return _PreparedCall(
            call,
            self.backend.find_function(call.op),
            tuple(slots(arg, index in call.op.host) for index, arg in enumerate(call.args)),
            tuple(self._slot(value, False) for value in call.results),
        )

    def check_caches(self) -> None:
        """Raise ContextError if a cache that the program reads or writes was freed."""
        for _, cache in self._caches:
            self.backend.unwrap(cache)

    @enters_context
    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """See `Program.run`. An argument that ops read on the host may be given as a handle: the step is padded then
        (ADR 0045), and the functions get it on the device."""
        self.check()
        with self.backend.on_device():
            return {name: self.backend.to_output(stored) for name, stored in self.run_calls(arrays).items()}

    def run_calls(self, arrays: Mapping[str, Handle]) -> dict[str, Any]:
        """Run all calls, inside a block of `on_device`. Return the outputs as the functions returned them."""
        backend = self.backend
        values = self._constants.copy()
        for slot, cache in self._caches:
            values[slot] = backend.unwrap(cache)
        for name, (device, host) in self._inputs.items():
            array = arrays[name]
            if device:
                values[device] = backend.copy_in(array) if isinstance(array, np.ndarray) else array
            if host:
                values[host] = array
        for call in self._calls:
            function, options = call.function, call.call.options
            args: Sequence[Any]
            if call.is_nested:
                args = _values_in(values, call.arguments)
            else:
                args = [values[slot] for slot in call.arguments]
            if backend.times is None:
                results = function(*args, **options)
                results = results if type(results) is tuple else (results,)  # a named tuple is one result
            else:
                results = backend.timed(call.call, partial(call_with, function, args, options))
            for slot, result in zip(call.results, results, strict=True):
                values[slot] = result
            for slot in call.ending:
                values[slot] = None
        return {name: values[slot] for name, slot in self._outputs.items()}

    @enters_context
    def free(self) -> None:
        super().free()

    def release(self) -> None:
        self._graph, self._calls = Graph(), []  # they hold the constants
        self._constants.clear()
        self._caches.clear()


class _PreparedCall:
    """A call of a program: its arguments and results as slots."""

    __slots__ = ("arguments", "call", "ending", "function", "is_nested", "results")

    def __init__(
        self, call: Call, function: Callable[..., Any] | None, arguments: tuple[Any, ...], results: tuple[int, ...]
    ) -> None:
        self.call, self.arguments, self.results = call, arguments, results
        self.function: Any = function
        self.is_nested = any(isinstance(arg, tuple) for arg in arguments)
        self.ending: tuple[int, ...] = ()  # slots whose values are dropped after it


def _slots_in(arguments: tuple[Any, ...]) -> Iterator[int]:
    for arg in arguments:
        if isinstance(arg, tuple):
            yield from _slots_in(arg)
        else:
            yield arg


def _values_in(values: Sequence[Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_values_in(values, arg) if isinstance(arg, tuple) else values[arg] for arg in arguments)


def call_with(function: Any, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the results of a function, always as a tuple."""
    results = function(*args, **options)
    return results if type(results) is tuple else (results,)  # a named tuple is one result


def call_function(
    function: Any, op: Op, args: Sequence[Any], options: Mapping[str, Any], value: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return the results of an op's function on `value(argument, on_host=...)`, always as a tuple."""
    given: list[Any] = []
    for index, arg in enumerate(args):
        given += map_values((arg,), partial(value, on_host=index in op.host))
    return call_with(function, given, options)


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor shows all of its storage in order."""
    return tensor.layout == Layout.contiguous(tuple(tensor.storage.shape))
