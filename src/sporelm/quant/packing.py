"""Fields inside a block: float16 numbers, words, nibbles and single bits, all little-endian."""

import numpy as np
from numpy.typing import NDArray

BIT_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]


def read_halves(blocks: NDArray[np.uint8], offset: int, count: int = 1) -> NDArray[np.float32]:
    """Read `count` float16 numbers at a byte offset of every block: uint8 [n, nbytes] -> float32 [n, count]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2 * count]).view("<f2").astype(np.float32)


def read_words(blocks: NDArray[np.uint8], offset: int, count: int, nbytes: int) -> NDArray[np.unsignedinteger]:
    """Read `count` unsigned numbers of `nbytes` bytes at a byte offset of every block: uint8 [n, ...] -> [n, count]."""
    return np.ascontiguousarray(blocks[:, offset : offset + nbytes * count]).view(f"<u{nbytes}")


def to_halves(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round float32 [n, count] to float16, as bytes [n, 2 * count]; infinite beyond its range (65504)."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(numbers.astype("<f2")).view(np.uint8)


def list_words(offset: int, count: int, nbytes: int = 2) -> tuple[tuple[int, int], ...]:
    """List `count` consecutive words of `nbytes` bytes in the form of `QuantFormat.words`."""
    return tuple((offset + nbytes * number, nbytes) for number in range(count))


def split_nibbles(packed: NDArray[np.uint8], run: int) -> NDArray[np.uint8]:
    """Unpack nibbles, uint8 [n, bytes] -> [n, 2 * bytes]: for each `run` bytes the low nibbles, then the high ones."""
    n, nbytes = packed.shape
    runs = packed.reshape(n, nbytes // run, 1, run)
    return np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=2).reshape(n, 2 * nbytes)


def join_nibbles(nibbles: NDArray[np.uint8], run: int) -> NDArray[np.uint8]:
    """The inverse of `split_nibbles`: the low 4 bits of uint8 [n, 2 * bytes] -> [n, bytes]."""
    n, width = nibbles.shape
    runs = nibbles.reshape(n, width // (2 * run), 2, run)
    return (runs[:, :, 0] & np.uint8(15) | runs[:, :, 1] << np.uint8(4)).reshape(n, width // 2)


def split_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack bits, uint8 [n, 4] -> 0 or 1, uint8 [n, 32]: value j is bit j of the 32-bit word."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def join_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_bits`: any value except 0 becomes 1."""
    return np.packbits(bits, axis=1, bitorder="little")


def split_bit_planes(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack bits, uint8 [n, 32] -> 0 or 1, uint8 [n, 256]: value 32 * g + j is bit g of byte j."""
    return np.unpackbits(packed.reshape(-1, 1, 32), axis=1, bitorder="little").reshape(-1, 256)


def join_bit_planes(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_bit_planes`: any value except 0 becomes 1."""
    return np.packbits(bits.reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)


def split_bit_pairs(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack bit pairs, uint8 [n, 64] -> [n, 256]: value 128 * h + 32 * g + j is the g-th pair of byte 32 * h + j."""
    return (packed.reshape(-1, 2, 1, 32) >> BIT_PAIRS & np.uint8(3)).reshape(-1, 256)


def join_bit_pairs(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_bit_pairs`: uint8 [n, 256], each below 4, -> [n, 64]."""
    return np.bitwise_or.reduce(pairs.reshape(-1, 2, 4, 32) << BIT_PAIRS, axis=2).reshape(-1, 64)


def spread_bits(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Unpack fields of `width` bits, lowest first: uint8 [n, bytes] -> uint8 [n, bytes * 8 / width]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    return (packed[:, :, None] >> shifts & np.uint8((1 << width) - 1)).reshape(-1, packed.shape[1] * len(shifts))


def split_scales(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Unpack the eight 6-bit scales and eight 6-bit minimums in [n, 12]: two uint8 [n, 8].

    Bytes 0 to 3 hold scales 0 to 3 and, in their upper two bits, the upper bits of scales 4 to 7. Bytes 4 to 7 hold the
    minimums in the same way. Bytes 8 to 11 hold the lower four bits of scales 4 to 7 and, as high nibbles, of minimums
    4 to 7.
    """
    six = packed[:, :8] & np.uint8(63)
    upper = packed[:, :8] >> np.uint8(6) << np.uint8(4)
    lower = packed[:, 8:]
    scales = np.concatenate([six[:, :4], upper[:, :4] | lower & np.uint8(15)], axis=1)
    minimums = np.concatenate([six[:, 4:], upper[:, 4:] | lower >> np.uint8(4)], axis=1)
    return scales, minimums


def join_scales(scales: NDArray[np.uint8], minimums: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `split_scales`: two uint8 [n, 8], each below 64, -> [n, 12]."""
    upper = [numbers[:, :4] | numbers[:, 4:] >> np.uint8(4) << np.uint8(6) for numbers in (scales, minimums)]
    lower = scales[:, 4:] & np.uint8(15) | minimums[:, 4:] << np.uint8(4)
    return np.concatenate([*upper, lower], axis=1)


def scale_groups(
    factors: NDArray[np.float32], multiples: NDArray[np.float32], numbers: NDArray[np.integer] | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return factor * multiple * number, with one factor per block and one multiple per group of numbers.

    float32 [n, 1], float32 [n, groups], numbers [n, values] -> float32 [n, values]; factor * multiple is rounded first.
    """
    groups = multiples.shape[1]
    width = numbers.shape[1]
    with np.errstate(invalid="ignore"):  # an infinite factor times 0 is NaN, which loaders check for
        steps = factors * multiples
        values = numbers.astype(np.float32).reshape(-1, groups, width // groups) * steps[:, :, None]
    return values.reshape(numbers.shape)
