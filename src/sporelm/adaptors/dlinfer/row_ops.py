"""dlinfer's ops on rows: norms, activations and rotary embeddings."""

from typing import Any

import torch
from torch import Tensor

from sporelm.adaptors import torch as ops
from sporelm.adaptors.dlinfer.product_ops import dynamic_quant


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows [..., width] divided by their root mean squares, times the weight; statistics are float32."""
    return ops.rms_norm(hidden_states, weight, epsilon)


def add_rms_norm(hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the norm of hidden_states + residual, and that sum."""
    total = hidden_states + residual
    return ops.rms_norm(total, weight, epsilon), total


def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """Return normalized rows rounded to `quant_dtype`, and the scale of each row: float32 [...]."""
    return dynamic_quant(rms_norm(hidden_states, weight, epsilon), quant_dtype)


def add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rounded norm of hidden_states + residual, the scale of each row, and that sum."""
    normed, total = add_rms_norm(hidden_states, residual, weight, epsilon)
    return *dynamic_quant(normed, quant_dtype), total


def silu_and_mul(input_tensor: Tensor, dim: int = -1) -> Tensor:
    """Return silu of the first half along `dim` times the second half."""
    if dim in (-1, input_tensor.dim() - 1):
        return ops.silu_and_mul(input_tensor)
    return ops.silu_and_mul(input_tensor.transpose(dim, -1)).transpose(dim, -1)


def apply_rotary_pos_emb(
    query: Tensor,
    key: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    position_ids: Tensor | None = None,
    cos_sin_cache: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate halves of each head: query [..., heads, head_dim], key [..., kv_heads, head_dim]. Changes both in place.

    cos and sin have the rotary width in their last dimension, with the same numbers in both halves, and a row for each
    row of the query; a width below head_dim rotates the first part of each head. Without them, rows `position_ids` of
    `cos_sin_cache` [positions, rotary] are used: cosines of half the width, then sines (dlinfer 0.1).
    """
    if cos is None or sin is None:
        if position_ids is None or cos_sin_cache is None:
            raise ValueError("apply_rotary_pos_emb: no angles. Give cos and sin, or position_ids and cos_sin_cache.")
        half_cos, half_sin = cos_sin_cache[position_ids.flatten()].chunk(2, dim=-1)
    else:
        half = cos.shape[-1] // 2
        half_cos, half_sin = cos[..., :half], sin[..., :half]
    for x in (query, key):
        if 2 * half_cos.shape[-1] > x.shape[-1]:
            width = 2 * half_cos.shape[-1]
            raise ValueError(f"apply_rotary_pos_emb: rotary width {width} is more than head_dim {x.shape[-1]}")
        rows = x.shape[:-2]
        tables = [each.reshape(*rows, half_cos.shape[-1]) for each in (half_cos, half_sin)]
        x.copy_(ops.rotary(x, *tables))
    return query, key


def apply_rotary_pos_emb_interleaved(x: Tensor, cos: Tensor, sin: Tensor, return_native_layout: bool = True) -> Tensor:
    """Rotate adjacent pairs of each head: x [tokens, heads, 1, head_dim] -> the same shape.

    cos and sin [tokens, 1, 1, head_dim] have the same numbers in both halves.
    With `return_native_layout` the first numbers of all pairs come first, then the second ones; else pairs stay pairs.
    """
    first, second = x[..., ::2].float(), x[..., 1::2].float()
    half = cos.shape[-1] // 2
    cosine, sine = cos[..., :half].float(), sin[..., :half].float()
    turned: Any = (first * cosine - second * sine, second * cosine + first * sine)
    joined = torch.cat(turned, dim=-1) if return_native_layout else torch.stack(turned, dim=-1).flatten(-2)
    return joined.to(x.dtype)
