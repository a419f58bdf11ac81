"""Rows rounded to FP8, bit for bit as the reference rounds them."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm.backends.cuda.formats.plane_format import BLOCK_WORDS
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide, store_narrow
from sporelm.backends.cuda.page_access import round_to_fp8, widen_fp8
from sporelm.backends.cuda.row_views import view_rows
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.ops.quantize_rows import E4M3_128
from sporelm.tensor.dtype import FLOAT8_MAX

GROUP = E4M3_128.values  # values that share a scale
WORD_BYTES = 4
GROUPS = 8  # groups of a program
_MAX: tl.constexpr = tl.constexpr(FLOAT8_MAX)
_MAX_TINY: tl.constexpr = tl.constexpr(
    FLOAT8_MAX * 2.0**-128
)  # a group whose largest value is at most this has an infinite inverse: its codes are 0
_BLOCK_WORDS: tl.constexpr = tl.constexpr(BLOCK_WORDS)
_WORD_BYTES: tl.constexpr = tl.constexpr(WORD_BYTES)


@dataclass(frozen=True)
class Fp8Rows:
    """Rows rounded to E4M3 with a scale for each group.

    codes    float8_e4m3fn [tokens, width], in each block of 64 columns in the order of a weight's words: byte f of word
             j is column f * 16 + j
    scales   float32 [tokens, groups]
    dtype    the type of activations
    """

    codes: Tensor
    scales: Tensor
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def values(self) -> Tensor:
        """Return the numbers in the type of activations, in the order of the columns."""
        words = self.codes.float().unflatten(1, (-1, BLOCK_WORDS, WORD_BYTES))
        numbers = words.transpose(2, 3).reshape(len(self), -1, GROUP)
        return (numbers * self.scales[:, :, None]).view(self.shape).to(self.dtype)


@triton.jit
def quantize_fp8_kernel(
    x, out, scales, x_stride, width, programs, DEQUANTIZE: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Round GROUPS groups of a row. Write codes and scales, or with DEQUANTIZE the dequantized values."""
    row = (tl.program_id(0) // programs).to(tl.int64)
    group = tl.program_id(0) % programs * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, GROUP)
    column = place
    if not DEQUANTIZE:  # of the block of 64 columns
        byte = place % (_BLOCK_WORDS * _WORD_BYTES)
        column = place - byte + byte % _WORD_BYTES * _BLOCK_WORDS + byte // _WORD_BYTES
    inside = group[:, None] * GROUP + column[None, :] < width
    values = load_wide(x + row * x_stride + group[:, None] * GROUP + column[None, :], inside)
    is_nan = values != values
    largest = tl.max(tl.where(is_nan, 0.0, tl.abs(values)), 1)
    largest = tl.where(tl.max(is_nan.to(tl.int32), 1) > 0, float("nan"), largest)
    is_tiny = largest <= _MAX_TINY
    inverse = tl.where(is_tiny, 0.0, tl.div_rn(_MAX, tl.where(is_tiny, 1.0, largest)))
    scale = tl.div_rn(largest, _MAX)
    codes = round_to_fp8(values * inverse[:, None])
    target = out + row * width + group[:, None] * GROUP + place[None, :]
    if DEQUANTIZE:
        store_narrow(target, widen_fp8(codes).to(tl.float32) * scale[:, None], inside)
    else:
        tl.store(target, codes, mask=inside)
        tl.store(scales + row * (width // GROUP) + group, scale, mask=group * GROUP < width)


def quantize_fp8_rows(x: Tensor, is_for_gemm: bool) -> Fp8Rows | RoundedRows:
    """Round rows to E4M3: to codes for products in tiles, else to the numbers that they stand for."""
    rows = view_rows(x)
    tokens, width = rows.shape
    programs = triton.cdiv(width // GROUP, GROUPS)
    if is_for_gemm:
        codes = torch.empty(tokens, width, dtype=torch.uint8, device=x.device)
        scales = torch.empty(tokens, width // GROUP, dtype=torch.float32, device=x.device)
        args = (rows, codes, scales)
        result: Fp8Rows | RoundedRows = Fp8Rows(codes.view(torch.float8_e4m3fn), scales, x.dtype)
    else:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        args, result = (rows, out, out), RoundedRows(out)
    if x.numel():
        launch(
            quantize_fp8_kernel,
            (tokens * programs,),
            *(*args, rows.stride(0), width, programs),
            DEQUANTIZE=not is_for_gemm,
            GROUPS=GROUPS,
            GROUP=GROUP,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return result
