"""Blocks side by side, one a lane: scratch memory in which vector i holds number i of `lanes` blocks.

A rounding algorithm is written as for one block, with every sum in the order of the C loop, and runs on all lanes at
once. So results equal those of the numpy reference bit for bit, on every target.
"""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, i8, i16, i32, i64, nbytes, vec
from sporelm.backends.cpu.jit.builder import Offset
from sporelm.errors import BackendError

SCRATCH_BYTES = 1 << 19  # bytes that a quantizer may use
_STORED: dict[int, Any] = {1: i8, 2: i16, 4: i32}


class Column:
    """`count` vectors in memory, of f32 or i32: number i of each lane's block."""

    def __init__(self, k: Builder, kind: Any, base: Val, count: int) -> None:
        self.k, self.kind, self.base, self.count = k, kind, base, count

    def __getitem__(self, index: Offset) -> Val:
        return self.k.load(self.kind, self.base, index * nbytes(self.kind))

    def __setitem__(self, index: Offset, value: Val) -> None:
        self.k.store(value, self.base, index * nbytes(self.kind))

    def slice(self, start: Offset, count: int) -> "Column":
        """Return `count` vectors from `start` on."""
        return Column(self.k, self.kind, self.k.at(self.base, start * nbytes(self.kind)), count)


class BlockField:
    """`count` numbers of `width` bytes at `offset` of every block, to be set as i32 vectors."""

    def __init__(self, column: Column, offset: int, width: int) -> None:
        self.column, self.offset, self.width = column, offset, width

    def __setitem__(self, index: Offset, value: Val) -> None:
        self.column[index] = value

    def __getitem__(self, index: Offset) -> Val:
        return self.column[index]

    def write(self, k: Builder, lane: Val, block: Val) -> None:
        """Copy one lane's numbers to its block."""
        source, step = k.at(self.column.base, lane * 4), nbytes(k.vi)
        kind, count = _STORED[self.width], self.column.count
        if count <= 4:
            for index in range(count):
                number = k.load(i32, source, index * step)
                k.store(number if self.width == 4 else number.trunc(kind), block, self.offset + index * self.width, 1)
            return
        with k.range(count) as at:
            number = k.load(i32, source, at * step)
            k.store(number if self.width == 4 else number.trunc(kind), block, at * self.width + self.offset, 1)


class QuantizerWorkspace:
    """The working memory of a quantizer: scratch columns, and the fields of the blocks that it writes."""

    def __init__(self, k: Builder, scratch: Val) -> None:
        self.k = k
        self.fields: list[BlockField] = []
        self._scratch, self._used = scratch, 0

    def take(self, size: int) -> Val:
        """Return the address of `size` bytes of scratch memory."""
        start = self._used
        self._used += -(-size // 64) * 64
        if self._used > SCRATCH_BYTES:
            raise BackendError(f"a quantizer takes {self._used} bytes of scratch, there are {SCRATCH_BYTES}")
        return self.k.at(self._scratch, start)

    def floats(self, count: int) -> Column:
        """Return a column of f32."""
        return Column(self.k, self.k.vf, self.take(count * nbytes(self.k.vf)), count)

    def integers(self, count: int) -> Column:
        """Return a column of i32."""
        return Column(self.k, self.k.vi, self.take(count * nbytes(self.k.vi)), count)

    def words(self, offset: int, count: int = 1) -> BlockField:
        """Return a field of 32-bit words of the block, little-endian."""
        return self._field(offset, count, 4)

    def halves(self, offset: int, count: int = 1) -> BlockField:
        """Return a field of 16-bit words."""
        return self._field(offset, count, 2)

    def bytes(self, offset: int, count: int = 1) -> BlockField:
        """Return a field of bytes."""
        return self._field(offset, count, 1)

    def _field(self, offset: int, count: int, width: int) -> BlockField:
        self.fields.append(BlockField(self.integers(count), offset, width))
        return self.fields[-1]

    def half(self, values: Val) -> Val:
        """Return f32 as the bits of float16, in i32 vectors, for a field of `halves`."""
        return self.k.target.to_half(self.k, values).zext(self.k.vi)

    def from_half(self, bits: Val) -> Val:
        """Return the f32 that such bits stand for."""
        return self.k.target.from_half(self.k, bits.trunc(vec(i16, self.k.lanes)))

    def write(self, first: Val, count: Val, size: int) -> None:
        """Copy the fields to the blocks of `size` bytes of the first `count` lanes, which are contiguous."""
        with self.k.range(count) as lane:
            block = self.k.at(first, lane * size)
            for field in self.fields:
                field.write(self.k, lane, block)


class BlockAddresses:
    """The address of each lane's block."""

    def __init__(self, work: QuantizerWorkspace) -> None:
        self.k, self.base = work.k, work.take(8 * work.k.lanes)

    def set(self, lane: Val, address: Val) -> None:
        """Set one lane's address."""
        self.k.store(Val(self.k, self.k.ir.ptrtoint(address.raw, i64)), self.base, lane * 8)

    def advance(self, size: int) -> None:
        """Advance all addresses by `size` bytes."""
        with self.k.range(self.k.lanes) as lane:
            self.k.store(self.k.load(i64, self.base, lane * 8) + size, self.base, lane * 8)

    def gather(self, column: Column) -> None:
        """Fill a column of f32 with the numbers at the addresses, in order."""
        k = self.k
        step = 4 * k.lanes
        with k.range(column.count // k.lanes) as tile:
            lines = [k.load(k.vf, k.load_pointer(self.base, 8 * lane), tile * step) for lane in range(k.lanes)]
            for index, line in enumerate(transpose(k, lines)):
                column[tile * k.lanes + index] = line


def transpose(k: Builder, lines: list[Val]) -> list[Val]:
    """Transpose a square of vectors by swapping off-diagonal blocks of doubling size."""
    size, step = len(lines), 1
    while step < size:
        low = [lane if not lane & step else size + lane - step for lane in range(size)]
        high = [lane + step if not lane & step else size + lane for lane in range(size)]
        for row in range(size):
            if not row & step:
                above, below = lines[row], lines[row + step]
                lines[row], lines[row + step] = k.shuffle(above, below, low), k.shuffle(above, below, high)
        step *= 2
    return lines


# ---- arithmetic that quantizers share

SHIFT = 12582912.0  # 1.5 * 2**23


def nearest_int(k: Builder, x: Val) -> Val:
    """Round to i32, ties to even; infinities, NaN and magnitudes beyond 2^22 give the result of the bit pattern, as in
    ggml."""
    return ((x + SHIFT).bits(k.vi) & 0x007FFFFF) - 0x00400000


def nearest_between(k: Builder, x: Val, low: int, high: int) -> Val:
    """Clamp `nearest_int` to low..high, as i32."""
    return k.max(k.min(nearest_int(k, x), high), low)


def inverse_or_zero(k: Builder, scale: Val) -> Val:
    """Return 1 / scale, or 0 where that is not finite."""
    inverse = k.const(k.vf, 1.0) / scale
    return k.select(k.fabs(inverse) < float("inf"), inverse, k.const(k.vf, 0.0))


def pack_bits(numbers: list[Val], bits: int = 8) -> Val:
    """Pack numbers below 2**bits in i32 vectors, the first in the lowest bits."""
    whole = numbers[0]
    for place, number in enumerate(numbers[1:], 1):
        whole = whole | number << (bits * place)
    return whole


def store_nibbles(field: BlockField, integers: Column, first: Offset = 0) -> None:
    """Write the low four bits of 32 numbers into four words from `first` on: 16 as low nibbles, the others as high
    ones."""
    for word in range(4):
        pairs = [integers[at] & 15 | (integers[at + 16] & 15) << 4 for at in range(4 * word, 4 * word + 4)]
        field[first + word] = pack_bits(pairs)


def store_fifth_bits(field: BlockField, integers: Column) -> None:
    """Write bit 4 of 32 numbers into one word, the first as the lowest bit."""
    field[0] = pack_bits([integers[at] >> 4 & 1 for at in range(32)], 1)
