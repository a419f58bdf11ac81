"""Packing integers of blocks into the words of the file, and weights of values; one block a lane."""

from collections.abc import Sequence
from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.lane_columns import Column

BLOCK_VALUES = 256


class BitSlice(NamedTuple):
    """A part of a byte: (integer >> right & mask) << left, of the integer `past` positions on."""

    past: int
    right: int
    mask: int
    left_shift: int


def pack_bytes(k: Builder, integers: Column, first: int, parts: Sequence[BitSlice], words: Column) -> None:
    """Pack words of four bytes each; byte b consists of the parts of integers `first` + b on."""
    with k.range(words.count) as word:
        total = k.const(k.vi, 0)
        for byte in range(4):
            for part in parts:
                integer = integers[word * 4 + (first + part.past + byte)]
                bits = (integer >> part.right if part.right else integer) & part.mask
                total = total | (bits << (8 * byte + part.left_shift))
        words[word] = total


def pack_pairs(k: Builder, integers: Column, words: Column, right: int = 0) -> None:
    """Pack two bits of each integer, in 16 words in the layout of packing.join_bit_pairs."""
    for half in range(2):
        parts = [BitSlice(32 * pair, right, 3, 2 * pair) for pair in range(4)]
        pack_bytes(k, integers, 128 * half, parts, words.slice(8 * half, 8))


def pack_planes(k: Builder, integers: Column, words: Column, bit: int) -> None:
    """Pack one bit of each integer, in 8 words in the layout of packing.join_bit_planes."""
    pack_bytes(k, integers, 0, [BitSlice(32 * plane, bit, 1, plane) for plane in range(8)], words)


def pack_nibbles(k: Builder, integers: Column, words: Column, run: int) -> None:
    """Pack the low four bits of each integer, in 32 words in the layout of packing.join_nibbles."""
    parts = [BitSlice(0, 0, 15, 0), BitSlice(run, 0, 15, 4)]
    for number in range(128 // run):
        pack_bytes(k, integers, 2 * run * number, parts, words.slice(run // 4 * number, run // 4))


def sum_of_squares(k: Builder, x: Column) -> Val:
    """Return the sum of a column's squares."""
    total = k.zero(k.vf)
    with k.range(x.count) as at:
        value = x[at]
        total.set(total.value + value * value)
    return total.value


def weigh(k: Builder, x: Column, weights: Column, times: float) -> None:
    """Replace importance in `weights` by importance * sqrt(times * mean square of the block + value^2)."""
    mean = sum_of_squares(k, x) * times / float(BLOCK_VALUES)
    with k.range(BLOCK_VALUES) as at:
        value = x[at]
        weights[at] = weights[at] * k.sqrt(mean + value * value)


def sum_column(k: Builder, numbers: Column) -> Val:
    """Return the sum of a column."""
    total = k.zero(k.vf)
    with k.range(numbers.count) as at:
        total.set(total.value + numbers[at])
    return total.value
