"""The ops on torch devices other than the CPU: plain torch, on weights of int8 blocks or 16-bit floats.

A packed weight is one uint8 tensor: the integers of all rows, then their scales, then their offsets, as the torch
back-end has them (`backends/torch/int8_blocks.py`); or the rows as floats, for formats that are not of this form.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import scaled_dot_product_attention

from sporelm.adaptors.torch.gated_weights import GatedWeights
from sporelm.backends.torch.int8_blocks import UNPACKERS, Int8Blocks, can_pack, pack_blocks, packed_block_bytes
from sporelm.quant import dequantize_tensor, format_of

FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WIDENED = torch.float16  # of formats that are not integers with scales


def packed_bytes(format_name: str, shape: Sequence[int]) -> int:
    """Return the bytes of `pack`'s result."""
    form = format_of(format_name)
    if can_pack(form, tuple(shape)):
        return packed_block_bytes(form, tuple(shape))
    return prod(shape) * FLOAT_TYPES.get(form.name, WIDENED).itemsize


def pack(blocks: Tensor, format_name: str, shape: Sequence[int]) -> Tensor:
    """Return a weight's blocks in the layout that this file's functions read: uint8 [bytes] on the same device."""
    form, array = format_of(format_name), blocks.cpu().numpy()
    if can_pack(form, tuple(shape)):
        parts = [each for each in pack_blocks(form, tuple(shape), array, torch.device("cpu")) if each is not None]
    else:
        values = torch.from_numpy(dequantize_tensor(form, array, shape))
        parts = [values.to(FLOAT_TYPES.get(form.name, WIDENED))]
    return torch.cat([each.contiguous().view(torch.uint8).flatten() for each in parts]).to(blocks.device)


def unpack(packed: Tensor, format_name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the numbers of a packed weight: `dtype` of this shape."""
    form = format_of(format_name)
    if not can_pack(form, tuple(shape)):
        return packed.view(FLOAT_TYPES.get(form.name, WIDENED)).view(*shape).to(dtype)
    unpacker, count = UNPACKERS[form.name], prod(shape)
    groups = count // unpacker.group * unpacker.scale_type.itemsize
    sizes = [count, groups] + [groups] * unpacker.has_offsets
    integers, *factors = packed.split_with_sizes(sizes)
    scales, *offsets = (each.view(unpacker.scale_type).view(*shape[:-1], -1) for each in factors)
    blocks = Int8Blocks(integers.view(torch.int8).view(*shape), scales, offsets[0] if offsets else None)
    return blocks.dequantize(dtype)


def activate(x: Tensor, kind: str) -> Tensor:
    """Return an activation of one of our kinds (`ops.activation.KINDS`) that transformers' models use."""
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def linear(x: Tensor, packed: Tensor, bias: Tensor | None, format_name: str, shape: Sequence[int]) -> Tensor:
    """Return x @ weight.T + bias in x's type."""
    return torch_linear(x, unpack(packed, format_name, shape, x.dtype), None if bias is None else bias.to(x.dtype))


def gated_mlp(x: Tensor, weights: GatedWeights, kind: str) -> Tensor:
    """Return (activate(x @ gate.T) * (x @ up.T)) @ down.T in x's type."""
    left, right = (linear(x, each, None, weights.format, weights.shape) for each in (weights.gate, weights.up))
    return linear(activate(left, kind) * right, weights.down, None, weights.down_format, weights.down_shape)


def experts(x: Tensor, weights: GatedWeights, ids: Tensor, factors: Tensor) -> Tensor:
    """Return each row's sum over its experts, see `HostKernels.experts`. Copies the matrices of each pair's expert."""
    left, right = (unpack(each, weights.format, weights.shape, x.dtype) for each in (weights.gate, weights.up))
    last = unpack(weights.down, weights.down_format, weights.down_shape, x.dtype)
    total = torch.zeros_like(x)
    for slot in range(ids.shape[1]):
        chosen = ids[:, slot].long()
        wide = x.unsqueeze(2)
        hidden = torch.nn.functional.silu(left[chosen] @ wide) * (right[chosen] @ wide)
        total = total + factors[:, slot, None].to(x.dtype) * (last[chosen] @ hidden).squeeze(2)
    return total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rows divided by their root mean squares, times the weight; statistics are float32."""
    return torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [..., heads, head_dim] by half-width tables [..., rotary / 2] of each row."""
    half = cos.shape[-1]
    cos, sin = (each.float().unsqueeze(-2) for each in (cos, sin))
    left, right, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, rest), dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, is_causal: bool) -> Tensor:
    """Return softmax(q k * scale) v, see `op_library.attention`."""
    added: Any = mask
    if is_causal and mask is None and q.shape[2] > 1:
        rows, keys = q.shape[2], k.shape[2]
        added = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return mixed.transpose(1, 2).contiguous()
