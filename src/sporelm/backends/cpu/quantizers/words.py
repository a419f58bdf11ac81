"""Integers of blocks to the words that lie in files, and the weights of values; one block a lane."""

from collections.abc import Sequence
from typing import NamedTuple

from sporelm.backends.cpu.jit import Builder, Val
from sporelm.backends.cpu.quantizers.columns import Column

VALUES = 256


class Bits(NamedTuple):
    """Part of a byte: (integer >> right & mask) << left, of the integer `past` places on."""

    past: int
    right: int
    mask: int
    left: int


def pack_bytes(k: Builder, integers: Column, first: int, parts: Sequence[Bits], words: Column) -> None:
    """Words of four bytes each, byte b made of the parts of integers `first` + b on."""
    with k.range(words.count) as word:
        total = k.const(k.vi, 0)
        for byte in range(4):
            for part in parts:
                integer = integers[word * 4 + (first + part.past + byte)]
                bits = (integer >> part.right if part.right else integer) & part.mask
                total = total | (bits << (8 * byte + part.left))
        words[word] = total


def pack_pairs(k: Builder, integers: Column, words: Column, right: int = 0) -> None:
    """Two bits of each integer, in 16 words as packing.join_bit_pairs lays them out."""
    for half in range(2):
        parts = [Bits(32 * pair, right, 3, 2 * pair) for pair in range(4)]
        pack_bytes(k, integers, 128 * half, parts, words.part(8 * half, 8))


def pack_planes(k: Builder, integers: Column, words: Column, bit: int) -> None:
    """One bit of each integer, in 8 words as packing.join_bit_planes lays them out."""
    pack_bytes(k, integers, 0, [Bits(32 * plane, bit, 1, plane) for plane in range(8)], words)


def pack_nibbles(k: Builder, integers: Column, words: Column, run: int) -> None:
    """The low four bits of each integer, in 32 words as packing.join_nibbles lays them out."""
    parts = [Bits(0, 0, 15, 0), Bits(run, 0, 15, 4)]
    for number in range(128 // run):
        pack_bytes(k, integers, 2 * run * number, parts, words.part(run // 4 * number, run // 4))


def sum_of_squares(k: Builder, x: Column) -> Val:
    """The sum of a column's squares."""
    total = k.zero(k.vf)
    with k.range(x.count) as at:
        value = x[at]
        total.set(total.value + value * value)
    return total.value


def weigh(k: Builder, x: Column, weights: Column, times: float) -> None:
    """Importance in `weights` becomes importance * sqrt(times * mean square of the block + value^2)."""
    mean = sum_of_squares(k, x) * times / float(VALUES)
    with k.range(VALUES) as at:
        value = x[at]
        weights[at] = weights[at] * k.sqrt(mean + value * value)


def sum_of(k: Builder, numbers: Column) -> Val:
    """The sum of a column."""
    total = k.zero(k.vf)
    with k.range(numbers.count) as at:
        total.set(total.value + numbers[at])
    return total.value
