"""The emitter: turns calls of a graph into launches of kernels, and finds the buffers of their values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sporelm.backends.opencl.device_storage import DeviceArray, PlaneWeight, PooledArray, RoundedRows
from sporelm.backends.opencl.device_tuning import DeviceTuning
from sporelm.backends.opencl.kernel_launch import Extents, KernelLaunch, ScaledExtent, Size
from sporelm.backends.opencl.kernel_program import KernelProgram, kernel_program
from sporelm.ops import Call, Value
from sporelm.ops.spec import Extent, Spec, spec_of
from sporelm.tensor.dtype import F16, F32, DType

Argument = Any  # a buffer, a ScratchRegion, a number of numpy, a ScaledExtent, or None
SCRATCH_ALIGNMENT = 4096  # bytes: more than any device wants of a part of a buffer


class ValueMemory(Protocol):
    """The device buffers of a program's values."""

    def array_of(self, value: Any) -> DeviceArray:
        """Return the array of a value or of a tensor that is plain or rounded."""

    def constant(self, array: np.ndarray) -> Any:
        """Return a buffer with these numbers, which the program keeps."""


class ScratchRegion(NamedTuple):
    """Memory for the launches of one call. The next call uses it again."""

    offset: int
    nbytes: int


class LaunchEmitter:
    """Collects the launches of a program's calls. Lowerings (`lowering/*.py`) use it."""

    def __init__(
        self,
        memory: ValueMemory,
        activation: DType,
        tuning: DeviceTuning,
        dot_kind: str | None = None,
        half_arithmetic: str | None = None,
    ) -> None:
        """
        activation  the type in which activations are stored: F32 or F16
        dot_kind    the kind of products of integers that the device has (`integer_dots`)
        half_arithmetic   the kind of arithmetic in half precision that it has, a file of `kernels/halves`
        """
        self.dot_kind, self.half_arithmetic = dot_kind, half_arithmetic
        self.memory, self.activation, self.tuning = memory, activation, tuning
        self.launches: list[KernelLaunch] = []
        self.following: Call | None = None
        self.has_taken = False
        self.scratch_bytes = 0  # of the call that needs most
        self._used_scratch = 0  # of this call

    def begin_call(self, following: Call | None) -> None:
        """Begin a call: its launches may use the scratch memory of the one before.

        following   the next call, which the lowering of this one may take over (`take_following`)
        """
        self._used_scratch = 0
        self.following, self.has_taken = following, False

    def take_following(self) -> None:
        """Take over the next call: the launches of this one compute it too."""
        self.has_taken = True

    # ---- arguments

    def get_activation_buffer(self, value: Any) -> Any:
        """Return the buffer of numbers in the activation type; a copy if they are stored in another."""
        return self._as_type(value, self.activation)

    def get_f32_buffer(self, value: Any) -> Any:
        """Return the buffer of numbers in float32; a copy if they are stored in another type."""
        return None if value is None else self._as_type(value, F32)

    def get_stored_buffer(self, value: Any) -> tuple[Any, dict[str, bool]]:
        """Return the buffer of numbers in the type in which they are stored, and the program's option for it."""
        array = self.memory.array_of(value)
        return array.buffer, {"NARROW": array.dtype is F16}

    def is_rounded(self, value: Any) -> bool:
        """Return whether a value is rows rounded to int8."""
        return isinstance(self.memory.array_of(value), RoundedRows)

    def get_int_buffer(self, value: Any) -> Any:
        """Return the buffer of integers."""
        return self.memory.array_of(value).buffer

    def get_result_buffer(self, value: Value) -> Any:
        """Return the buffer of a result, in the type that the op's results have."""
        return self.memory.array_of(value).buffer

    def get_weight_arguments(self, value: Any) -> list[Argument]:
        """Return the four arguments of WEIGHT(w) for a packed weight."""
        stored: PlaneWeight = value.storage
        return [stored.buffer, *(np.uint64(offset) for offset in stored.offsets)]

    def get_page_buffer(self, value: Any) -> Any:
        """Return the buffer of a layer's pages."""
        stored: PooledArray = value.storage
        return stored.buffer

    def scratch(self, nbytes: int) -> ScratchRegion:
        """Return memory for launches of this call."""
        region = ScratchRegion(self._used_scratch, max(nbytes, 1))
        self._used_scratch += -(-region.nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        self.scratch_bytes = max(self.scratch_bytes, self._used_scratch)
        return region

    def constant(self, array: np.ndarray) -> Any:
        """Return a buffer with these numbers."""
        return self.memory.constant(array)

    def _as_type(self, value: Any, dtype: DType) -> Any:
        array = self.memory.array_of(value)
        if array.dtype is dtype or isinstance(array, RoundedRows):
            return array.buffer
        spec = spec_of(value)
        target = self.scratch(int(np.prod(spec.bound, dtype=np.int64)) * dtype.nbytes)
        program = kernel_program("conversion", {"WIDEN": dtype is F32}, ())
        columns = int(np.prod(spec.bound[1:], dtype=np.int64))
        amount = ScaledExtent(spec.shape[0], columns)
        self.launch(program, "convert_numbers", [array.buffer, target, amount], [amount])
        return target

    # ---- launches

    def make_program(
        self, file: str, snippets: Sequence[str] = (), options: Mapping[str, Any] | None = None, *, local: int = 1
    ) -> KernelProgram:
        """Return a program with the options that all kernels share."""
        shared = {"VEC": self.tuning.vector, "LOCAL": local, "NARROW": self.activation is F16}
        return kernel_program(file, shared | dict(options or {}), snippets)

    def launch(
        self,
        program: KernelProgram,
        name: str,
        arguments: Sequence[Argument],
        sizes: Sequence[Size],
        group: Sequence[int] | None = None,
        condition: Callable[[Extents], bool] | None = None,
    ) -> None:
        """Add a launch. `group` is that of an elementwise kernel by default; the first size is in work-items."""
        if group is None:
            group = (self.tuning.elements_group, *[1] * (len(sizes) - 1))
        self.launches.append(KernelLaunch(program, name, arguments, sizes, group, condition))


def rows_of(value: Any) -> Extent:
    """Return the first extent of a value."""
    return spec_of(value).shape[0]


def width_of(value: Any) -> int:
    """Return the last extent of a value, which is fixed."""
    return int(spec_of(value).bound[-1])


def columns_of(value: Any) -> int:
    """Return the product of all extents of a value but the first."""
    return int(np.prod(spec_of(value).bound[1:], dtype=np.int64))


def num_elements(spec: Spec) -> int:
    """Return the numbers of a value, symbols at their upper limit."""
    return int(np.prod(spec.bound, dtype=np.int64))
