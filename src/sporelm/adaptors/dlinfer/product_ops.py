"""dlinfer's matrix products, in floats and with quantized numbers."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear

INT8_MAX = 127.0
CUBE_ROWS, CUBE_BYTES = 16, 32  # of a block of Ascend's NZ layout


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, all_reduce: bool | None = False, group: Any = ""
) -> Tensor:
    """Return x @ weight.T + bias, added up over the group's devices with `all_reduce`.

    weight [out, in], or 4-D in Ascend's NZ layout [1, in / 16, out, 16] (see `transdata`).
    """
    if weight.dim() == 4:
        weight = weight.permute(0, 2, 1, 3).reshape(weight.shape[2], -1)
    return _reduce(torch_linear(x, weight, bias), all_reduce, group)


def _reduce(y: Tensor, all_reduce: Any, group: Any) -> Tensor:
    # dlinfer's own default for weight_quant_matmul is the type bool, which is true
    if all_reduce is True:
        torch.distributed.all_reduce(y, group=group or None)
    return y


def weight_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    all_reduce: bool | None = False,
    group_size: int | None = 0,
) -> Tensor:
    """Return x1 @ ((x2 + offset) * scale) + bias (W4A16, W8A16).

    x1        [tokens, in]
    x2        int8 [in, out], or int32 [in, out / 8] with eight 4-bit integers each, the lowest bits first
    scale     [in / group_size, out], [1, out] or [out]; offset likewise
    """
    weight = _unpack_int4(x2) if x2.dtype is torch.int32 else x2
    wide = weight.to(torch.float32)
    if offset is not None and offset.numel():
        wide = wide + _spread(offset, wide.shape, group_size)
    wide = wide * _spread(scale, wide.shape, group_size)
    y = x1.float() @ wide
    return _reduce((y if bias is None else y + bias.float()).to(x1.dtype), all_reduce, "")


def _unpack_int4(packed: Tensor) -> Tensor:
    """Return eight signed integers for each int32: [in, out / 8] -> int8 [in, out]."""
    shifts = torch.arange(0, 32, 4, device=packed.device, dtype=torch.int32)
    nibbles = (packed.unsqueeze(-1) >> shifts) & 15
    return ((nibbles ^ 8) - 8).flatten(-2).to(torch.int8)


def _spread(factors: Tensor, shape: Any, group_size: int | None) -> Tensor:
    """Return the factor of each element of a matrix [in, out], given one for each group of rows and each column."""
    table = factors.float().reshape(-1, shape[1]) if factors.numel() > 1 else factors.float().reshape(1, 1)
    if len(table) == 1:
        return table
    size = group_size or -(-shape[0] // len(table))
    return table.repeat_interleave(size, dim=0)[: shape[0]]


def dynamic_quant(
    x: Tensor, quant_dtype: torch.dtype = torch.int8, quant_granularity: str = "PER_TOKEN"
) -> tuple[Tensor, Tensor]:
    """Return rows [..., width] rounded to int8 or float8, and the scale of each: float32 [...].

    Raises NotImplementedError for another granularity than PER_TOKEN, as dlinfer's vendors do.
    """
    if quant_granularity not in ("PER_TOKEN", None):
        raise NotImplementedError(f"dynamic_quant: granularity (got {quant_granularity!r}; allowed PER_TOKEN)")
    wide = x.float()
    is_float = quant_dtype.is_floating_point
    limit = float(torch.finfo(quant_dtype).max) if is_float else INT8_MAX
    scale = wide.abs().amax(dim=-1) / limit
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale)).unsqueeze(-1)
    scaled = wide * inverse
    return (scaled if is_float else scaled.round()).clamp(-limit, limit).to(quant_dtype), scale


def integer_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b.T of int8 rows [..., in] and [out, in] as float32, each product and sum exact up to 2^24."""
    if a.dtype is not torch.int8:
        return a.float() @ b.float().T
    return (a.double() @ b.double().T).float() if a.shape[-1] > 1024 else a.float() @ b.float().T


def linear_w8a8(
    a: Tensor,
    b: Tensor,
    rms_scale: Any,
    linear_scale: Any,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Return (a @ b.T) * rms_scale * linear_scale + bias in `out_dtype`.

    a [..., in] and b [out, in] are quantized; rms_scale has one number a row of a, linear_scale one a row of b.
    """
    del quant_dtype  # a and b have it
    y = integer_product(a, b)
    rows = rms_scale if not isinstance(rms_scale, Tensor) else rms_scale.float().reshape(*a.shape[:-1], 1)
    columns = linear_scale if not isinstance(linear_scale, Tensor) else linear_scale.float().reshape(-1)
    y = y * rows * columns
    return (y if bias is None else y + bias.float()).to(out_dtype)


def linear_w8a8_static(
    x: Tensor,
    weight: Tensor,
    input_scale: Tensor,
    input_offset: Tensor,
    deq_scale: Tensor,
    out_dtype: torch.dtype,
    quant_dtype: torch.dtype,
    quant_bias: Tensor | None = None,
) -> Tensor:
    """Return (round(x / input_scale + input_offset) @ weight.T + quant_bias) * deq_scale in `out_dtype` (ModelSlim).

    x [..., in] of floats, weight int8 [out, in]; deq_scale [out] of floats, or int64 with a float32 in its low 32 bits;
    quant_bias int32 [out] undoes the offset. An x that is int8 already is taken as it is.
    """
    if x.is_floating_point():
        rounded = (x.float() / input_scale.float() + input_offset.float()).round()
        x = rounded.clamp(-128, 127).to(quant_dtype)
    y = integer_product(x, weight)
    if quant_bias is not None:
        y = y + quant_bias.float()
    scale = deq_scale.to(torch.int32).view(torch.float32) if deq_scale.dtype is torch.int64 else deq_scale.float()
    return (y * scale.reshape(-1)).to(out_dtype)


def transdata(hidden_states: Tensor, transdata_type: int = 2) -> Tensor:
    """Return a matrix [rows, columns] or [batch, rows, columns] in Ascend's NZ layout: [batch, columns / n, rows, n],
    n = 16 of float16 or 32 of int8, rows filled up with zeros to a multiple of 16."""
    if transdata_type != 2:
        raise NotImplementedError(f"transdata: type (got {transdata_type}; allowed 2, ND to NZ)")
    x = hidden_states if hidden_states.dim() == 3 else hidden_states.unsqueeze(0)
    width = CUBE_BYTES // x.dtype.itemsize
    filled = torch.nn.functional.pad(x, (0, -x.shape[2] % width, 0, -x.shape[1] % CUBE_ROWS))
    return filled.unflatten(2, (-1, width)).transpose(1, 2).contiguous()
