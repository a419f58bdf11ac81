"""What a program runs: entries of kernels, and how the rules of ops add theirs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.storage import row_bytes
from sporelm.backends.cpu.targets import Target
from sporelm.ops.spec import Extent, Symbol, fixed, spec_of


@dataclass
class Entry:
    """One kernel over `count * factor` items."""

    kernel: Kernel
    fields: dict[str, Any]  # value: an int, a float, or a Cell
    count: "Cell"
    factor: int = 1
    grain: int = 1
    rowwise: bool = False  # of an op in ROW_BY_ROW
    guard: tuple["Cell", int, int] | None = None  # skipped unless the cell lies between


@dataclass(frozen=True)
class Cell:
    """A number known at each step: a symbol's extent, a derived one, a constant, or one that a kernel of the step
    writes to `place`, an i64."""

    name: str
    constant: int | None = None
    place: int | None = None


class Places(Protocol):
    """What lowering must know of a program: where values lie, and memory of its own."""

    target: Target
    threads: int

    def address(self, value: Any) -> int: ...
    def reserve(self, nbytes: int) -> int: ...
    def attended(self, starts: Any, lengths: Any) -> int: ...  # a number for their derived cells; lengths: or None
    def words(self, values: Sequence[int]) -> int: ...  # the address of these as i64


def cell_of(extent: Extent) -> Cell:
    return Cell(extent.name) if isinstance(extent, Symbol) else Cell(str(extent), extent)


def most(extent: Extent) -> int:
    return extent.high if isinstance(extent, Symbol) else extent


def stride_of(value: Any) -> int:
    """Bytes from one row of a value to the next."""
    spec = spec_of(value)
    return row_bytes(spec.bound[-1], spec.dtype)


def rows_of(value: Any) -> tuple[Extent, int, int]:
    """Of float32 [tokens, width] or [tokens, k, width]: the tokens, the rows of each, and the width."""
    shape = spec_of(value).shape
    return shape[0], prod(map(fixed, shape[1:-1])), fixed(shape[-1])


@dataclass
class Emitter:
    """Adds entries in order; what rules of ops work with."""

    places: Places
    entries: list[Entry] = field(default_factory=list)
    rowwise: bool = False  # whether the call at hand is row by row
    pieces: dict[str, tuple[int, int]] = field(default_factory=dict)  # shared memory: address and bytes
    prepared: dict[int, Any] = field(default_factory=dict)  # what calls made of a value, by its id, for later ones

    def emit(self, kernel: Kernel, fields: dict[str, Any], count: Cell, **more: Any) -> None:
        self.entries.append(Entry(kernel, fields, count, rowwise=self.rowwise, **more))

    def at(self, value: Any) -> int:
        return self.places.address(value)

    def shared(self, name: str, nbytes: int) -> int:
        """The address of memory of this name, for what no call keeps beyond its own entries."""
        address, held = self.pieces.get(name, (0, 0))
        if held < nbytes:
            address = self.places.reserve(nbytes)
            self.pieces[name] = (address, nbytes)
        return address

    def vectors(self, width: int) -> int:
        return -(-width // self.places.target.lanes)

    def row_grain(self, extent: Extent, each: int = 1) -> int:
        """Rows, `each` of a token, that a thread takes at once in cheap row-by-row kernels."""
        return max(1, min(8, most(extent) * each // (4 * self.places.threads)))
