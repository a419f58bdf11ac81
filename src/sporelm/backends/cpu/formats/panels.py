"""What the kernels ask of a format."""

from collections.abc import Callable
from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val, i8, vec

RECORD = 48  # bytes of 32 rounded activations, which kernels/quantize.py writes
X_SCALE, X_SCALED_SUM, X_BIAS = 32, 36, 40  # in a record: f32 scale, f32 scale * sum(q), i32 -128 * sum(q)


class Panels:
    """A format on one target. `k_step` columns stand together in a group of `group_bytes` bytes."""

    name = ""
    k_step = 1

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes

    @property
    def group_bytes(self) -> int:
        """Bytes of one group of a panel."""
        raise AttributeError(f"{type(self).__name__} must say how large its groups are")

    def groups(self, width: int) -> int:
        """Groups in a row of `width` columns."""
        return -(-width // self.k_step)

    def panel_bytes(self, width: int) -> int:
        return (self.groups(width) * self.group_bytes + 63) // 64 * 64

    def panels(self, rows: int) -> int:
        return -(-rows // self.lanes)

    def packed_bytes(self, rows: int, width: int) -> int:
        return self.panels(rows) * self.panel_bytes(width)

    def pack_group(self, k: Builder, rows: list[Val], present: list[Val], group: Val, target: Val, width: Val) -> None:
        """Move one group of every row (addresses `rows`, of which those `present` exist) to `target`."""
        raise AttributeError(f"{type(self).__name__} must say how it is packed")

    def row_values(self, k: Builder, panel: Val, lane: Val, group: Val) -> list[Val]:
        """The `k_step` values of one row's group as f32 vectors of `lanes`; for `k_step` 1 one scalar."""
        raise AttributeError(f"{type(self).__name__} must say how a row is read")


class FloatPanels(Panels):
    """Formats that are multiplied in f32: k-major, one vector of rows a column."""

    element = 4

    @property
    def group_bytes(self) -> int:
        return self.element * self.lanes

    def column(self, k: Builder, panel: Val, offset: int | Val = 0) -> Val:
        """f32 vector: one column of the panel's rows, at a byte offset."""
        raise AttributeError(f"{type(self).__name__} must say how a column is read")


class Block(NamedTuple):
    """32 columns of a panel: eight vectors whose lanes hold four unsigned bytes, in order of k, and their factors.

    Each part is emitted when it is asked for, so that registers hold it only where it is used.
    """

    word: Callable[[int], Val]  # i32 vector, four bytes a lane
    scale: Callable[[], Val]  # f32 vector
    offset: Callable[[], Val] | None  # f32 vector: value = scale * byte + offset


class BlockPanels(Panels):
    """Formats of 32-value blocks that are multiplied as integers."""

    blocks = 1  # blocks a group
    biased = False  # bytes are the value + 128
    has_offset = False

    def block(self, k: Builder, group: Val, index: int) -> Block:
        """Block `index` of the group at `group`."""
        raise AttributeError(f"{type(self).__name__} must say how a block is read")


def gather(k: Builder, kind: object, rows: list[Val], present: list[Val], offset: Val) -> Val:
    """One element of each row, at a byte offset from its address, as a vector; zero for rows that do not exist."""
    zero = k.const(kind, 0)
    return k.vector(
        [k.select(there, k.load(kind, row, offset, align=1), zero) for row, there in zip(rows, present, strict=True)]
    )


def byte_values(k: Builder, words: list[Val], *, signed: bool) -> list[Val]:
    """Eight i32 of four bytes each, as f32 vectors of `lanes` values in order."""
    flat = k.vector(words).bits(vec(i8, 32))
    parts = [k.shuffle(flat, flat, list(range(start, start + k.lanes))) for start in range(0, 32, k.lanes)]
    return [(part.sext(k.vi) if signed else part.zext(k.vi)).to_float() for part in parts]
