"""Weights on a GPU: planes of a quantized format (`formats/plane_format.py`), or a tensor of a float type.

`CudaWeight` offers what `TorchWeight` does, so that torch's functions for ops without a kernel work with it: `shape`,
`device`, `dtype`, `activation`, `values`, `select` and `multiply`. Kernels read `stored`: a tensor [out, in] or
[experts, out, in], or a `Planes`, whose tensors have a row per row of the matrix, expert after expert.

`plane_args(planes)` are the arguments that every kernel takes, and `plane_constants(format)` the constants:
`codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic` and `LEVEL, STEPS, BITS, GROUP_FIELDS,
GROUP_BLOCKS, SUPER_BLOCKS, HAS_OFFSETS, IS_LIFTED`. `dequantize_kernel` is the example of their use.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from sporelm.backends.cuda.formats import PLANE_FORMATS
from sporelm.backends.cuda.formats.plane_format import (
    BLOCK_WORDS,
    MAGIC,
    PlaneFormat,
    first_column,
    group_number,
    join_extra,
    super_number,
    thread_column,
)
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import IS_INTERPRETED, store_narrow
from sporelm.backends.stacked_experts import list_matrices

CHUNK_BYTES = 1 << 24  # of a file's blocks that are uploaded and repacked at a time
FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TILE_ROWS, TILE_BLOCKS = 32 if IS_INTERPRETED else 4, 8  # that a program dequantizes


class Planes(NamedTuple):
    """The planes of a matrix. Planes that the format lacks are None."""

    format: PlaneFormat
    width: int  # values of a row
    codes: Tensor  # int32 or int16 [rows, words]
    extra: Tensor | None  # uint8, int16 or int32 [rows, words]
    scales: Tensor | None  # [rows, groups]
    supers: Tensor | None  # [rows, super-blocks]
    table: Tensor | None  # float32 [levels], or integers of a codebook

    def narrow(self, start: int, count: int) -> "Planes":
        """Return the planes of some of the rows: views."""
        extra, scales, supers = (
            None if plane is None else plane.narrow(0, start, count) for plane in (self.extra, self.scales, self.supers)
        )
        codes = self.codes.narrow(0, start, count)
        return Planes(self.format, self.width, codes, extra, scales, supers, self.table)


def join_planes(matrices: Sequence[Planes]) -> Planes:
    """Return the rows of several matrices of one format and width as one matrix."""
    first = matrices[0]
    extra, scales, supers = (
        None if planes[0] is None else torch.cat(planes)
        for planes in zip(*((each.extra, each.scales, each.supers) for each in matrices), strict=True)
    )
    codes = torch.cat([each.codes for each in matrices])
    return Planes(first.format, first.width, codes, extra, scales, supers, first.table)


def plane_args(planes: Planes) -> tuple[Any, ...]:
    """Return the arguments of a kernel that reads planes."""
    counts = planes.format.plane_widths(planes.width)
    return (*planes[2:], *counts, MAGIC)


def plane_constants(plane_format: PlaneFormat) -> dict[str, Any]:
    """Return the constants of a kernel that reads planes."""
    return {
        "LEVEL": plane_format.level,
        "STEPS": plane_format.steps,
        "BITS": plane_format.bits,
        "GROUP_FIELDS": plane_format.group_fields,
        "GROUP_BLOCKS": plane_format.group_blocks,
        "SUPER_BLOCKS": plane_format.super_blocks,
        "HAS_OFFSETS": plane_format.has_offsets,
        "IS_LIFTED": plane_format.is_lifted,
    }


@triton.jit
def dequantize_kernel(
    codes, extra, scales, supers, table, num_words, num_scales, num_supers, magic, index, out, count, num_rows, width,
    LEVEL: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr, GROUP_FIELDS: tl.constexpr,
    GROUP_BLOCKS: tl.constexpr, SUPER_BLOCKS: tl.constexpr, HAS_OFFSETS: tl.constexpr, IS_LIFTED: tl.constexpr,
    HAS_INDEX: tl.constexpr, FILLS: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write ROWS rows of the result, BLOCKS blocks of words of each: row i is row index[i] of the matrix, or row i.

    A row that the matrix lacks is NaN, or the first one with FILLS.
    """
    FIELDS: tl.constexpr = 32 // BITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)[None, :, None]
    word = tl.arange(0, 4)[None, None, :] * 4
    if HAS_INDEX:
        source = tl.load(index + row, mask=row < count, other=0).to(tl.int64)
        is_known = (source >= 0) & (source < num_rows)
        source = tl.where(is_known, source, 0)
    else:
        source = row.to(tl.int64)
        is_known = row < count
    inside = (row < count) & (block * 16 < num_words)
    lane = tl.arange(0, 4)[None, None, None, :]
    place = tl.expand_dims(source * num_words + (block * 16 + word), 3) + lane
    is_read = tl.expand_dims(inside, 3) & (lane >= 0)
    words = tl.load(codes + place, mask=is_read, other=0)
    upper = words
    if extra is not None:
        upper = tl.load(extra + place, mask=is_read, other=0)
    factors = 0
    if supers is not None:
        place = super_number(block, word, SUPER_BLOCKS)
        factors = tl.load(supers + source * num_supers + place, mask=inside, other=0)
    upper = join_extra(upper, factors, SUPER_BLOCKS)
    column = block * (16 * FIELDS) + thread_column(table, word)
    target = tl.expand_dims(row.to(tl.int64) * width + column, 3) + lane
    column = tl.expand_dims(column, 3) + lane
    for group in tl.static_range(FIELDS // GROUP_FIELDS):
        number = group_number(table, block, group, word, FIELDS, GROUP_FIELDS, GROUP_BLOCKS)
        step, offset = STEPS(scales, factors, source, number, num_scales, magic, inside)
        for part in tl.static_range(GROUP_FIELDS):
            values = LEVEL(words, upper, table, magic, group * GROUP_FIELDS + part)
            if IS_LIFTED:
                values *= 1.0 / (1 << ((group * GROUP_FIELDS + part) * BITS % 16))
            values *= tl.expand_dims(step, 3)
            if HAS_OFFSETS:
                values += tl.expand_dims(offset, 3)
            if HAS_INDEX and not FILLS:
                values = tl.where(tl.expand_dims(is_known, 3), values, float("nan"))
            run = first_column(table, group * GROUP_FIELDS + part)
            store_narrow(out + target + run, values, is_read & (column + run < width))


def dequantize_rows(planes: Planes, index: Tensor | None, dtype: torch.dtype, *, fills: bool = True) -> Tensor:
    """Return rows of a matrix [rows, width], all of them or those of an index.

    A row that the matrix lacks is NaN, or the first one with `fills`.
    """
    num_rows, num_words = planes.codes.shape
    count = num_rows if index is None else len(index)
    out = torch.empty(count, planes.width, dtype=dtype, device=planes.codes.device)
    launch(
        dequantize_kernel,
        (triton.cdiv(count, TILE_ROWS), triton.cdiv(num_words // BLOCK_WORDS, TILE_BLOCKS)),
        *plane_args(planes),
        *(index, out, count, num_rows, planes.width),
        **plane_constants(planes.format),
        HAS_INDEX=index is not None,
        FILLS=fills,
        ROWS=TILE_ROWS,
        BLOCKS=TILE_BLOCKS,
        num_warps=4,
    )
    return out


class CudaWeight:
    """A weight matrix [out, in], or experts' matrices [experts, out, in], and the activation numbers of its format."""

    def __init__(
        self,
        stored: Tensor | Planes,
        shape: Sequence[int],
        dtype: torch.dtype,
        activation: str,
        order: Tensor | None = None,
    ) -> None:
        self.stored, self.dtype, self.activation = stored, dtype, activation
        self.order = order  # int64 [in], of a matrix: stored column j is column order[j]. None: they are in place
        self.shape = torch.Size(shape)
        self.device = stored.device if isinstance(stored, Tensor) else stored.codes.device
        self.joined: JoinedRows | None = None  # that its rows lie in
        self.join_index = 0  # of its matrix among those

    @property
    def values(self) -> Tensor:
        """Return all numbers in the activation type."""
        if isinstance(self.stored, Tensor):
            return self.stored.to(self.dtype)
        return self.restore_columns(dequantize_rows(self.stored, None, self.dtype).view(self.shape))

    def select(self, index: Tensor) -> Tensor:
        """Return rows, or experts' matrices, in the activation type."""
        if isinstance(self.stored, Tensor):
            return self.stored.index_select(0, index.flatten()).unflatten(0, index.shape).to(self.dtype)
        rows = index.flatten()
        if len(self.shape) == 3:
            rows = (rows.long()[:, None] * self.shape[1] + torch.arange(self.shape[1], device=rows.device)).flatten()
        return self.restore_columns(dequantize_rows(self.stored, rows, self.dtype)).view(*index.shape, *self.shape[1:])

    def restore_columns(self, values: Tensor) -> Tensor:
        """Return stored columns [..., in] in the order of the weight's."""
        return values if self.order is None else torch.empty_like(values).index_copy_(-1, self.order, values)

    def sort_columns(self, x: Tensor) -> Tensor:
        """Return columns of x [rows, in] in the order of the stored ones."""
        return x if self.order is None else x.index_select(1, self.order)

    def multiply(self, x: Tensor) -> Tensor:
        """Return x @ weight.T for rows x [rows, in] of the activation type."""
        return torch_linear(x, self.values)


class JoinedRows:
    """Matrices that one x is multiplied by, as the rows of one matrix: one launch multiplies all.

    Their weights refer to it and to their rows of it. It does not refer to them: without a cycle, memory is freed with
    the last weight.
    """

    def __init__(self, weights: Sequence[CudaWeight]) -> None:
        self.sizes = [weight.shape[0] for weight in weights]
        stored: Any = [weight.stored for weight in weights]
        self.stored: Tensor | Planes = torch.cat(stored) if isinstance(stored[0], Tensor) else join_planes(stored)
        start = 0
        for index, (weight, size) in enumerate(zip(weights, self.sizes, strict=True)):
            weight.stored, weight.joined, weight.join_index = (
                self.stored.narrow(*_rows(self.stored, start, size)),
                self,
                index,
            )
            start += size

    def has_joined(self, weights: Sequence[CudaWeight]) -> bool:
        """Return whether it consists of exactly these, in this order."""
        indices = [weight.join_index if weight.joined is self else -1 for weight in weights]
        return indices == list(range(len(self.sizes)))


def _rows(stored: Tensor | Planes, start: int, count: int) -> tuple[int, ...]:
    return (0, start, count) if isinstance(stored, Tensor) else (start, count)


def join_rows(weights: Sequence[CudaWeight]) -> JoinedRows | None:
    """Return matrices as one, joined at their first use; None if one is joined with others, or they are not alike.

    Nothing is joined while launches are captured: the copies would be repeated by each replay.
    """
    joined = weights[0].joined
    if joined is not None:
        return joined if joined.has_joined(weights) else None
    kinds = {_kind_of(weight) for weight in weights}
    if len({id(weight) for weight in weights}) < len(weights) or len(kinds) > 1 or _is_capturing(weights[0].device):
        return None
    if any(weight.joined is not None or len(weight.shape) != 2 or weight.order is not None for weight in weights):
        return None
    return JoinedRows(weights)


def _kind_of(weight: CudaWeight) -> tuple[Any, ...]:
    stored = weight.stored
    return (stored.dtype if isinstance(stored, Tensor) else id(stored.format), weight.shape[-1], weight.dtype)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


# ---- packing


def has_planes(number_format: Any, shape: Sequence[int]) -> bool:
    """Return whether a weight of this format and shape is kept as planes."""
    return number_format.name in PLANE_FORMATS and len(shape) >= 2


def plane_bytes(number_format: Any, shape: Sequence[int]) -> int:
    """Return the bytes of the planes of a weight."""
    return prod(shape[:-1]) * PLANE_FORMATS[number_format.name].row_bytes(shape[-1])


def pack_planes(weight: Any, device: torch.device) -> Planes:
    """Return a weight's blocks as planes on a device. They are repacked there, some rows at a time."""
    planes = allocate_planes(PLANE_FORMATS[weight.format.name], prod(weight.shape[:-1]), weight.shape[-1], device)
    for start, blocks in _upload_rows(weight, device):
        fill_planes(planes.narrow(start, len(blocks)), blocks.view(-1, weight.format.nbytes))
    return planes


def pack_floats(weight: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a weight of one of FLOAT_TYPES in another float type, converted on the device."""
    result = torch.empty(weight.shape, dtype=dtype, device=device)
    rows = result.view(-1, weight.shape[-1])
    for start, blocks in _upload_rows(weight, device):
        rows[start : start + len(blocks)] = blocks.view(FLOAT_TYPES[weight.format.name])
    return result


def _upload_rows(weight: Any, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield the bytes of a weight on a device: the first row, and uint8 [rows, bytes of each]."""
    start = 0
    for matrix in list_matrices(weight):
        rows = np.ascontiguousarray(matrix.blocks).reshape(prod(matrix.shape[:-1]), -1)
        step = max(1, CHUNK_BYTES // max(rows.shape[1], 1))
        for first in range(0, len(rows), step):
            blocks = torch.from_numpy(np.array(rows[first : first + step])).to(device)
            yield start, blocks
            start += len(blocks)


def allocate_planes(plane_format: PlaneFormat, num_rows: int, width: int, device: torch.device) -> Planes:
    """Return planes of zeros."""
    words, scales, supers = plane_format.plane_widths(width)

    def zeros(count: int, dtype: torch.dtype | None) -> Tensor | None:
        return None if dtype is None else torch.zeros(num_rows, count, dtype=dtype, device=device)

    codes = zeros(words, plane_format.code_type)
    assert codes is not None
    parts = (
        zeros(words, plane_format.extra_type),
        zeros(scales, plane_format.scale_type),
        zeros(supers, plane_format.super_type),
    )
    return Planes(plane_format, width, codes, *parts, _upload_table(plane_format, device))


@cache
def _upload_table(plane_format: PlaneFormat, device: torch.device) -> Tensor | None:
    """Return the table that all weights of a format share on a device."""
    return plane_format.make_table(device)


def fill_planes(planes: Planes, blocks: Tensor) -> None:
    """Write all rows of planes from their blocks, uint8 [n, nbytes]."""
    unpacked = planes.format.unpack(blocks)
    if planes.format.codebook is None:
        words, extra = planes.format.pack_codes(unpacked.codes.reshape(len(planes.codes), planes.width))
    else:
        words, extra = unpacked.codes, unpacked.extra
    planes.codes.copy_(words.reshape(planes.codes.shape))
    if planes.extra is not None and extra is not None:
        planes.extra.copy_(extra.reshape(planes.extra.shape))
    for plane, given in ((planes.scales, unpacked.scales), (planes.supers, unpacked.supers)):
        if plane is not None and given is not None:
            rows = given.reshape(len(plane), -1)
            plane[:, : rows.shape[1]] = rows
