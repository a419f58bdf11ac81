"""The interface of a format's panels to the kernels."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, f32, i8, nbytes, vec
from sporelm.backends.cpu.targets.cpu_target import CpuTarget

Vector = Callable[[], Val]


class Panels:
    """A format on one target. `k_step` columns form a group of `group_bytes` bytes."""

    name = ""
    family = ""  # of formats whose kernels have the same tiles
    k_step = 1
    row_block = 0  # bytes of a group in a row of the file, of formats that are packed by `pack_row`

    def __init__(self, target: CpuTarget) -> None:
        self.target, self.lanes = target, target.lanes

    @property
    def group_bytes(self) -> int:
        """Return the bytes of one group of a panel."""
        raise NotImplementedError(f"{type(self).__name__} does not implement group_bytes")

    def groups(self, width: int) -> int:
        """Return the number of groups in a row of `width` columns."""
        return -(-width // self.k_step)

    def panel_bytes(self, width: int) -> int:
        return (self.groups(width) * self.group_bytes + 63) // 64 * 64

    def panels(self, rows: int) -> int:
        return -(-rows // self.lanes)

    def packed_bytes(self, rows: int, width: int) -> int:
        return self.panels(rows) * self.panel_bytes(width)

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        """Move one group of every row (addresses `rows`, existing where `present`) to `target`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement pack_group")

    def pack_row(self, k: Builder, block: Val, present: Val, lane: Val, group: Val, scratch: Val) -> None:
        """Move one row's part of a group, at `block`, to its lane; zeros for a row that is not `present`.

        `scratch` is memory of `k_step` bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement pack_row")

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        """Return the `k_step` values of one row's group as f32 vectors of `lanes`; for `k_step` 1 one scalar."""
        raise NotImplementedError(f"{type(self).__name__} does not implement row_values")


class FloatPanels(Panels):
    """Formats that are multiplied in f32: [width][lanes] of `element`, one vector of rows per column."""

    family = "float"
    element: Any = f32  # the type in memory

    @property
    def group_bytes(self) -> int:
        return nbytes(self.element) * self.lanes

    def widened(self, k: Builder, stored: Val) -> Val:
        """Widen a stored value to f32, a scalar or a vector."""
        raise NotImplementedError(f"{type(self).__name__} does not implement widened")

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        k.store(gather(k, self.element, rows, present, group * nbytes(self.element)), target)

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        place = group * self.group_bytes + lane * nbytes(self.element)
        return [self.widened(k, k.load(self.element, panel, place))]

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        """Return one column of the panel's rows, at a byte offset: f32 vector."""
        return self.widened(k, k.load(vec(self.element, self.lanes), panel, offset))


class Block(NamedTuple):
    """A block of 32 columns of a panel: eight vectors with four bytes per lane, in order of k, and the factors of its
    parts.

    Each part is emitted when it is called, so that registers hold it only where it is used.
    """

    word: Callable[[int], Val]  # i32 vector, four bytes a lane
    scale: Callable[[int], Val]  # f32 vector: the scale of a part
    offset: Vector | None = None  # f32 vector: value = scale * (byte - zero) + offset
    stored: Val | None = None  # address of the eight vectors if they are contiguous


class IntegerPanels(Panels):
    """Formats whose bytes are multiplied as integers."""

    activation = ""  # the kind of rows they multiply
    largest = 0  # greatest magnitude of a byte; cpu_target.SIGNED: bytes are signed


class BlockPanels(IntegerPanels):
    """Formats of 32-value blocks; rows in records of `activation_records.RECORD` bytes.

    `parts` halves of a block, or the whole block, have a scale of their own. `file_blocks` of them form a block of the
    file; a group holds whole blocks of the file.
    """

    family = "block"
    activation = "int8/32"
    blocks = 1  # blocks per group: 1, 2, or a divisor of any row's number of blocks
    parts = 1
    file_blocks = 1
    has_offset = False

    @property
    def zero(self) -> int:
        """Return the byte that stands for 0."""
        return 0

    def block_of_rows(
        self, k: Builder, present: list[Val], group: Val, index: int, width: Val, nbytes: int
    ) -> tuple[list[Val], Val]:
        """Return which rows have block `index` of a group, and the offset of the file's block, of `nbytes` bytes.

        Past the last block no row has one, and the offset is the first block's, which can be read.
        """
        exists = group * self.k_step + 32 * index < width
        there = [Val(k, k.ir.and_(row.raw, exists.raw)) for row in present]
        before = group * (self.blocks // self.file_blocks) + index // self.file_blocks
        return there, k.select(exists, before * nbytes, k.index(0))

    def block(self, k: Builder, group: Val, index: int) -> Block:
        """Return block `index` of the group at `group`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement block")


class SuperBlock(NamedTuple):
    """A super-block of 256 columns of a panel in runs of equal length, with an integer scale per run, and one or two
    factors.

    With minima, value = factor * scale[run] * byte + pair_factor * pair[run]; without, value = factor * scale[run] *
    (byte - middle) and pair[run] is scale[run]. In both cases the part that does not depend on the byte is computed
    from the activations' sums, two runs at once as i16. Without scales of runs all scales are 1.
    """

    word: Callable[[int], Val]  # i32 vector: word 0..63, four bytes a lane
    scale: Callable[[int], Val] | None  # i32 vector: scale of a run
    pair: Callable[[int], Val]  # i32 vector of two i16: the pair values of runs 2i and 2i + 1
    factor: Vector  # f32 vector
    pair_factor: Vector | None = None  # f32 vector


class SuperPanels(IntegerPanels):
    """Super-blocks of 256 values; rows in records of `activation_records.SUPER_RECORD` bytes."""

    family = "super"
    activation = "int8/256"
    k_step = 256
    runs = 8
    scaled = True  # runs have scales
    has_minima = False
    middle = 0  # the byte that stands for 0, of formats without minima

    @property
    def words(self) -> int:
        """Return the words of a run; without scales, of a unit that is multiplied together."""
        return 64 // self.runs if self.scaled else 8

    def for_many(self) -> "SuperPanels":
        """Return the same panels in the form in which many tokens are multiplied, after unpacking."""
        return self

    def super_block(self, k: Builder, group: Val) -> SuperBlock:
        """Return the super-block at `group`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement super_block")


def gather(k: Builder, kind: object, rows: list[Val], present: list[Val], offset: Val) -> Val:
    """Return one element of each row, at a byte offset from its address, as a vector; zero for rows that do not
    exist."""
    zero = k.const(kind, 0)
    return k.vector(
        [k.select(there, k.load(kind, row, offset, align=1), zero) for row, there in zip(rows, present, strict=True)]
    )


def shift(bits: Val, left: int) -> Val:
    """Shift bits to the left, or to the right where `left` is negative."""
    return bits << left if left > 0 else bits >> -left if left < 0 else bits


def byte_values(k: Builder, words: list[Val], *, signed: bool, table: Sequence[int] = ()) -> list[Val]:
    """Return eight i32 of four bytes each, or of indices into a table of bytes, as f32 vectors of `lanes` values in
    order."""
    flat = k.vector(words).bits(vec(i8, 32))
    if table:
        flat = k.target.lookup(k, table, flat)
    parts = [k.shuffle(flat, flat, list(range(start, start + k.lanes))) for start in range(0, 32, k.lanes)]
    return [(part.sext(k.vi) if signed else part.zext(k.vi)).to_float() for part in parts]
