"""The back-end for Cambricon MLUs: operators of torch_mlu_ops, and plain torch for the rest.

The package is not on an index. Its signatures are those with which dlinfer calls it (`vendor/camb/camb_ops.py`,
2026-07): names and the order of arguments, no meta functions. Tests call stand-ins of these signatures, which proves
names and shapes only. It has not run on an MLU. Steps are captured as `torch.mlu.MLUGraph`, which has the functions of
CUDA's graphs.
"""

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_pages import Cache
from sporelm.backends.torch.torch_weight import TorchWeight, multiply_joined
from sporelm.backends.vendor.vendor_backend import (
    FusedKernelTable,
    Operator,
    VendorBackend,
    fall_back,
    narrow_weight,
    route_by_softmax,
)
from sporelm.ops.paged_attention import PAGE

TABLE = FusedKernelTable()
NARROW = (torch.float16, torch.bfloat16)
MODULE = "torch_mlu_ops"
FUSED_RMS_NORM = Operator(f"{MODULE}.fused_rms_norm", ())
ACTIVE = Operator(f"{MODULE}.active", ())
RESHAPE_PAGED_CACHE = Operator(f"{MODULE}.reshape_paged_cache", ())
SINGLE_QUERY = Operator(f"{MODULE}.single_query_cached_kv_attn", ())
SOFTMAX_TOPK = Operator(f"{MODULE}.moe_softmax_topk", ())


def call(operator: Operator, *args: Any, **options: Any) -> Any:
    """Call an operator of the package."""
    module, _, name = operator.name.rpartition(".")
    return getattr(import_module(module), name)(*args, **options)


@TABLE.fused(ops.rms_norm, FUSED_RMS_NORM)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalize rows, or the heads of each."""
    if weight.dim() != 1:
        return fall_back(ops.rms_norm, "per-head norm weights", x, weight, eps=eps)
    rows = x if weight.shape[0] == x.shape[1] else x.unflatten(1, (-1, weight.shape[0]))
    gamma = narrow_weight(weight, x.dtype)
    normed: Tensor = call(FUSED_RMS_NORM, rows, None, gamma, None, None, eps, False, None, None)
    return normed.view(x.shape)


@TABLE.fused(ops.add_rms_norm, FUSED_RMS_NORM)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Normalize the sum of two rows; the operator returns both."""
    if weight.dim() != 1 or weight.shape[0] != x.shape[1]:
        return fall_back(ops.add_rms_norm, "per-head norm weights", x, residual, weight, eps=eps)
    gamma = narrow_weight(weight, x.dtype)
    normed, total = call(FUSED_RMS_NORM, x, residual, gamma, None, None, eps, True, None)
    return normed, total


@TABLE.fused(ops.linear_silu_mul, ACTIVE)
def linear_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight) -> Tensor:
    """Multiply by both matrices as one, and gate the halves of the product."""
    product = multiply_joined(activation_values(x, gate), (gate, up))
    gated: Tensor = call(ACTIVE, product, act_mode="silu", is_gated=True)
    return gated


def split_cache(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return the arrays of keys and of values [blocks, kv_heads, 64, head_dim], in which page p is block 2 * p."""
    blocks = cache.view(-1, *cache.shape[2:])
    return blocks[:-1], blocks[1:]


@TABLE.fused(ops.store_kv, RESHAPE_PAGED_CACHE)
def store_kv(k: Tensor, v: Tensor, cache: Cache, slots: Tensor) -> tuple[()]:
    """Write rows of heads to their slots. Caches of FP8 and of Q8_0 blocks are written by plain torch."""
    if not isinstance(cache, Tensor) or cache.dtype not in NARROW:
        fall_back(ops.store_kv, "unsupported KV cache type", k, v, cache, slots)
        return ()
    kv_heads, head_dim = cache.shape[2], cache.shape[4]
    keys, values = (x.view(-1, kv_heads, head_dim).to(cache.dtype).contiguous() for x in (k, v))
    places = STEP.share("mlu slots", (slots,), (), lambda: (slots // PAGE * 2 * PAGE + slots % PAGE).int())
    call(RESHAPE_PAGED_CACHE, keys, values, *split_cache(cache), places)
    return ()


@TABLE.fused(ops.attention, SINGLE_QUERY)
def attention(
    q: Tensor,
    cache: Cache,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    spans: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Attend from one row of each sequence to its pages, in place. Longer chunks are computed by plain torch."""
    marks = {"sinks": sinks, "slopes": slopes, "images": spans, "window": window, "softcap": softcap, "chunk": chunk}
    reason = next((name for name, value in marks.items() if value is not None), "")
    if not reason and len(lengths) != q.shape[0]:
        reason = "sequences of several rows"
    if not reason and (not isinstance(cache, Tensor) or cache.dtype is not q.dtype or q.dtype not in NARROW):
        reason = "activations and KV cache are not both f16 or both bf16"
    if reason:
        how = {"scale": scale, "window": window, "softcap": softcap, "chunk": chunk}
        return fall_back(ops.attention, reason, q, cache, starts, lengths, pages, sinks, slopes, spans, **how)
    assert isinstance(cache, Tensor)
    queries = q.view(q.shape[0], 1, -1, cache.shape[4])
    out = torch.empty_like(queries)
    held = torch.from_numpy(lengths).to(q.device) if isinstance(lengths, np.ndarray) else lengths
    longest = int(lengths.max()) if isinstance(lengths, np.ndarray) else pages.shape[1] * PAGE
    table = STEP.share("mlu table", (pages,), (), lambda: (pages * 2).int().contiguous())
    whole = (queries, *split_cache(cache), out, table, held, None, None, None, longest, -1, -1, float(scale))
    call(SINGLE_QUERY, *whole)
    return out.view(q.shape)


@TABLE.fused(ops.route, SOFTMAX_TOPK)
def route(logits: Tensor, selection_bias: Tensor | None = None, factors: Tensor | None = None, **how: Any) -> Any:
    """Take the softmax over all experts, then the k largest."""
    return route_by_softmax(partial(call, SOFTMAX_TOPK), logits, selection_bias, factors, **how)


class CambriconBackend(VendorBackend):
    """A Cambricon MLU through torch_mlu and torch_mlu_ops."""

    name = "cambricon"
    vendor = "Cambricon"
    kind = "mlu"
    extension = "torch_mlu"
    table = TABLE
    graph_class = "MLUGraph"
