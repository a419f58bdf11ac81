"""Blocks of 256 values whose groups have small integer scales of their own (ggml's K-quants).

Values and scales are rounded as ggml does, with importance and without, bit for bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.packing import join_scales, read_halves, split_scales
from sporelm.quant.search import (
    FINE,
    Floats,
    Tries,
    nearest_int,
    own_weights,
    search_above_minimum,
    search_around_zero,
    searched_integers,
)
from sporelm.quant.sums import sum_down
from sporelm.quant.turns import search_above_zero

VALUES = 256
VALUES_AT_ONCE = 1 << 15  # 128 KiB an array, so that the searches stay in the cache
Arrays = TypeVar("Arrays", bound=tuple[Any, ...])
HALF = 32  # Q6_K's integers are -32 to 31


class Grouped(NamedTuple):
    """Rounded blocks: value = integer * (factors[0] * scale) - factors[1] * minimum."""

    factors: NDArray[np.float32]  # [n, 2]
    scales: NDArray[np.uint8]  # [n, 12], scales and minimums as `packing.join_scales` lays them out
    integers: NDArray[np.uint8]  # [n, 256]


class SignedGrouped(NamedTuple):
    """Rounded blocks: value = (integer - 32) * (factor * scale)."""

    factors: NDArray[np.float32]  # [n, 1]
    scales: NDArray[np.int8]  # [n, 16]
    integers: NDArray[np.uint8]  # [n, 256], below 64


def apply_scales(blocks: NDArray[np.uint8], integers: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of blocks that begin with two float16 factors and 12 bytes of scales and minimums.

    Blocks uint8 [n, nbytes], integers uint8 [n, 256] -> float32 [n, 256].
    """
    factors = read_halves(blocks, 0, 2)
    scales, minimums = split_scales(blocks[:, 4:16])
    with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders look for
        steps = factors[:, :1] * scales.astype(np.float32)
        drops = factors[:, 1:] * minimums.astype(np.float32)
        groups = integers.reshape(-1, 8, 32).astype(np.float32)
        return (groups * steps[:, :, None] - drops[:, :, None]).reshape(-1, VALUES)


def in_parts(
    round_blocks: Callable[..., Arrays], values: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> Arrays:
    """What `round_blocks` makes of values and, where given, their weights, called for few blocks at a time.

    float32 [n, size] each -> arrays [n, ...]. Infinities come and go in the searches, as they do in C; none decides,
    and none is warned of.
    """
    step = VALUES_AT_ONCE // values.shape[1]
    starts = range(0, max(1, len(values)), step)
    both = (values,) if weights is None else (values, np.broadcast_to(weights, values.shape))
    with np.errstate(all="ignore"):
        parts = [round_blocks(*(numbers[at : at + step] for numbers in both)) for at in starts]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]


def weigh(values: Floats, importance: Floats, size: int, parts: float = 2) -> tuple[Floats, Floats]:
    """How much values weigh by their importance, for groups of `size` values: float32 [n, 256] each.

    importance * sqrt(parts * mean square of the block + value^2), and the sums of that over each group, both with
    groups as columns: [size, groups] and [256 / size, n].
    """
    squares = sum_down(columns(values * values, VALUES))
    mean = np.repeat(np.float32(parts) * squares / np.float32(VALUES), VALUES // size)
    x = columns(values, size)
    weights = columns(importance, size) * np.sqrt(mean + x * x)
    return weights, np.ascontiguousarray(sum_down(weights).reshape(-1, VALUES // size).T)


def round_in_groups(values: Floats, importance: Floats | None, levels: int, tries: Tries) -> Grouped:
    """Round blocks of eight groups that have scales and minimums: float32 [n, 256]; for the rest see the search.

    `tries` are those without importance.
    """
    return Grouped(*in_parts(partial(_round_in_groups, levels=levels, tries=tries), values, importance))


def _round_in_groups(values: Floats, importance: Floats | None = None, *, levels: int, tries: Tries) -> Grouped:
    """`round_in_groups` for few blocks."""
    x = columns(values, 32)
    if importance is None:
        found = search_above_minimum(x, own_weights(x), levels, tries)
        parts = [_six_bits(numbers.reshape(-1, 8)) for numbers in (found.scale, found.drop)]
        factors = np.divide(np.concatenate([largest for largest, _ in parts], axis=1), np.float32(63))
        packed = join_scales(parts[0][1], parts[1][1])
    else:
        weights, sums = weigh(values, importance, 32)
        found = search_above_minimum(x, weights, levels, FINE)
        fitted = [search_above_zero(columns(part.reshape(-1, 8), 8), sums, 63) for part in (found.scale, found.drop)]
        factors = np.stack([factor for factor, _ in fitted], axis=1)
        most = np.uint8(63 if levels > 15 else 255)  # ggml limits those of Q5_K and not those of Q4_K
        packed = join_scales(*(np.minimum(integers.T, most) for _, integers in fitted))
    stored = factors.astype(np.float16).astype(np.float32)
    step, drop = (
        (stored[:, n : n + 1] * part.astype(np.float32)).ravel() for n, part in enumerate(split_scales(packed))
    )
    integers = np.clip(nearest_int((x + drop) / step), 0, levels).astype(np.uint8)
    lost = step == 0  # a scale that rounds to 0: only the minimum counts, the search's integers stay
    if lost.any():
        rounded = nearest_int((x[:, lost] - found.base[lost]) * found.inverse[lost])
        integers[:, lost] = np.clip(rounded, 0, levels).astype(np.uint8)
    return Grouped(factors, packed, rows(integers))


def _six_bits(numbers: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The largest of each block's numbers and all as 0 to 63 parts of it: float32 [n, 8] -> [n, 1], uint8 [n, 8]."""
    largest = np.where(numbers > 0, numbers, np.float32(0)).max(axis=1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
    # Negative numbers wrap around in uint8 and so become 63, as in ggml.
    return largest, np.minimum(nearest_int(inverse * numbers).astype(np.uint8), np.uint8(63))


def round_in_signed_groups(values: Floats, importance: Floats | None = None) -> SignedGrouped:
    """Round blocks of sixteen groups that have signed 8-bit scales: float32 [n, 256]; values weigh their importance."""
    return SignedGrouped(*in_parts(_round_in_signed_groups, values, importance))


def _round_in_signed_groups(values: Floats, importance: Floats | None = None) -> SignedGrouped:
    """`round_in_signed_groups` for few blocks."""
    x = columns(values, 16)
    found = search_around_zero(x, HALF, None if importance is None else columns(importance, 16))
    numbers = found.scale.reshape(-1, 16)
    magnitudes = np.where(np.isnan(numbers), np.float32(0), np.abs(numbers))
    first = magnitudes.argmax(axis=1)[:, None]
    is_zero = np.take_along_axis(magnitudes, first, axis=1) < np.float32(1e-15)
    inverse = np.float32(-128) / np.take_along_axis(numbers, first, axis=1)
    factors = np.where(is_zero, np.float32(0), np.float32(1) / inverse)
    scales = np.minimum(nearest_int(inverse * numbers), 127).astype(np.int8)
    scales[is_zero[:, 0]] = 0
    step = (factors.astype(np.float16).astype(np.float32) * scales.astype(np.float32)).ravel()
    integers = (np.clip(nearest_int(x / step), -HALF, HALF - 1) + HALF).astype(np.uint8)
    lost = step == 0  # a scale that rounds to 0: the search's integers stay
    if lost.any():
        integers[:, lost] = searched_integers(x, found, HALF)[:, lost]
    result = rows(integers)
    result[is_zero[:, 0]] = 0
    return SignedGrouped(factors, scales, result)


def columns(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Groups of `size` values as columns: [n, 256] -> contiguous [size, n * 256 / size]."""
    return np.ascontiguousarray(values.reshape(-1, size).T)


def rows(integers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The opposite of `columns`: [size, groups] -> contiguous [n, 256]."""
    return np.ascontiguousarray(integers.T).reshape(-1, VALUES)
