"""Entries of a program, and the emitter with which lowerings add them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.runtime.tensor_storage import row_bytes
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.ops.spec import Extent, Symbol, require_fixed, spec_of


@dataclass
class KernelEntry:
    """One kernel over `count * factor` items."""

    kernel: Kernel
    fields: dict[str, Any]  # value: an int, a float, or a Cell
    count: "Cell"
    factor: int = 1
    grain: int = 1
    rowwise: bool = False  # whether the op is rowwise
    guard: tuple["Cell", int, int] | None = None  # skipped unless the cell lies in this range


class ChunkCount(NamedTuple):
    """The number of chunks of a payload: rows of `width` numbers in chunks of `chunk` numbers, at most `max_count`."""

    width: int
    chunk: int
    max_count: int

    def of(self, rows: int) -> int:
        return min(self.max_count, -(-rows * self.width // self.chunk))


@dataclass(frozen=True)
class Cell:
    """An i64 that kernels read and that each step sets.

    It is a symbol's extent, a number derived from extents, a constant, or an i64 that a kernel of the step writes to
    `address`. With `chunks` it is the number of chunks of as many rows.
    """

    name: str
    constant: int | None = None
    address: int | None = None
    chunks: ChunkCount | None = None


class LoweringContext(Protocol):
    """A program as lowerings see it: the addresses of values, and memory of its own."""

    target: CpuTarget
    threads: int

    def address(self, value: Any) -> int: ...
    def reserve(self, nbytes: int) -> int: ...
    def register_sequences(
        self, starts: Any, lengths: Any
    ) -> int: ...  # a number for the cells derived from both; lengths: or None
    def store_words(self, values: Sequence[int]) -> int: ...  # the address of these numbers as i64
    def register_group(self, group: SharedMemoryGroup) -> None: ...  # which the program's steps use


def extent_cell(extent: Extent) -> Cell:
    return Cell(extent.name) if isinstance(extent, Symbol) else Cell(str(extent), extent)


def max_extent(extent: Extent) -> int:
    return extent.high if isinstance(extent, Symbol) else extent


def row_stride(value: Any) -> int:
    """Return the bytes from one row of a value to the next."""
    spec = spec_of(value)
    return row_bytes(spec.bound[-1], spec.dtype)


def row_extents(value: Any) -> tuple[Extent, int, int]:
    """Return the tokens, the rows per token, and the width of float32 [tokens, width] or [tokens, k, width]."""
    shape = spec_of(value).shape
    return shape[0], prod(map(require_fixed, shape[1:-1])), require_fixed(shape[-1])


@dataclass
class Emitter:
    """Adds entries in order."""

    context: LoweringContext
    entries: list[KernelEntry] = field(default_factory=list)
    rowwise: bool = False  # whether the current call is rowwise
    shared_memory: dict[str, tuple[int, int]] = field(default_factory=dict)  # address and bytes by name
    shared_results: dict[Any, Any] = field(
        default_factory=dict
    )  # results that calls prepared for a value, by its id, for later calls

    def emit(self, kernel: Kernel, fields: dict[str, Any], count: Cell, **more: Any) -> None:
        self.entries.append(KernelEntry(kernel, fields, count, rowwise=self.rowwise, **more))

    def address(self, value: Any) -> int:
        return self.context.address(value)

    def shared_scratch(self, name: str, nbytes: int) -> int:
        """Return the address of scratch memory of this name, which no call uses beyond its own entries."""
        address, held = self.shared_memory.get(name, (0, 0))
        if held < nbytes:
            address = self.context.reserve(nbytes)
            self.shared_memory[name] = (address, nbytes)
        return address

    def vectors(self, width: int) -> int:
        return -(-width // self.context.target.lanes)

    def row_grain(self, extent: Extent, each: int = 1) -> int:
        """Return how many rows, `each` per token, a thread takes at once in cheap rowwise kernels."""
        return max(1, min(8, max_extent(extent) * each // (4 * self.context.threads)))
