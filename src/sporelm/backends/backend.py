"""The verbs of a back-end."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from sporelm.ops import Call, Graph, Op, Spec
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

Progress = Callable[[str, int, int], None]  # stage, bytes or items done, total
Shapes = Sequence[tuple[int, ...]]  # of the arrays that one layer keeps of a sequence


@dataclass(frozen=True)
class Ready:
    """The back-end can run here; `details` are for `spore doctor`."""

    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """The back-end cannot run here, and why."""

    reason: str


class WeightArray(Protocol):
    """A weight as a file holds it."""

    @property
    def format(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def blocks(self) -> np.ndarray: ...  # uint8

    def dequantize(self) -> np.ndarray: ...  # float32, logical shape, the caller's own


@dataclass(frozen=True)
class Placement:
    """Where each value of a graph lies, by the value's id, and how large the arena is."""

    offsets: Mapping[int, int]
    nbytes: int


class Place(Protocol):
    """Places the values of the graph that is being made runnable; for back-ends that keep them in an arena."""

    def __call__(self, nbytes_of: Callable[[Spec], int], row_by_row: Collection[str] = ()) -> Placement:
        """An offset for each value, those alive together apart.

        nbytes_of    bytes that a value of a spec takes, symbols at their highest
        row_by_row   ops whose calls follow one another without a barrier, row by row: what one of a series reads is
                     kept until the series ends
        """


class Program(Protocol):
    """A graph made runnable for one regime. Whoever fills its arrays vouches for the indices in them."""

    def run(self, arrays: Mapping[str, np.ndarray], extents: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Run one step: inputs by name, extents by symbol name. Outputs are views that the next run overwrites."""

    def free(self) -> None:
        """Give back its memory; it cannot run after that."""


class CallTime(NamedTuple):
    """How long one thread was at a call of a program, or at the part of it that is one kernel's."""

    call: Call
    kernel: str  # its name, or "" where a call is not made of kernels
    thread: int  # 0 is the one that runs the step
    began: float  # of perf_counter
    seconds: float


@runtime_checkable
class Timed(Protocol):
    """What a back-end may offer beside the verbs: to say where a step's time goes."""

    def time_calls(self) -> Callable[[], list[CallTime]]:
        """From now on, note how long calls on this device take; a step may take a little longer. What is returned gives
        the times since it was asked last, and forgets them."""


class Backend(Protocol):
    """What a device must offer. It is a `Device` too: it runs single ops on its tensors (eager mode)."""

    name: str
    rules: tuple[str, ...]  # rewriting rules of `sporelm.plan.rules` that pay on this device
    regimes: Mapping[str, int]  # name -> most tokens of a step, rising; the last is the largest step allowed

    def probe(self) -> Ready | Missing:
        """Whether it can run here. Never raises."""

    def lacks(self) -> list[str]:
        """Names of the ops for which it has no kernel of its own."""

    def tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array in."""

    def pack(self, weight: WeightArray) -> Tensor:
        """Take a vector, a weight matrix (2-D) or the matrices of experts (3-D: [experts, out, in]; `stacked` makes one
        weight of separate ones) in the layout that this back-end's kernels read."""

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        """Bytes that `pack` will take."""

    def page_pool(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        """A cache of `count` pages, zeroed, for what each layer keeps of a position: (kv_heads, head_dim) of keys and
        values, or (width,) of one row that all heads share.

        Logical shape [count, 2, kv_heads, 64, head_dim] or [count, 1, 1, 64, width] (`ops.attention.page_shape`); one
        page of all layers may lie together.
        """

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        """Give back caches of a pool, together; they cannot be used after that."""

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        """Bytes of one page of such a cache."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be taken of the device's own memory; None where that is the host's, or is unknown."""

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        """Those pages in canonical form: [len(pages), 2, kv_heads, 64, head_dim], or as the cache's shape is."""

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        """Write pages given in canonical form."""

    def state_pool(self, count: int, layers: Sequence[Shapes]) -> list[tuple[Tensor, ...]]:
        """Room for `count` recurrent states: for each layer a tensor float32 [count, *shape] of each of its shapes.

        One state of all layers lies together; within a tensor a state's numbers are plain, row after row.
        """

    def free_states(self, caches: Sequence[tuple[Tensor, ...]]) -> None:
        """Give back a pool of states; its tensors cannot be used after that."""

    def state_bytes(self, layers: Sequence[Shapes]) -> int:
        """Bytes of one state of such a pool."""

    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        """Copy states of all layers (source, target), one after the other."""

    def export_states(self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int]) -> list[np.ndarray]:
        """What states hold: float32 [len(states), *shape] of each tensor of the pool, copies."""

    def import_states(
        self, caches: Sequence[tuple[Tensor, ...]], states: Sequence[int], arrays: Sequence[np.ndarray]
    ) -> None:
        """Put into states what `export_states` gave."""

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op now, by its numpy meaning where there is no kernel. Checks indices against what they point into.

        Tensors that are seen through a view are copied first.
        """

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        """A copy of a tensor's values as its layout shows them. Raises BackendError unless they are plain."""

    def contiguous(self, tensor: Tensor) -> Tensor:
        """The tensor itself unless it is a view, else a copy. Raises BackendError for a view of what is not plain."""

    def is_plain(self, tensor: Tensor) -> bool:
        """Whether `to_numpy` can read it: it is neither a packed weight, nor a cache, nor rows rounded to int8."""

    def kernel(self, call: Call, regime: str) -> Any | None:
        """The kernel for a call in a regime; None means "not mine": the reference runs it, and `doctor` counts it."""

    def compile(self, graph: Graph) -> Program | None:
        """Take a whole graph, as vendors with a graph engine may; None leaves it to `kernel` and `program`."""

    def program(self, graph: Graph, regime: str, place: Place) -> Program:
        """Make a graph runnable for steps of one regime; `place` is there for those who want an arena."""

    def limits(self) -> Mapping[str, float]:
        """Measured now, the best of several times: stream_bytes_s, int8_dot_ops_s, f32_ops_s; of reading
        stream_median_bytes_s too."""

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""

    def close(self) -> None:
        """Free threads and memory."""
