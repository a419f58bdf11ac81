"""The protocol of a back-end: its verbs, and the types that they use.

probe; allocate (`tensor`, `allocate_pages`, `allocate_states`); copy (`to_numpy`, `fetch`, `copy_pages`, ...); pack a
weight; give a kernel for a call; compile a program of calls; synchronize.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from sporelm.backends.context import Context
from sporelm.ops import Call, Graph, Op, Spec
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

Progress = Callable[[str, int, int], None]  # phase, bytes or items done, total
StateShapes = Sequence[tuple[int, ...]]  # of the arrays that one layer keeps per sequence


@dataclass(frozen=True)
class Ready:
    """The back-end can run here. `details` are shown by `spore doctor`."""

    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """The back-end cannot run here, with the reason."""

    reason: str


class WeightArray(Protocol):
    """A weight as a file stores it."""

    @property
    def format(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def blocks(self) -> np.ndarray: ...  # uint8

    def dequantize(self) -> np.ndarray: ...  # float32, logical shape, owned by the caller


@dataclass(frozen=True)
class Placement:
    """The offset of each value of a graph, by the value's id, and the size of the arena."""

    offsets: Mapping[int, int]
    nbytes: int


class MemoryPlanner(Protocol):
    """Assigns offsets to the values of the graph being compiled, for back-ends that keep values in an arena."""

    def __call__(self, nbytes_of: Callable[[Spec], int], rowwise_ops: Collection[str] = ()) -> Placement:
        """Return an offset for each value, such that values alive at the same time do not overlap.

        nbytes_of     bytes of a value with this spec, symbols at their upper limit
        rowwise_ops   ops whose calls follow one another row by row without a barrier: the arguments of a series of such
                      calls live until the series ends
        """


Handle = Any  # an array on a device, as its back-end keeps it; numpy arrays where the device is the host


class Program(Protocol):
    """A graph compiled for one step bucket. The caller that fills its arrays guarantees the indices in them."""

    def run(self, arrays: Mapping[str, Handle], extents: Mapping[str, int]) -> dict[str, Handle]:
        """Launch one step: inputs by name, extents by symbol name. Return handles of the outputs, without waiting.

        An input is a numpy array, which may be changed at once, or a handle that a program of the same back-end
        returned. On the host outputs are views that the next run overwrites.
        """

    def free(self) -> None:
        """Free its memory. It cannot run after that."""


class WarmupStep(NamedTuple):
    """The inputs of a step that writes only to the dump page and the dump state, never to those of a sequence.

    A program may run it before the first request, to compile kernels and to capture graphs for steps of these shapes.
    """

    arrays: Mapping[str, Handle]
    extents: Mapping[str, int]


CompileTasks = Mapping[Hashable, Callable[[], None]]  # by key: programs that share kernels use the same keys


@runtime_checkable
class PrecompilableProgram(Protocol):
    """An optional part of a program: its kernels can be compiled before its first step."""

    def list_compile_tasks(self, warmup_steps: Sequence[WarmupStep] = ()) -> CompileTasks:
        """Return short tasks that compile the kernels of typical steps and of `warmup_steps`.

        A program may also capture graphs for the latter. Kernels that are already compiled are left out.
        """


def list_compile_tasks(
    programs: Iterable[Program], warmup_steps: Sequence[WarmupStep] = ()
) -> dict[Hashable, Callable[[], None]]:
    """Collect the compile tasks of all programs, each key once."""
    found: dict[Hashable, Callable[[], None]] = {}
    for program in programs:
        if isinstance(program, PrecompilableProgram):
            found |= {key: each for key, each in program.list_compile_tasks(warmup_steps).items() if key not in found}
    return found


class CallTime(NamedTuple):
    """How long one thread spent in a call of a program, or in one kernel of the call."""

    call: Call
    kernel: str  # its name, or "" if the call does not consist of kernels
    thread: int  # 0 is the thread that runs the step
    began: float  # of perf_counter
    seconds: float


@runtime_checkable
class CallTimer(Protocol):
    """An optional part of a back-end: the duration of each call of a step."""

    def time_calls(self) -> Callable[[], list[CallTime]]:
        """Record from now on how long calls on this device take; a step may become a little slower.

        The returned function gives the times since its previous call, and forgets them.
        """


@runtime_checkable
class SlotWriter(Protocol):
    """An optional part of a back-end: slots of a tensor that are written in place, while programs have the tensor."""

    def write_slot(self, stacked: Tensor, slot: int, matrix: Tensor | np.ndarray | None) -> None:
        """Write a matrix [rows, width] to the first rows of stacked[slot], [slots, rank, width], and zeros to the
        others. Programs that are launched later read it."""


@runtime_checkable
class ArenaSharer(Protocol):
    """An optional part of a back-end: many programs, which run one after the other, with their values in one memory."""

    def sharing_arena(self) -> "Backend":
        """Return the same back-end whose programs keep their values in one memory, apart from that of its other
        programs: the outputs of one are valid until another runs. Only the original is closed."""


class Fetch(Protocol):
    """A copy from the device to the host that has begun: a resource of the back-end's context (`DeviceResource`)."""

    def result(self) -> np.ndarray:
        """Wait for the copy, and return it."""

    def sporulate(self) -> Self:
        """Detach it, for another thread to take over."""

    def sprout(self, context: Context) -> Self:
        """Bind it in this thread. Raise ContextError unless `context` is the back-end's."""


@dataclass(frozen=True)
class InputBuckets:
    """The padded shapes of a step's inputs, for devices that replay few shapes (ADR 0045).

    The rows of a padded step are those of sequences with one row, and after them blocks of `row_block` rows, into which
    longer chunks are cut. Each number is padded to the next one of its bucket; all are ascending.
    """

    row_block: int  # rows of a block
    decodes: tuple[int, ...]  # sequences with one row; begins with 0
    blocks: tuple[int, ...]  # blocks; begins with 0
    pages: tuple[int, ...]  # columns of the page table
    outputs: tuple[int, ...]  # output rows


@dataclass(frozen=True)
class DeviceTraits:
    """The properties of a device from which an engine takes its defaults.

    is_async        whether a launch returns before it is complete, so that the next step can be prepared meanwhile
    input_buckets   the padded shapes of inputs; None: inputs have exact extents
    max_batch       requests that run together
    token_budget    tokens of a step
    memory_share    the part of the free memory that the KV cache may take
    """

    is_async: bool = False
    input_buckets: InputBuckets | None = None
    max_batch: int = 16
    token_budget: int = 512
    memory_share: float = 0.5


HOST_TRAITS = DeviceTraits()


class Backend(Protocol):
    """A device that runs ops. It is also a `Device`: it runs single ops on its tensors (eager mode)."""

    name: str
    rules: tuple[str, ...]  # rules of `sporelm.plan.rewrite_rules` that pay on this device
    step_buckets: Mapping[str, int]  # name -> max tokens of a step, ascending; the last is the largest step allowed
    traits: DeviceTraits
    context: Context  # the owner of its resources
    padded_ops: Collection[str]  # ops with host arguments that also take them on the device, in padded steps (ADR 0045)

    strict: bool  # whether an op without a kernel is an error, instead of a fallback to the reference

    def probe(self) -> Ready | Missing:
        """Return whether it can run here. Never raises."""

    def missing_kernels(self) -> list[str]:
        """Return the names of the ops for which it has no kernel."""

    def number_types(self, op: Op) -> NumberTypes:
        """Return the types in which it keeps and adds up the real numbers of an op. F32 of a graph means these."""

    def tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device."""

    def pack(self, weight: WeightArray) -> Tensor:
        """Copy a weight to the device in the layout that its kernels read.

        A weight is a vector, a matrix (2-D) or expert matrices (3-D: [experts, out, in]; `stack_experts` makes one
        weight of separate matrices).
        """

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        """Return the bytes that `pack` will take."""

    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        """Allocate a cache of `count` zeroed pages, one tensor per layer.

        Each layer keeps per position (kv_heads, head_dim) of keys and values, or one row (width,) that all heads share.
        Logical shape [count, 2, kv_heads, 64, head_dim] or [count, 1, 1, 64, width] (`ops.paged_attention.page_shape`).
        The same page of all layers may be contiguous.
        """

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        """Free the caches of a pool, together. They cannot be used after that."""

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        """Return the bytes of one page of such a cache."""

    def free_bytes(self) -> int | None:
        """Return the free bytes of the device's memory; None if that is the host's, or the number is unknown."""

    def total_bytes(self) -> int | None:
        """Return all bytes of the device's memory; None as in `free_bytes`."""

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        """Return these pages in canonical form: [len(pages), 2, kv_heads, 64, head_dim], or as the cache's shape is."""

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        """Write pages that are given in canonical form."""

    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetch:
        """Begin to copy these pages to the host, in canonical form. Later changes of the pages do not show."""

    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, target) in all caches of a pool, one after the other, on the device."""

    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        """Allocate `count` recurrent states: per layer a tensor float32 [count, *shape] for each of its shapes.

        One state of all layers is contiguous. Within a tensor a state's numbers are in row-major order.
        """

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        """Free a pool of states. Its tensors cannot be used after that."""

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        """Return the bytes of one state of such a pool."""

    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        """Copy states of all layers (source, target), one after the other."""

    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        """Return copies of states: float32 [len(states), *shape] for each tensor of the pool."""

    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        """Write states that `export_states` returned."""

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op now, by its numpy reference if there is no kernel. Checks that indices are in range.

        Tensors that are views are copied first.
        """

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """Return a copy of a tensor's values in its layout. Raise BackendError unless they are plain."""

    def upload(self, array: np.ndarray) -> Handle:
        """Begin to copy an array to the device, as an input of programs. On the host: the array itself."""

    def fetch(self, handle: Handle) -> np.ndarray:
        """Wait for an output of a program, and return it as an array. On the host: the output itself."""

    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        """Return a copy of some rows of an output."""

    def start_fetch(self, handle: Handle) -> Fetch:
        """Begin to copy an output to the host. A later run of its program does not change the copy."""

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself unless it is a view, else a copy. Raise BackendError for a view of a tensor that is
        not plain."""

    def is_plain(self, tensor: Tensor) -> bool:
        """Return whether `to_numpy` can read it: not a packed weight, a cache or rows rounded to int8."""

    def kernel(self, call: Call, bucket: str) -> Any | None:
        """Return the kernel for a call in a bucket. With None the reference runs it, and `doctor` counts it."""

    def compile(self, graph: Graph) -> Program | None:
        """Compile a whole graph, for vendors with a graph engine. With None, `kernel` and `program` are used."""

    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        """Compile a graph for the steps of one bucket. `plan_memory` is for back-ends that keep values in an arena."""

    def measure_limits(self) -> Mapping[str, float]:
        """Measure the peak rates now, the best of several times: stream_bytes_s, int8_dot_ops_s, f32_ops_s; also the
        median stream_median_bytes_s, and int8_dot_8bit_ops_s and the like where `dot_rate_of` needs them.
        token_bytes_s, if given, are the bytes of weights that a product of one token reads: `--backend auto` takes it
        where kernels may be far from the peak."""

    def measure_stream(self) -> float:
        """Measure the current read bandwidth of memory in bytes per second: the median of several short reads."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def close(self) -> None:
        """Free threads and memory."""


@runtime_checkable
class CompositeBackend(Protocol):
    """An optional part of a back-end that consists of several, its parts: where weights, caches and calls lie (ADR
    0050). A part is named by its index in `parts`."""

    parts: Sequence[Backend]
    page_parts: Sequence[int]  # of each cache of pages, in the order of `allocate_pages`
    state_parts: Sequence[int]  # of the states of each layer, in the order of `allocate_states`

    def weight_part(self, name: str) -> int:
        """Return the part on which the weight of this name lies."""

    def backend_of_weight(self, name: str) -> Backend:
        """Return the weight's part as a back-end whose tensors belong to the composite."""

    def part_of_call(self, call: Call) -> int | None:
        """Return the part on which a call's weights or caches lie; None if it has none, and any part can run it."""

    def local(self, tensor: Tensor, part: int) -> Tensor:
        """Return a tensor as one of the part's. Raise BackendError for a weight or a cache of another part that cannot
        be copied."""

    def local_bucket(self, bucket: str, part: int) -> str:
        """Return the part's step bucket for the steps of one of the composite's buckets."""
