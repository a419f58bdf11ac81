"""Super-blocks of 256 values whose groups have small integer scales (ggml's K-quants).

Values and scales are rounded bit for bit as in ggml, with and without importance.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.quant.column_sums import sum_columns
from sporelm.quant.coordinate_search import search_unsigned
from sporelm.quant.packing import join_scales, read_halves, split_scales
from sporelm.quant.scale_search import (
    FINE_CANDIDATES,
    Floats,
    ScaleCandidates,
    default_weights,
    quantize_signed,
    round_to_int,
    search_affine,
    search_signed,
)

VALUES = 256
CHUNK_VALUES = 1 << 15  # 128 KiB per array, so that the searches stay in the cache
Arrays = TypeVar("Arrays", bound=tuple[Any, ...])
HALF = 32  # Q6_K's integers range from -32 to 31


class AffineBlocks(NamedTuple):
    """Rounded blocks: value = integer * (factors[0] * scale) - factors[1] * minimum."""

    factors: NDArray[np.float32]  # [n, 2]
    scales: NDArray[np.uint8]  # [n, 12], scales and minimums in the layout of `packing.join_scales`
    integers: NDArray[np.uint8]  # [n, 256]


class SignedBlocks(NamedTuple):
    """Rounded blocks: value = (integer - 32) * (factor * scale)."""

    factors: NDArray[np.float32]  # [n, 1]
    scales: NDArray[np.int8]  # [n, 16]
    integers: NDArray[np.uint8]  # [n, 256], below 64


def apply_scales(blocks: NDArray[np.uint8], integers: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of blocks that begin with two float16 factors and 12 bytes of scales and minimums.

    Blocks uint8 [n, nbytes], integers uint8 [n, 256] -> float32 [n, 256].
    """
    factors = read_halves(blocks, 0, 2)
    scales, minimums = split_scales(blocks[:, 4:16])
    with np.errstate(invalid="ignore"):  # infinities become NaN, which loaders check for
        steps = factors[:, :1] * scales.astype(np.float32)
        drops = factors[:, 1:] * minimums.astype(np.float32)
        groups = integers.reshape(-1, 8, 32).astype(np.float32)
        return (groups * steps[:, :, None] - drops[:, :, None]).reshape(-1, VALUES)


def round_in_chunks(
    round_blocks: Callable[..., Arrays], values: NDArray[np.float32], weights: NDArray[np.float32] | None = None
) -> Arrays:
    """Call `round_blocks` for few blocks at a time, with their weights where given, and join the results.

    float32 [n, size] each -> arrays [n, ...]. Infinities occur inside the searches, as in C, without an effect on the
    result; numpy's warnings about them are silenced.
    """
    step = CHUNK_VALUES // values.shape[1]
    starts = range(0, max(1, len(values)), step)
    inputs = (values,) if weights is None else (values, np.broadcast_to(weights, values.shape))
    with np.errstate(all="ignore"):
        chunks = [round_blocks(*(array[start : start + step] for array in inputs)) for start in starts]
    return tuple(np.concatenate(arrays) for arrays in zip(*chunks, strict=True))  # type: ignore[return-value]


def weigh_groups(values: Floats, importance: Floats, size: int, parts: float = 2) -> tuple[Floats, Floats]:
    """Return the weights of values by their importance, for groups of `size` values: float32 [n, 256] each.

    The weights are importance * sqrt(parts * mean square of the block + value^2). Returns them and their sums over each
    group, both with groups as columns: [size, groups] and [256 / size, n].
    """
    squares = sum_columns(groups_to_columns(values * values, VALUES))
    mean = np.repeat(np.float32(parts) * squares / np.float32(VALUES), VALUES // size)
    x = groups_to_columns(values, size)
    weights = groups_to_columns(importance, size) * np.sqrt(mean + x * x)
    return weights, np.ascontiguousarray(sum_columns(weights).reshape(-1, VALUES // size).T)


def round_affine_groups(
    values: Floats, importance: Floats | None, levels: int, candidates: ScaleCandidates
) -> AffineBlocks:
    """Round blocks of eight groups with scales and minimums, float32 [n, 256], by `scale_search.search_affine`.

    `candidates` are used without importance, FINE_CANDIDATES with it.
    """
    round_blocks = partial(_round_affine_groups, levels=levels, candidates=candidates)
    return AffineBlocks(*round_in_chunks(round_blocks, values, importance))


def _round_affine_groups(
    values: Floats, importance: Floats | None = None, *, levels: int, candidates: ScaleCandidates
) -> AffineBlocks:
    """Round few blocks as `round_affine_groups` does."""
    x = groups_to_columns(values, 32)
    if importance is None:
        fit = search_affine(x, default_weights(x), levels, candidates)
        parts = [_to_six_bits(numbers.reshape(-1, 8)) for numbers in (fit.scale, fit.drop)]
        factors = np.divide(np.concatenate([largest for largest, _ in parts], axis=1), np.float32(63))
        packed = join_scales(parts[0][1], parts[1][1])
    else:
        weights, sums = weigh_groups(values, importance, 32)
        fit = search_affine(x, weights, levels, FINE_CANDIDATES)
        fitted = [
            search_unsigned(groups_to_columns(part.reshape(-1, 8), 8), sums, 63) for part in (fit.scale, fit.drop)
        ]
        factors = np.stack([factor for factor, _ in fitted], axis=1)
        maximum = np.uint8(63 if levels > 15 else 255)  # ggml caps the scales of Q5_K but not those of Q4_K
        packed = join_scales(*(np.minimum(integers.T, maximum) for _, integers in fitted))
    stored = factors.astype(np.float16).astype(np.float32)
    step, drop = (
        (stored[:, n : n + 1] * part.astype(np.float32)).ravel() for n, part in enumerate(split_scales(packed))
    )
    integers = np.clip(round_to_int((x + drop) / step), 0, levels).astype(np.uint8)
    is_lost = step == 0  # the scale rounds to 0, only the minimum counts: the integers of the search are kept
    if is_lost.any():
        rounded = round_to_int((x[:, is_lost] - fit.base[is_lost]) * fit.inverse[is_lost])
        integers[:, is_lost] = np.clip(rounded, 0, levels).astype(np.uint8)
    return AffineBlocks(factors, packed, columns_to_blocks(integers))


def _to_six_bits(numbers: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return each block's largest number, and all as 6-bit parts of it: float32 [n, 8] -> [n, 1], uint8 [n, 8]."""
    largest = np.where(numbers > 0, numbers, np.float32(0)).max(axis=1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
    # Negative numbers wrap around in uint8 and so become 63, as in ggml.
    return largest, np.minimum(round_to_int(inverse * numbers).astype(np.uint8), np.uint8(63))


def round_signed_groups(values: Floats, importance: Floats | None = None) -> SignedBlocks:
    """Round blocks of sixteen groups with signed 8-bit scales: float32 [n, 256]; values weigh their importance."""
    return SignedBlocks(*round_in_chunks(_round_signed_groups, values, importance))


def _round_signed_groups(values: Floats, importance: Floats | None = None) -> SignedBlocks:
    """Round few blocks as `round_signed_groups` does."""
    x = groups_to_columns(values, 16)
    fit = search_signed(x, HALF, None if importance is None else groups_to_columns(importance, 16))
    numbers = fit.scale.reshape(-1, 16)
    magnitudes = np.where(np.isnan(numbers), np.float32(0), np.abs(numbers))
    first = magnitudes.argmax(axis=1)[:, None]
    is_zero = np.take_along_axis(magnitudes, first, axis=1) < np.float32(1e-15)
    inverse = np.float32(-128) / np.take_along_axis(numbers, first, axis=1)
    factors = np.where(is_zero, np.float32(0), np.float32(1) / inverse)
    scales = np.minimum(round_to_int(inverse * numbers), 127).astype(np.int8)
    scales[is_zero[:, 0]] = 0
    step = (factors.astype(np.float16).astype(np.float32) * scales.astype(np.float32)).ravel()
    integers = (np.clip(round_to_int(x / step), -HALF, HALF - 1) + HALF).astype(np.uint8)
    is_lost = step == 0  # the scale rounds to 0: the integers of the search are kept
    if is_lost.any():
        integers[:, is_lost] = quantize_signed(x, fit, HALF)[:, is_lost]
    result = columns_to_blocks(integers)
    result[is_zero[:, 0]] = 0
    return SignedBlocks(factors, scales, result)


def groups_to_columns(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return groups of `size` values as columns: [n, 256] -> contiguous [size, n * 256 / size]."""
    return np.ascontiguousarray(values.reshape(-1, size).T)


def columns_to_blocks(integers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `groups_to_columns`: [size, groups] -> contiguous [n, 256]."""
    return np.ascontiguousarray(integers.T).reshape(-1, VALUES)
