"""A graph as a list of prepared kernels over one buffer: memory and arguments are fixed once, a step enqueues the list.

Values lie in an arena, in sub-buffers. Small inputs lie together in a buffer of their own, which one copy fills. The
sizes of launches follow from a step's extents; a step with the same extents as the one before computes none of them and
sets no argument.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from sporelm.backends.context import Resource
from sporelm.backends.device_context import enters_context
from sporelm.backends.opencl.device_storage import DeviceArray, OutputHandle, RoundedRows
from sporelm.backends.opencl.kernel_launch import Extents, KernelLaunch, PreparedLaunch, compute_global_size, extent_of
from sporelm.backends.opencl.kernel_program import KernelProgram, LaunchVariant, launch_variant
from sporelm.backends.opencl.launch_emitter import LaunchEmitter, ScratchRegion
from sporelm.backends.opencl.op_lowering import find_lowering
from sporelm.backends.protocol import CompileTasks, Handle, Placement, WarmupStep
from sporelm.errors import UnsupportedOp
from sporelm.ops import Graph, Symbol, Value
from sporelm.ops.op import leaves
from sporelm.ops.quantize_rows import RowFormat
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, DType
from sporelm.tensor.tensor import Tensor

if TYPE_CHECKING:
    from sporelm.backends.opencl.opencl_backend import OpenClBackend

TOKENS = "tokens"  # name of the symbol for the number of tokens of a step
MAX_JOINT_INPUT_BYTES = 1 << 20  # of an input that goes up together with others
BoundLaunch = tuple[int, Any, tuple[int, ...], tuple[int, ...]]  # its number, kernel, global size and group


def value_bytes(spec: Spec, alignment: int) -> int:
    """Return the bytes of a value in the arena: activations as float32, the larger of their types."""
    numbers = int(np.prod(spec.bound, dtype=np.int64))
    nbytes = numbers * spec.dtype.nbytes if isinstance(spec.dtype, DType) else RoundedRows.nbytes(numbers)
    return max(1, -(-nbytes // alignment)) * alignment


def iterate_expected_extents(graph: Graph) -> Iterator[Extents]:
    """Yield the extents of steps of 1, 2, 4, ... tokens: of sequences with a token each, and of one sequence."""
    limits = {
        extent.name: extent.high
        for value in graph.inputs.values()
        for extent in value.shape
        if isinstance(extent, Symbol)
    }
    largest = max(limits.values(), default=1)
    count = 1
    while True:
        yield {name: min(count, limit) for name, limit in limits.items()}
        yield {name: min(count, limit) if name == TOKENS else 1 for name, limit in limits.items()}
        if count == largest:
            return
        count = min(2 * count, largest)


class OpenClProgram(Resource):
    """The program of one step bucket, or of one call in eager mode.

    Positions, slots, rows, lengths and pages in a step's arrays are used without checks: the caller that fills the
    arrays is responsible for them. Ids outside their table give NaN.
    """

    def __init__(
        self, graph: Graph, backend: "OpenClBackend", placement: Placement, tensors: Mapping[int, Tensor] | None = None
    ) -> None:
        """`tensors`: the results of an eager call by their values' ids, in the place of an arena."""
        self.backend, self.graph = backend, graph
        self._placement, self._tensors = placement, dict(tensors or {})
        self._arrays: dict[int, DeviceArray] = {}
        self._constants: list[Any] = []
        self._stored = {
            id(value): backend.stored_type(call.op, value.spec) for call in graph.calls for value in call.results
        }
        self._arena = backend.allocate_buffer(placement.nbytes, "the values of a step") if placement.nbytes else None
        self._place_inputs()
        emitter = LaunchEmitter(self, backend.activation, backend.tuning, backend.dot_kind, backend.half_arithmetic)
        self._owners: list[int] = []  # of launches: the call's number
        following = [*graph.calls[1:], None]
        for number, call in enumerate(graph.calls):
            if emitter.has_taken:
                emitter.begin_call(None)
                continue
            emitter.begin_call(following[number])
            lower = find_lowering(call)
            if lower is None:
                raise UnsupportedOp(f"opencl has no kernel for {call.op.name}. Set the option backend to cpu.")
            lower(emitter, call)
            self._owners += [number] * (len(emitter.launches) - len(self._owners))
        self._scratch = (
            backend.allocate_buffer(emitter.scratch_bytes, "scratch memory") if emitter.scratch_bytes else None
        )
        self._launches = emitter.launches
        self._prepared: list[PreparedLaunch | None] = [None] * len(self._launches)
        self._bound: list[BoundLaunch] = []  # the launches of a step with the extents of `_last`
        self._last: tuple[int, ...] | None = None
        self._pending: dict[LaunchVariant, int] = {}  # variants in `_bound` to compile, and a launch of each
        self._compiled: set[tuple[int, bool]] = set()  # compiled launches: number, `is_small`
        self._caches = [
            value.storage
            for call in graph.calls
            for value in leaves(call.args)
            if isinstance(value, Tensor) and hasattr(value.storage, "pool")
        ]
        super().__init__(
            backend.context, f"program of {len(graph.calls)} calls"
        )  # last: a failed one must not be a resource

    # ---- memory

    def _place_inputs(self) -> None:
        """Place small inputs in one buffer, the smallest first."""
        alignment = self.backend.device.alignment
        self._joint: dict[str, tuple[int, np.ndarray]] = {}  # offset and place in the staged bytes
        self._input_buffer: Any = None
        joint = []
        for name, value in self.graph.inputs.items():
            nbytes = value_bytes(value.spec, alignment)
            if nbytes <= MAX_JOINT_INPUT_BYTES:
                joint.append((nbytes, name, value))
        total = sum(nbytes for nbytes, _, _ in joint)
        if not joint:
            return
        self._input_buffer = self.backend.allocate_buffer(total, "the inputs of a step")
        self._staged = np.zeros(total, np.uint8)
        offset = 0
        for nbytes, name, value in sorted(joint, key=lambda each: each[0]):
            assert isinstance(value.dtype, DType)
            buffer = self._input_buffer.get_sub_region(offset, nbytes)
            self._arrays[id(value)] = DeviceArray(buffer, value.spec.bound, value.dtype)
            place = self._staged[offset : offset + nbytes].view(value.dtype.numpy)
            self._joint[name] = (offset, place)
            offset += nbytes

    def array_of(self, value: Any) -> DeviceArray:
        """See `ValueMemory`."""
        if isinstance(value, Value) and id(value) in self._tensors:
            value = self._tensors[id(value)]
        if not isinstance(value, Value):
            array: DeviceArray = value.storage
            return array
        if id(value) not in self._arrays:
            assert self._arena is not None
            offset = self._placement.offsets[id(value)]
            buffer = self._arena.get_sub_region(offset, value_bytes(value.spec, self.backend.device.alignment))
            stored = self._stored.get(id(value), value.dtype)
            kind = RoundedRows if isinstance(value.dtype, RowFormat) else DeviceArray
            self._arrays[id(value)] = kind(buffer, value.spec.bound, stored)
        return self._arrays[id(value)]

    def constant(self, array: np.ndarray) -> Any:
        """See `ValueMemory`."""
        self._constants.append(self.backend.copy_to_buffer(array))
        return self._constants[-1]

    # ---- compiling

    def list_compile_tasks(self, warmup_steps: Sequence[WarmupStep] = ()) -> CompileTasks:
        """Return a compile task for each OpenCL program (`PrecompilableProgram`). Warm-up steps are not used."""
        compiler = self.backend.compiler
        launches: dict[KernelProgram, dict[LaunchVariant, int]] = {}
        seen: set[tuple[int, bool]] = set()
        for extents in iterate_expected_extents(self.graph):
            for number, launch in enumerate(self._launches):
                if launch.condition is not None and not launch.condition(extents):
                    continue
                sizes = compute_global_size(launch, extents)
                if not sizes:
                    continue
                variant = launch_variant(launch.program, launch.name, sizes, launch.group)
                if (number, variant.is_small) in seen:
                    continue
                seen.add((number, variant.is_small))
                if not compiler.is_precompiled(variant):
                    launches.setdefault(launch.program, {}).setdefault(variant, number)
        return {
            (compiler, frozenset(variants)): partial(self.compile_variants, variants) for variants in launches.values()
        }

    @enters_context
    def compile_variants(self, variants: Mapping[LaunchVariant, int]) -> None:
        """Compile kernels now, each variant with the arguments of the launch whose number is given."""
        compiler = self.backend.compiler
        for variant, number in variants.items():
            compiler.compile_kernel(self.backend.queue, variant, self._prepare(number).kernel)
        compiler.save_binaries()

    # ---- running

    @enters_context
    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """See `Program.run`. Outputs are valid until the next run."""
        self.check()
        try:
            self._upload(arrays)
            self._enqueue(extents)
        except cl.Error:
            self.backend.finish_quietly()  # the launches before the failure use buffers that the caller may free
            raise
        return {
            name: OutputHandle(
                array := self.array_of(value),
                tuple(extent_of(extent, extents) for extent in value.shape),
                (F32 if value.dtype is F32 else array.dtype).numpy,
            )
            for name, value in self.graph.outputs.items()
        }

    def _upload(self, arrays: Mapping[str, Handle]) -> None:
        """Copy inputs to the device, the small ones together."""
        end = 0
        beside: list[tuple[Value, Handle]] = []
        for name, value in self.graph.inputs.items():
            array = arrays[name]
            if name in self._joint and isinstance(array, np.ndarray):
                offset, place = self._joint[name]
                flat = array.reshape(-1)
                place[: flat.size] = flat
                end = max(end, offset + flat.size * place.itemsize)
            else:
                beside.append((value, array))
        queue = self.backend.queue
        if end:
            cl.enqueue_copy(queue, self._input_buffer, self._staged[:end], is_blocking=True)
        for value, array in beside:
            target = self.array_of(value)
            if isinstance(array, OutputHandle) and array.array.dtype is target.dtype:
                nbytes = int(np.prod(array.shape, dtype=np.int64)) * target.dtype.nbytes
                if nbytes:
                    cl.enqueue_copy(queue, target.buffer, array.array.buffer, byte_count=nbytes)
                continue
            given = array if isinstance(array, np.ndarray) else self.backend.fetch(array)
            if given.size:
                contiguous = np.ascontiguousarray(given, target.dtype.numpy)
                cl.enqueue_copy(queue, target.buffer, contiguous, is_blocking=True)

    def _enqueue(self, extents: Mapping[str, int]) -> None:
        """Enqueue the launches of a step."""
        for cache in self._caches:
            cache.pool.check()
        if tuple(extents.values()) == self._last and not self._pending:
            self._enqueue_bound({})
            return
        with self.backend.compiler.log_compilation():
            self._bind(extents)
            if self._pending:
                self.compile_variants(self._pending)
            first = {
                number: variant
                for variant, number in self._pending.items()
                if not self.backend.compiler.is_compiled(variant)
            }
            self._enqueue_bound(first)
            if first:
                self.backend.compiler.save_binaries()
        self._pending = {}

    def _enqueue_bound(self, first: Mapping[int, LaunchVariant]) -> None:
        """Enqueue the bound launches. `first` has the first launches of variants that compile in them, by number."""
        self.backend.begin_step()
        if self.backend.times is not None:
            self._enqueue_timed(first)
            return
        queue, event = self.backend.queue, None
        for number, kernel, sizes, group in self._bound:
            if number in first:
                with self.backend.compiler.guard_first_launch(queue, first[number]):
                    event = cl.enqueue_nd_range_kernel(queue, kernel, sizes, group)
            else:
                event = cl.enqueue_nd_range_kernel(queue, kernel, sizes, group)
        queue.flush()
        self.backend.last_launch = event

    def _enqueue_timed(self, first: Mapping[int, LaunchVariant]) -> None:
        """Enqueue launch by launch, and record the time of each."""
        for number, kernel, sizes, group in self._bound:
            call = self.graph.calls[self._owners[number]]

            def launch(number: int = number, kernel: Any = kernel, sizes: Any = sizes, group: Any = group) -> None:
                compiler, queue = self.backend.compiler, self.backend.queue
                with compiler.guard_first_launch(queue, first[number]) if number in first else nullcontext():
                    self.backend.last_launch = cl.enqueue_nd_range_kernel(queue, kernel, sizes, group)

            self.backend.time_launch(call, self._launches[number].name, launch)

    def _bind(self, extents: Mapping[str, int]) -> None:
        """Compute the launches of a step with their sizes, and set their arguments, unless the last step was such."""
        key = tuple(extents.values())
        if key == self._last:
            return
        compiler = self.backend.compiler
        self._last = None  # a failure below leaves arguments of two steps
        self._bound, self._pending = [], {}
        for number, launch in enumerate(self._launches):
            if launch.condition is not None and not launch.condition(extents):
                continue
            prepared = self._prepare(number)
            sizes = prepared.bind(extents)
            if sizes:
                self._bound.append((number, prepared.kernel, sizes, prepared.group))
                variant = launch_variant(launch.program, launch.name, sizes, prepared.group)
                if (number, variant.is_small) in self._compiled:
                    continue
                if compiler.is_compiled(variant):
                    self._compiled.add((number, variant.is_small))
                else:
                    self._pending.setdefault(variant, number)
        self._last = key

    def _prepare(self, number: int) -> PreparedLaunch:
        """Return the prepared launch of this number; create its kernel on first use."""
        known = self._prepared[number]
        if known is not None:
            return known
        launch = self._launches[number]
        kernel = self.backend.compiler.kernel(launch.program, launch.name)
        self.backend.check_group(launch, kernel)
        arguments = [self._resolve(argument) for argument in launch.arguments]
        resolved = KernelLaunch(launch.program, launch.name, arguments, launch.sizes, launch.group, launch.condition)
        self._prepared[number] = prepared = PreparedLaunch(resolved, kernel)
        return prepared

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, ScratchRegion):
            assert self._scratch is not None
            return self._scratch.get_sub_region(argument.offset, argument.nbytes)
        return argument

    def release(self) -> None:
        self.backend.finish_quietly()  # some drivers do not keep the buffers of launches that are not done
        self._arena = self._scratch = self._input_buffer = None
        self._staged = np.empty(0, np.uint8)
        self._joint.clear()
        self._prepared, self._launches, self._bound = [], [], []
        self._pending = {}
        self._last = None
        self._arrays.clear()
        self._constants.clear()
        self._tensors.clear()
        self._caches = []
        self.graph = Graph()
