"""The CPU back-end: kernels traced from Python, compiled for the CPU at hand, run by a thread pool."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any

import llvmlite
import numpy as np

from sporelm import settings
from sporelm.backends.context import Context
from sporelm.backends.cpu import targets
from sporelm.backends.cpu.cpu_program import CpuProgram
from sporelm.backends.cpu.formats import FORMATS, Panels
from sporelm.backends.cpu.formats.f32 import F32Panels
from sporelm.backends.cpu.formats.hf_formats import HF_FORMATS
from sporelm.backends.cpu.jit import Compiler, Kernel
from sporelm.backends.cpu.kernels.pack_weight import pack_weight
from sporelm.backends.cpu.lowering.op_lowering import find_lowering, op_lowerings, rowwise_ops
from sporelm.backends.cpu.runtime.host_memory import Heap, Region
from sporelm.backends.cpu.runtime.page_export import export_pages, import_pages, page_bytes
from sporelm.backends.cpu.runtime.run_kernel import run_kernel
from sporelm.backends.cpu.runtime.state_pool import (
    allocate_states,
    export_states,
    import_states,
    state_bytes,
)
from sporelm.backends.cpu.runtime.tensor_storage import (
    PackedExperts,
    PackedMatrix,
    PageStore,
    PoolMemory,
    TensorStorage,
    copy_slots,
    is_view,
    page_store,
    value_bytes,
    view_array,
)
from sporelm.backends.cpu.runtime.thread_pool import ThreadPool
from sporelm.backends.cpu.tuning.measured_tiles import tiles_in_use
from sporelm.backends.cpu.tuning.peak_rates import measure_peak_rates, measure_stream
from sporelm.backends.fetched import Fetched
from sporelm.backends.protocol import (
    HOST_TRAITS,
    CallTime,
    MemoryPlanner,
    Placement,
    Program,
    Ready,
    StateShapes,
    WeightArray,
)
from sporelm.backends.reference_fallback import contiguous_arguments, run_fallback
from sporelm.backends.stacked_experts import list_matrices
from sporelm.errors import BackendError
from sporelm.ops import ALL, Call, Graph, Op, Spec, Value, quantize_rows
from sporelm.ops.linear_heads import linear_heads
from sporelm.ops.number_types import NumberTypes
from sporelm.ops.op import leaves
from sporelm.ops.paged_attention import page_shape
from sporelm.ops.quantize_rows import ROW_FORMATS, RowFormat
from sporelm.ops.spec import spec_of
from sporelm.tensor.dtype import DType, ElementType, dtype_of
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor, strided_view

FEW_TOKENS = 16  # max tokens of decoding steps; tiles.py holds the measured limits of each product


class CpuBackend:
    """Tensors in this process's memory. `threads` counts the threads, including the caller's.

    shares_arena   programs share one arena: a program's outputs are valid until another program runs
    """

    name = "cpu"
    rules: tuple[str, ...] = (
        *("add_rms_norm", "add_layer_norm", "linear_group", "linear_silu_mul", "linear_activate_mul"),
        *("linear_experts_silu_mul", "rope_store", "quantize_rows"),
    )
    step_buckets: Mapping[str, int] = {"one": 1, "few": FEW_TOKENS, "many": 512}
    strict = False  # whether an op without a kernel is an error, instead of a fallback to the reference
    traits = HOST_TRAITS
    padded_ops: Collection[str] = ()

    def __init__(self, threads: int | None = None, target: str | None = None, *, shares_arena: bool = False) -> None:
        self.context = Context(self.name)
        chosen = targets.select_target(target)
        self._tiles = tiles_in_use(chosen)
        self.target = replace(chosen, tiles=self._tiles.tiles)
        self.compiler = Compiler(self.target)
        self.thread_pool = ThreadPool(self.compiler, threads or settings.THREADS.integer or 1)
        self._heap = Heap()
        self._shares_arena = shares_arena
        self._arena: Region | None = None  # the largest one that programs share
        kinds = (FORMATS | HF_FORMATS).items()
        self._kinds: dict[str, Panels] = {name: kind(self.target) for name, kind in kinds}

    def start_threads(self) -> None:
        """Start the threads that compute, on the cores of the calling thread. Does nothing if they run."""
        self.thread_pool.start()

    def probe(self) -> Ready:
        cache = self.compiler.cache
        return Ready(
            {
                "target": self.target.name,
                "targets": ", ".join(targets.available_targets()),
                "cpu": self.target.cpu,
                "tiles": self._tiles.source,
                "threads": str(self.thread_pool.threads),
                "llvmlite": llvmlite.__version__,
                "kernel cache": cache.refusal or str(cache.folder),
            }
        )

    def missing_kernels(self) -> list[str]:
        return sorted(ALL.keys() - op_lowerings().keys())

    def number_types(self, op: Op) -> NumberTypes:
        return NumberTypes()

    # ---- tensors

    def tensor(self, array: np.ndarray) -> Tensor:
        self.context.check()
        dtype = dtype_of(array)
        spec = Spec(array.shape, dtype)
        stored = TensorStorage(self._heap.take(value_bytes(spec)), array.shape)
        self._values(stored, dtype)[...] = array
        return Tensor(dtype, Layout.contiguous(array.shape), stored, self)

    def _values(self, stored: TensorStorage, dtype: DType) -> np.ndarray:
        return view_array(stored.array, stored.shape, dtype)

    def is_plain(self, tensor: Tensor) -> bool:
        return type(tensor.storage) is TensorStorage and isinstance(tensor.dtype, DType)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        self.context.check()
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor}: cannot be read as an array. Use export_pages or export_states.")
        assert isinstance(tensor.dtype, DType)
        values = self._values(tensor.storage, tensor.dtype)
        if not is_view(tensor):
            return values[: tensor.shape[0]].copy()
        return strided_view(np.ascontiguousarray(values).reshape(-1), tensor.layout).copy()

    def contiguous(self, tensor: Tensor) -> Tensor:
        if not is_view(tensor):
            return tensor
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor} is a view of a packed weight, a cache or rounded rows; pass the whole tensor")
        return self.tensor(self.to_numpy(tensor))

    def kind_of(self, format: Any) -> Panels:
        """Return the panels of weights of a format. A format without panels is widened to F32."""
        return self._kinds.get(format.name, self._kinds[F32Panels.name])

    def pack(self, weight: WeightArray) -> Tensor:
        self.context.check()
        if len(weight.shape) == 1:
            return self.tensor(np.ascontiguousarray(weight.dequantize(), np.float32))
        kind, shape = self.kind_of(weight.format), tuple(weight.shape)
        out = self._heap.take(self.packed_bytes(weight.format, shape))
        parts = list_matrices(weight)
        for part, place in zip(parts, np.split(out, len(parts)), strict=True):
            self._pack_matrix(part, kind, place)
        storage = (PackedMatrix if len(shape) == 2 else PackedExperts)(out, shape, kind)
        return Tensor(weight.format, Layout.contiguous(shape), storage, self)

    def _pack_matrix(self, weight: WeightArray, kind: Panels, out: np.ndarray) -> None:
        rows, width = weight.shape
        blocks = weight.blocks if kind.name == weight.format.name else weight.dequantize()
        source = np.ascontiguousarray(blocks).view(np.uint8).reshape(rows, -1)
        fields = {"source": source.ctypes.data, "row_bytes": source.shape[1], "rows": rows, "width": width}
        fields |= {"groups": kind.groups(width), "out": out.ctypes.data, "panel_bytes": kind.panel_bytes(width)}
        run_kernel(self.compiler, pack_weight(self.target, kind), fields, kind.panels(rows))

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return shape[0] * 4
        return prod(shape[:-2]) * self.kind_of(format).packed_bytes(*shape[-2:])

    # ---- pages

    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        sizes = [self.page_bytes(each, dtype) for each in kept]
        stride = sum(sizes)
        memory = PoolMemory(self.context, count * stride, f"{count} pages of {len(kept)} layers")
        caches = []
        for number, each in enumerate(kept):
            shape = (count, *page_shape(each))
            store = PageStore(memory.array[sum(sizes[:number]) :], shape, stride, memory)
            caches.append(Tensor(dtype, Layout.contiguous(shape), store, self))
        return caches

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        for cache in caches:
            cache.storage.memory.free()

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        return page_bytes(page_shape(kept), dtype)

    def free_bytes(self) -> None:
        return None  # the host's memory

    def total_bytes(self) -> None:
        return None

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return export_pages(cache, list(pages))

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        import_pages(cache, list(pages), canonical)

    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetched:
        return Fetched(export_pages(cache, list(pages)))

    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        if caches:
            copy_slots(page_store(caches[0]), copies)

    # ---- inputs and outputs of programs

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array

    def fetch(self, handle: np.ndarray) -> np.ndarray:
        return handle

    def fetch_rows(self, handle: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        return handle[list(rows)]

    def start_fetch(self, handle: np.ndarray) -> Fetched:
        return Fetched(handle.copy())

    # ---- recurrent states

    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        return allocate_states(self, count, layers)

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        self.free_pages([tensor for cache in caches for tensor in cache])

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        return state_bytes(layers)

    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        copy_slots(page_store(next(tensor for cache in caches for tensor in cache)), copies)

    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        return export_states(caches, states)

    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        import_states(caches, states, arrays)

    # ---- running

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op as a program of its own: the same kernels, at fixed extents."""
        self.context.check()
        args = contiguous_arguments(self, op, args)
        specs = op.check(args, options)
        graph = Graph()
        results = tuple(Value(graph, spec, str(number)) for number, spec in enumerate(specs))
        call = Call(op, tuple(self._rounded(op, args)), dict(options), results)
        if self.kernel(call, "many") is None:
            return run_fallback(self, op, args, options)
        tensors = [self._fresh(spec) for spec in specs]
        graph.calls.append(call)
        by_value = {id(value): tensor for value, tensor in zip(results, tensors, strict=True)}
        EagerProgram(graph, by_value, self).run({}, {})
        return tensors[0] if len(tensors) == 1 else tuple(tensors) or None

    def _fresh(self, spec: Spec) -> Tensor:
        memory = np.zeros(value_bytes(spec) + 64, np.uint8)
        start = -memory.ctypes.data % 64
        storage = TensorStorage(memory[start : start + value_bytes(spec)], spec.bound)
        return Tensor(spec.dtype, Layout.contiguous(spec.bound), storage, self)

    def _rounded(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        """Round x for weights that multiply int8, as the rule quantize_rows does in a plan; `linear_heads` rounds by
        itself."""
        if not op.name.startswith("linear") or op is linear_heads or isinstance(spec_of(args[0]).dtype, RowFormat):
            return args
        kinds = {getattr(value.dtype, "activation", "float") for value in leaves(args[1:])} & ROW_FORMATS.keys()
        return (quantize_rows(args[0], activation=kinds.pop()), *args[1:]) if kinds else args

    def kernel(self, call: Call, bucket: str) -> Any | None:
        return find_lowering(call)

    def compile(self, graph: Graph) -> Program | None:
        return None

    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> CpuProgram:
        placement = plan_memory(value_bytes, rowwise_ops())
        arena = self._shared_arena(placement.nbytes) if self._shares_arena else None
        program = CpuProgram(graph, placement, self.compiler, self.thread_pool, self.context, arena)
        self.compiler.release_llvm_memory()
        return program

    def sharing_arena(self) -> "CpuBackend":
        """Return the same back-end whose programs keep their values in one memory, see `ArenaSharer`."""
        shared = copy(self)
        shared._shares_arena, shared._arena = True, None
        return shared

    def _shared_arena(self, nbytes: int) -> Region:
        """Return memory for the values of a program: that of an earlier program if it is large enough."""
        if self._arena is None or self._arena.array.size < nbytes:
            self._arena = Region(nbytes)
        return self._arena

    def assembly(self, kernel: Kernel) -> str:
        """Return the assembly text of a kernel, for inspection."""
        return self.compiler.assembly(kernel)

    def measure_limits(self) -> Mapping[str, float]:
        return measure_peak_rates(self.compiler, self.thread_pool)

    def measure_stream(self) -> float:
        return measure_stream(self.compiler, self.thread_pool)

    def time_calls(self) -> Callable[[], list[CallTime]]:
        self.thread_pool.time_steps()
        return self.thread_pool.take_times

    def synchronize(self) -> None:
        return None

    def close(self) -> None:
        """Stop the threads. Programs and caches that are still referenced are freed, and reported as leaks."""
        leaks = self.context.close()
        self.thread_pool.close()
        if leaks:
            warnings.warn(f"back-end {self.name} was closed before {'; '.join(leaks)}", ResourceWarning, stacklevel=2)


class EagerProgram(CpuProgram):
    """A program of one call whose values are tensors."""

    def __init__(self, graph: Graph, tensors: Mapping[int, Tensor], backend: CpuBackend) -> None:
        self._tensors = tensors
        super().__init__(graph, Placement({}, 0), backend.compiler, backend.thread_pool, backend.context)

    def address(self, value: Any) -> int:
        tensor = self._tensors[id(value)] if isinstance(value, Value) else value
        return int(tensor.storage.address)
