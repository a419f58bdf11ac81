"""The back-end for MetaX GPUs (MACA): vLLM's operators in mcoplib, and plain torch for the rest.

MetaX's torch names its devices "cuda". Signatures are those with which dlinfer calls the operators
(`vendor/maca/maca_ops.py`, 2026-07). Tests call stand-ins of these signatures, which proves names and shapes only. It
has not run on a MetaX GPU. Steps are captured as CUDA's are: torch's module for the device is `torch.cuda`.
"""

from typing import Any

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.quantize_rows import RoundedRows
from sporelm.backends.torch.quantized_linear import activation_values
from sporelm.backends.torch.torch_weight import TorchWeight, multiply_joined
from sporelm.backends.vendor.vendor_backend import (
    FusedKernelTable,
    Operator,
    VendorBackend,
    fall_back,
    narrow_weight,
    route_by_softmax,
)

TABLE = FusedKernelTable()
FUSED_ADD_RMS_NORM = Operator("_C::fused_add_rms_norm", ())
SILU_AND_MUL = Operator("_C::silu_and_mul", ())
TOPK_SOFTMAX = Operator("_moe_C::topk_softmax", ())


@TABLE.fused(ops.add_rms_norm, FUSED_ADD_RMS_NORM)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Normalize the sum of two rows. The operator writes the norm over the first, and the sum over the second."""
    if weight.dim() != 1 or weight.shape[0] != x.shape[1]:
        return fall_back(ops.add_rms_norm, "per-head norm weights", x, residual, weight, eps=eps)
    normed, total = x.clone(), residual.clone()
    torch.ops._C.fused_add_rms_norm(normed, total, narrow_weight(weight, x.dtype), eps)
    return normed, total


@TABLE.fused(ops.linear_silu_mul, SILU_AND_MUL)
def linear_silu_mul(x: Tensor | RoundedRows, gate: TorchWeight, up: TorchWeight) -> Tensor:
    """Multiply by both matrices as one, and gate the halves of the product."""
    product = multiply_joined(activation_values(x, gate), (gate, up))
    out = product.new_empty(product.shape[0], product.shape[1] // 2)
    torch.ops._C.silu_and_mul(out, product)
    return out


@TABLE.fused(ops.route, TOPK_SOFTMAX)
def route(logits: Tensor, selection_bias: Tensor | None = None, factors: Tensor | None = None, **how: Any) -> Any:
    """Take the softmax over all experts, then the k largest."""
    return route_by_softmax(_select_experts, logits, selection_bias, factors, **how)


def _select_experts(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    weights = logits.new_empty(logits.shape[0], k)
    ids, rows = (torch.empty_like(weights, dtype=torch.int32) for _ in range(2))
    torch.ops._moe_C.topk_softmax(weights, ids, rows, logits)
    return weights, ids


class MetaxBackend(VendorBackend):
    """A MetaX GPU through MACA's build of torch and mcoplib."""

    name = "metax"
    vendor = "MetaX"
    kind = "cuda"
    extension = "mcoplib"
    follows_torch = False  # mcoplib has version numbers of its own
    table = TABLE
    graph_class = "CUDAGraph"
