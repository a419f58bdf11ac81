"""The OpenCL back-end: a device, its queue and buffers, weights, pages and states. Kernels are in `kernels`."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import prod
from time import perf_counter
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import pyopencl as cl

from sporelm.backends.context import Context
from sporelm.backends.device_context import DeviceContext, enters_context
from sporelm.backends.fetched import Fetched
from sporelm.backends.layer_states import list_tensors, pool_shapes, state_bytes, wrap_pool
from sporelm.backends.memory_residency import available_bytes, physical_bytes
from sporelm.backends.opencl.device_rates import measure_peak_rates, measure_stream
from sporelm.backends.opencl.device_selection import (
    OpenClDevice,
    choose_device,
    explain_error,
    find_unsupported_reason,
    list_opencl_devices,
)
from sporelm.backends.opencl.device_storage import (
    DeviceArray,
    OutputHandle,
    PlaneWeight,
    PoolBuffers,
    PooledArray,
    RoundedRows,
)
from sporelm.backends.opencl.device_tuning import DeviceTuning, fit_groups
from sporelm.backends.opencl.driver_check import check_driver
from sporelm.backends.opencl.half_arithmetic import find_half_arithmetic
from sporelm.backends.opencl.integer_dots import choose_dot_kind
from sporelm.backends.opencl.kernel_launch import KernelLaunch
from sporelm.backends.opencl.kernel_program import ProgramCompiler
from sporelm.backends.opencl.measured_tuning import tuning_in_use
from sporelm.backends.opencl.op_lowering import find_lowering, op_lowerings
from sporelm.backends.opencl.opencl_program import OpenClProgram, value_bytes
from sporelm.backends.opencl.weight_formats import F32_FORMAT, OVERREAD_BYTES, WeightFormat, find_weight_format
from sporelm.backends.protocol import (
    HOST_TRAITS,
    CallTime,
    Handle,
    MemoryPlanner,
    Missing,
    Placement,
    Program,
    Ready,
    StateShapes,
    WeightArray,
)
from sporelm.backends.reference_fallback import contiguous_arguments, run_fallback
from sporelm.backends.stacked_experts import list_matrices
from sporelm.errors import BackendError, MemoryShortage, SporeError
from sporelm.ops import ALL, Call, Graph, Op, Spec, Value, quantize_rows
from sporelm.ops.canonical_pages import canonical_shape
from sporelm.ops.number_types import NumberTypes
from sporelm.ops.op import leaves
from sporelm.ops.paged_attention import page_shape
from sporelm.ops.quantize_rows import ROW_FORMATS, RowFormat
from sporelm.ops.spec import spec_of
from sporelm.tensor.dtype import F16, F32, U8, DType, ElementType, dtype_of
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor, strided_view
from sporelm.units import in_units

ACTIVATION_TYPES = {"auto": F32, "f32": F32, "f16": F16}
# Ops whose results select something or are used as weights: they stay float32 (ADR 0044).
F32_OPS = frozenset({"argmax", "top_k", "route"})
# Ops whose products of many tokens are added in half precision, where the device computes in it.
HALF_OPS = frozenset({"linear", "linear_group", "linear_silu_mul", "linear_activate_mul"})
HOST_MEMORY_SHARE = 0.8  # of the host's memory; integrated GPUs may often use less
HALF_SUM_ROUNDINGS = 4  # of the 16 products that kernels/linear_many.cl adds in half precision
MAX_STEP_TOKENS = 512
# One launch may compute a norm and the rounding of its result, so the norm's arguments stay allocated until the
# rounding is done.
NORMS_AND_ROUNDING = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "quantize_rows")
SMALLER_MODEL = "Use a smaller model or a shorter number format, or choose another device with the option device."
SHORTER_CONTEXT = "Lower the option max_context, or use a smaller model."
SHORTAGE_CODES = (cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE, cl.status_code.OUT_OF_HOST_MEMORY)


class OpenClBackend:
    """Everything lies on one OpenCL device.

    device   see `choose_device`
    dtype    the type in which activations are stored: "f32" or "f16"; "auto" is f32
    threads  ignored: the driver has its own
    """

    name = "opencl"
    rules: tuple[str, ...] = (
        *("add_rms_norm", "add_layer_norm", "linear_silu_mul", "linear_activate_mul", "linear_experts_silu_mul"),
        *("linear_group", "rope_store", "quantize_rows"),
    )
    step_buckets: Mapping[str, int] = {"any": MAX_STEP_TOKENS}  # a launch that a step does not need is left out
    traits = HOST_TRAITS
    padded_ops: Collection[str] = ()
    strict = False

    def __init__(self, threads: int | None = None, device: str | None = None, dtype: str = "auto") -> None:
        if dtype not in ACTIVATION_TYPES:
            raise BackendError(
                f"dtype: not supported by opencl (got {dtype!r}; allowed {', '.join(ACTIVATION_TYPES)}). Change the "
                "option dtype."
            )
        # "cpu" is the default of --device. A driver for the CPU beside a GPU is chosen by its number or name.
        device = None if device == "cpu" else device
        self.requested_device, self.activation = device, ACTIVATION_TYPES[dtype]
        self.context: Context = DeviceContext(self.name, translate_error=self.translate_error)
        self.times: list[CallTime] | None = None  # of launches, if they are recorded
        self.allocated_bytes = 0
        self.last_launch: Any = None  # the event of the last launch: reads fail if it failed
        self.has_reported_failure = False  # of that launch
        self._unsupported_reason: str | None = None
        try:
            check_driver(device)
            self.device: OpenClDevice = choose_device(device, list_opencl_devices())
            self._unsupported_reason = find_unsupported_reason(self.device)
            if self._unsupported_reason is None:
                self._open()
        except BackendError as error:
            self._unsupported_reason = str(error)
        except cl.Error as error:
            self._unsupported_reason = (
                f"device {self.device.label} cannot be opened ({explain_error(error)}). Close other programs that use "
                "it, or choose another device with the option device."
            )

    def _open(self) -> None:
        self.cl_context = cl.Context([self.device.device])
        self.queue = cl.CommandQueue(self.cl_context, self.device.device)
        active = tuning_in_use(self.device)
        self.tuning: DeviceTuning = fit_groups(active.tuning, self.device)
        self._tuning_source = active.source
        self.compiler = ProgramCompiler(self.device, self.cl_context)
        self.dot_kind = choose_dot_kind(self.device, self.compiler, self.queue)
        self.half_arithmetic: str | None = None
        if self.activation is F16:
            self.half_arithmetic = find_half_arithmetic(self.device, self.compiler, self.queue)

    def probe(self) -> Ready | Missing:
        if self._unsupported_reason is not None:
            return Missing(self._unsupported_reason.rstrip("."))
        try:
            return Ready(self._describe())
        except (cl.Error, BackendError) as error:
            return Missing(f"device {self.device.label} failed after it was opened: {explain_error(error)}")

    def _describe(self) -> dict[str, str]:
        cl_device: Any = self.device.device
        binaries = self.compiler.binaries
        return {
            "device": self.device.label,
            "devices": "; ".join(each.label for each in list_opencl_devices()),
            "driver": f"{self.device.driver}, OpenCL {'.'.join(map(str, self.device.version))}",
            "memory": f"{in_units(cl_device.global_mem_size)}, {in_units(cl_device.max_mem_alloc_size)} in one buffer"
            + (", shared with the host" if self.device.shares_host_memory else ""),
            "compute units": str(cl_device.max_compute_units),
            "dtype": self.activation.name,
            "fp16": self._describe_fp16(),
            "int8 dot product": self.dot_kind or "none: int8 activations are multiplied as f32",
            "tuning": self._tuning_source,
            "program cache": binaries.refusal or str(binaries.folder),
        }

    def _describe_fp16(self) -> str:
        if self.half_arithmetic is not None:
            return "used for the products of prefill"
        if not self.device.has_fp16:
            return "storage only: computed in f32"
        return "self-test failed: computed in f32" if self.activation is F16 else "available with the option dtype f16"

    def missing_kernels(self) -> list[str]:
        return sorted(ALL.keys() - op_lowerings().keys())

    def number_types(self, op: Op) -> NumberTypes:
        if self.half_arithmetic is not None and self.tuning.half_products and op.name in HALF_OPS:
            return NumberTypes(self.activation, F16, HALF_SUM_ROUNDINGS)
        return NumberTypes(F32 if op.name in F32_OPS else self.activation, F32)

    def stored_type(self, op: Op, spec: Spec) -> Any:
        """Return the type in which a result of an op is stored."""
        if spec.dtype is F32 or isinstance(spec.dtype, RowFormat):
            return self.number_types(op).activation
        return spec.dtype

    def translate_error(self, error: BaseException) -> SporeError | None:
        """Return the error to raise instead of one of OpenCL."""
        if not isinstance(error, cl.Error):
            return None
        label = self.device.label
        if getattr(error, "code", None) in SHORTAGE_CODES:
            return MemoryShortage(f"device {label}: {explain_error(error)}. {SHORTER_CONTEXT}")
        return BackendError(self._describe_failure(explain_error(error)))

    def _describe_failure(self, reason: str) -> str:
        return (
            f"device {self.device.label} failed: {reason}. Load the model again; if that fails too, restart the "
            "program or choose another device with the option device."
        )

    def check_group(self, launch: KernelLaunch, kernel: Any) -> None:
        """Raise BackendError if the device cannot run a kernel with the work-group of its launch."""
        size = prod(launch.group)
        limit = int(kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, self.device.device))
        if size > limit:
            raise BackendError(
                f"device {self.device.label}: work-group of {launch.name} too large (got {size}; allowed {limit}). Run "
                f"'spore bench tune --backend opencl --device {self.device.number}', or choose another device with the "
                "option device."
            )

    # ---- buffers

    def allocate_buffer(self, nbytes: int, purpose: str, remedy: str = SMALLER_MODEL) -> Any:
        """Return a buffer. Raise MemoryShortage with the remedy if the device has no room for it, or none so large."""
        limit = int(self.device.device.max_mem_alloc_size)
        if nbytes > limit:
            raise MemoryShortage(
                f"device {self.device.label}: buffer too large for {purpose} (got {nbytes} bytes; allowed {limit}). "
                + remedy
            )
        flags: Any = cl.mem_flags.READ_WRITE
        if self.device.shares_host_memory:
            flags |= cl.mem_flags.ALLOC_HOST_PTR
        try:
            buffer = CountedBuffer(self.cl_context, flags, max(nbytes, 1))
        except cl.Error as error:
            if getattr(error, "code", None) not in SHORTAGE_CODES:
                raise
            raise MemoryShortage(
                f"device {self.device.label}: no memory for {purpose} of {nbytes} bytes ({explain_error(error)}). "
                + remedy
            ) from error
        self.allocated_bytes += nbytes
        buffer.count_freed = finalize(buffer, self._count_freed, nbytes)
        return buffer

    def _count_freed(self, nbytes: int) -> None:
        self.allocated_bytes -= nbytes

    def copy_to_buffer(self, array: np.ndarray) -> Any:
        """Return a buffer with a copy of an array, written in place where the device shares the host's memory."""
        buffer = self.allocate_buffer(array.nbytes, f"an array {array.dtype}{list(array.shape)}")
        if array.nbytes:
            with MappedBytes(self, buffer, array.nbytes) as place:
                place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    # ---- tensors

    @enters_context
    def tensor(self, array: np.ndarray) -> Tensor:
        self.context.check()
        stored = dtype_of(array)
        storage = DeviceArray(self.copy_to_buffer(array), array.shape, stored)
        return Tensor(stored, Layout.contiguous(array.shape), storage, self)

    def is_plain(self, tensor: Tensor) -> bool:
        return type(tensor.storage) is DeviceArray

    @enters_context
    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        self.context.check()
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor}: cannot be read as an array. Use export_pages or export_states.")
        array = self._read(tensor.storage, tensor.storage.shape)
        if not _is_whole(tensor):
            array = strided_view(array.reshape(-1), tensor.layout).copy()
        return array

    def _read(self, stored: DeviceArray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the first numbers of an array; halves as float32."""
        array = np.empty(shape, stored.dtype.numpy)
        if array.size:
            self._read_bytes(stored.buffer, array)
        return array.astype(np.float32) if stored.dtype is F16 else array

    def contiguous(self, tensor: Tensor) -> Tensor:
        if _is_whole(tensor):
            return tensor
        if not self.is_plain(tensor):
            raise BackendError(f"{tensor} is a view of a packed weight, a cache or rounded rows; pass the whole tensor")
        return self.tensor(self.to_numpy(tensor))

    # ---- weights

    @enters_context
    def pack(self, weight: WeightArray) -> Tensor:
        """Store a matrix as planes. A vector is an ordinary tensor of float32."""
        self.context.check()
        shape = tuple(weight.shape)
        if len(shape) == 1:
            return self.tensor(np.ascontiguousarray(weight.dequantize(), np.float32))
        kind = self._weight_format(weight.format)
        is_ordered = all(getattr(matrix, "order", None) is None for matrix in list_matrices(weight))
        if not is_ordered:
            kind = F32_FORMAT
        buffer = self.allocate_buffer(
            kind.nbytes(shape) + OVERREAD_BYTES, f"a weight {weight.format.name}{list(shape)}"
        )
        with MappedBytes(self, buffer, kind.nbytes(shape)) as place:
            if kind.name != weight.format.name:
                kind.pack(np.ascontiguousarray(weight.dequantize(), np.float32), shape, place)
            else:
                kind.pack(weight.blocks, shape, place)
        return Tensor(weight.format, Layout.contiguous(shape), PlaneWeight(buffer, shape, kind), self)

    def _weight_format(self, format: Any) -> WeightFormat:
        return find_weight_format(format.name, is_wide=bool(self.tuning.wide_scales))

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        return prod(shape) * 4 if len(shape) == 1 else self._weight_format(format).nbytes(tuple(shape))

    # ---- pages and states

    @enters_context
    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        shapes = [(count, *page_shape(each)) for each in kept]
        pool = self._allocate_pool([self.page_bytes(each, dtype) * count for each in kept], f"{count} pages")
        bits = dtype if isinstance(dtype, DType) else U8
        return [
            Tensor(
                dtype,
                Layout.contiguous(shape),
                PooledArray(pool, layer, shape, bits, tuple(canonical_shape(shape, dtype))),
                self,
            )
            for layer, shape in enumerate(shapes)
        ]

    def _allocate_pool(self, sizes: Sequence[int], label: str) -> PoolBuffers:
        """Return zeroed buffers of these bytes."""
        pool = PoolBuffers(self.context, [], f"{label} of {len(sizes)} layers", self.finish_quietly)
        try:
            for nbytes in sizes:
                pool.buffers.append(self.allocate_buffer(nbytes, label, SHORTER_CONTEXT))
                if nbytes:
                    cl.enqueue_fill_buffer(self.queue, pool.buffers[-1], np.zeros(1, np.uint8), 0, nbytes)
        except BaseException:
            pool.free()
            raise
        return pool

    @enters_context
    def free_pages(self, caches: Sequence[Tensor]) -> None:
        for cache in caches:
            cache.storage.pool.free()

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        element_bytes = dtype.nbytes if isinstance(dtype, DType) else 1
        return prod(canonical_shape(page_shape(kept), dtype)) * element_bytes

    @enters_context
    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return self._export(cache.storage, pages)

    def _export(self, stored: PooledArray, indices: Sequence[int]) -> np.ndarray:
        """Return the arrays of these indices along the first dimension."""
        array = np.empty((len(indices), *stored.export_shape[1:]), stored.export_dtype.numpy)
        self._read_items(stored.buffer, indices, array)
        return array

    def _read_items(self, buffer: Any, indices: Sequence[int], array: np.ndarray) -> None:
        """Read these items along the first dimension to an array, neighbours in one copy."""
        nbytes, begin = array[:1].nbytes, 0
        for end in range(1, len(indices) + 1):
            if end < len(indices) and indices[end] == indices[end - 1] + 1:
                continue
            if nbytes:
                self._read_bytes(buffer, array[begin:end], int(indices[begin]) * nbytes)
            begin = end

    def _read_bytes(self, buffer: Any, array: np.ndarray, offset: int = 0) -> None:
        """Fill an array with the bytes of a buffer from an offset on. Raise BackendError if the last launch failed.

        The queue is in order, so that launch has ended after the read. Its event is not waited for: PoCL would hang if
        it had failed.
        """
        cl.enqueue_copy(self.queue, array, buffer, src_offset=offset, is_blocking=True)
        self.check_last_launch()

    def check_last_launch(self) -> None:
        """Raise BackendError if the last launch has failed."""
        status = 0 if self.last_launch is None else int(self.last_launch.command_execution_status)
        if status < 0:
            self.has_reported_failure = True
            raise BackendError(self._describe_failure(f"a kernel ended with status {status}"))

    def begin_step(self) -> None:
        """Raise BackendError if the last launch has failed and no read has reported it; forget the failure."""
        try:
            if not self.has_reported_failure:
                self.check_last_launch()
        finally:
            self.last_launch, self.has_reported_failure = None, False

    @enters_context
    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        self._import(cache.storage, pages, canonical)

    def _import(self, stored: PooledArray, indices: Sequence[int], arrays: np.ndarray) -> None:
        given = np.ascontiguousarray(arrays, stored.export_dtype.numpy)
        for place, index in enumerate(indices):
            cl.enqueue_copy(
                self.queue, stored.buffer, given[place], dst_offset=index * given[place].nbytes, is_blocking=True
            )

    @enters_context
    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetched:
        return Fetched(self._export(cache.storage, pages))

    @enters_context
    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        for cache in caches:
            self._copy(cache.storage, copies)

    def _copy(self, stored: PooledArray, copies: Sequence[tuple[int, int]]) -> None:
        nbytes = prod(stored.export_shape[1:]) * stored.export_dtype.nbytes
        for source, target in copies:
            if source != target:
                cl.enqueue_copy(
                    self.queue,
                    stored.buffer,
                    stored.buffer,
                    byte_count=nbytes,
                    src_offset=source * nbytes,
                    dst_offset=target * nbytes,
                )

    @enters_context
    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        sizes = [prod(shape) * F32.nbytes for shape in pool_shapes(count, layers)]
        pool = self._allocate_pool(sizes, f"{count} states")
        return wrap_pool(self, count, layers, lambda number, shape: PooledArray(pool, number, shape, F32, shape))

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        self.free_pages(list_tensors(caches))

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        return state_bytes(layers)

    @enters_context
    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        for tensor in list_tensors(caches):
            self._copy(tensor.storage, copies)

    @enters_context
    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        return [self._export(tensor.storage, states) for tensor in list_tensors(caches)]

    @enters_context
    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        for tensor, array in zip(list_tensors(caches), arrays, strict=True):
            self._import(tensor.storage, states, array)

    def free_bytes(self) -> int | None:
        """Return total memory minus this back-end's own allocations, and no more than the host has where it is shared.

        OpenCL does not report what other processes use.
        """
        total = self.total_bytes()
        if total is None:
            return None
        free = max(0, total - self.allocated_bytes)
        host = available_bytes() if self.device.shares_host_memory else None
        return free if host is None else min(free, host)

    def total_bytes(self) -> int | None:
        """Return the device's memory; None if it may use nearly all of the host's, which is then asked instead."""
        total, host = int(self.device.device.global_mem_size), physical_bytes()
        is_host = self.device.shares_host_memory and (host is None or total > HOST_MEMORY_SHARE * host)
        return None if is_host else total

    # ---- inputs and outputs of programs

    @enters_context
    def upload(self, array: np.ndarray) -> Handle:
        stored = DeviceArray(self.copy_to_buffer(array), array.shape, dtype_of(array))
        return OutputHandle(stored, array.shape, array.dtype)

    @enters_context
    def fetch(self, handle: Handle) -> np.ndarray:
        return handle if isinstance(handle, np.ndarray) else self._read(handle.array, handle.shape)

    @enters_context
    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        if isinstance(handle, np.ndarray):
            return handle[list(rows)]
        stored: DeviceArray = handle.array
        array = np.empty((len(rows), *handle.shape[1:]), stored.dtype.numpy)
        self._read_items(stored.buffer, rows, array)
        return array.astype(np.float32) if stored.dtype is F16 else array

    def start_fetch(self, handle: Handle) -> Fetched:
        return Fetched(np.array(self.fetch(handle)))

    # ---- running

    @enters_context
    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op as a program of its own: the same kernels, at fixed extents."""
        self.context.check()
        args = contiguous_arguments(self, op, args)
        op.check(args, options)
        prepared = self.prepare_call(op, args, options)
        if prepared is None:
            return run_fallback(self, op, args, options)
        prepared.program.run({}, {})
        tensors = prepared.results
        return tensors[0] if len(tensors) == 1 else tuple(tensors) or None

    def prepare_call(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> "PreparedCall | None":
        """Return a program for one call of an op with these tensors, or None without a kernel."""
        if op.name not in op_lowerings():
            return None
        specs = op.check(args, options)
        graph = Graph()
        results = tuple(Value(graph, spec, str(number)) for number, spec in enumerate(specs))
        call = Call(op, tuple(self._rounded(op, args)), dict(options), results)
        if find_lowering(call) is None:
            return None
        tensors = [self._fresh(op, spec) for spec in specs]
        graph.calls.append(call)
        by_value = {id(value): tensor for value, tensor in zip(results, tensors, strict=True)}
        return PreparedCall(OpenClProgram(graph, self, Placement({}, 0), by_value), tensors)

    def _fresh(self, op: Op, spec: Spec) -> Tensor:
        buffer = self.allocate_buffer(value_bytes(spec, 1), "a result")
        kind = RoundedRows if isinstance(spec.dtype, RowFormat) else DeviceArray
        storage = kind(buffer, spec.bound, self.stored_type(op, spec))
        return Tensor(spec.dtype, Layout.contiguous(spec.bound), storage, self)

    def _rounded(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        """Round x for weights that multiply int8, as the rule quantize_rows does in a plan."""
        if not op.name.startswith("linear") or isinstance(spec_of(args[0]).dtype, RowFormat):
            return args
        kinds = {getattr(value.dtype, "activation", "float") for value in leaves(args[1:])} & ROW_FORMATS.keys()
        return (quantize_rows(args[0], activation=kinds.pop()), *args[1:]) if kinds else args

    def kernel(self, call: Call, bucket: str) -> Any | None:
        return find_lowering(call)

    def compile(self, graph: Graph) -> Program | None:
        return None

    @enters_context
    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> OpenClProgram:
        alignment = self.device.alignment
        placement = plan_memory(lambda spec: value_bytes(spec, alignment), NORMS_AND_ROUNDING)
        return OpenClProgram(graph, self, placement)

    @enters_context
    def measure_limits(self) -> Mapping[str, float]:
        return measure_peak_rates(self)

    @enters_context
    def measure_stream(self) -> float:
        return measure_stream(self)

    def time_calls(self) -> Callable[[], list[CallTime]]:
        """Wait for each launch from now on."""
        self.times = []
        return self._take_times

    def _take_times(self) -> list[CallTime]:
        taken, self.times = self.times or [], []
        return taken

    def time_launch(self, call: Call, kernel: str, work: Callable[[], None]) -> None:
        """Run a launch, wait for it, and record its time."""
        assert self.times is not None
        self.queue.finish()
        began = perf_counter()
        work()
        self.queue.finish()
        self.times.append(CallTime(call, kernel, 0, began, perf_counter() - began))

    @enters_context
    def synchronize(self) -> None:
        self.queue.finish()

    def finish_quietly(self) -> None:
        """Wait until all work is done, also of a device that fails: what it has is freed afterwards."""
        with suppress(cl.Error):
            self.queue.finish()

    def close(self) -> None:
        """Free everything. Programs and pools that are still referenced are freed, and reported as leaks."""
        if self._unsupported_reason is None and not self.context.closed:
            self.finish_quietly()
        self.last_launch = None
        leaks = self.context.close()
        if leaks:
            warnings.warn(f"back-end {self.name} was closed before {'; '.join(leaks)}", ResourceWarning, stacklevel=2)


class PreparedCall(NamedTuple):
    """A program for one call, and the tensors that it writes."""

    program: OpenClProgram
    results: list[Tensor]


class CountedBuffer(cl.Buffer):
    """A buffer whose bytes are counted until it is gone, or until `count_freed` is called."""

    count_freed: Callable[[], object]


class MappedBytes:
    """The first bytes of a buffer as an array to write, for a block: mapped where the device shares the host's memory,
    else copied at its end, unless it fails. Bytes that the block leaves out are zeros."""

    def __init__(self, backend: OpenClBackend, buffer: Any, nbytes: int) -> None:
        self._backend, self._buffer, self._nbytes = backend, buffer, nbytes

    def __enter__(self) -> np.ndarray:
        if self._backend.device.shares_host_memory:
            self._array, _ = cl.enqueue_map_buffer(
                self._backend.queue,
                self._buffer,
                cl.map_flags.WRITE,
                0,
                (self._nbytes,),
                np.dtype(np.uint8),
                is_blocking=True,
            )
            self._array[:] = 0
        else:
            self._array = np.zeros(self._nbytes, np.uint8)
        return self._array

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if self._backend.device.shares_host_memory:
            self._array.base.release(self._backend.queue)
        elif kind is None:
            cl.enqueue_copy(self._backend.queue, self._buffer, self._array, is_blocking=True)
        del self._array


def _is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor shows all of its storage in order."""
    return tensor.layout == Layout.contiguous(tuple(tensor.storage.shape))
