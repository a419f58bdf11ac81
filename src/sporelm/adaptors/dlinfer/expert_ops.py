"""dlinfer's mixture of experts."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as torch_linear
from torch.nn.functional import silu

from sporelm.adaptors.dlinfer.moe_metadata import check_single_device
from sporelm.adaptors.dlinfer.product_ops import dynamic_quant, integer_product


def moe_gating_topk_softmax(router_logits: Tensor, topk: int, moe_metadata: Any = None) -> tuple[Tensor, Tensor]:
    """Return the weights and ids of each row's experts: softmax over all experts, then the `topk` largest.

    router_logits [tokens, experts] -> float32 and int64 [tokens, topk]. With `moe_metadata.router_n_groups` above 0
    each group of experts gives topk / groups.
    """
    check_single_device(moe_metadata, "moe_gating_topk_softmax")
    weights = router_logits.float().softmax(dim=-1)
    groups = getattr(moe_metadata, "router_n_groups", -1)
    if groups <= 0:
        found = weights.topk(topk, dim=-1)
        return found.values, found.indices
    experts = weights.shape[-1]
    if experts % groups or topk % groups:
        raise ValueError(f"moe_gating_topk_softmax: {experts} experts, top {topk}: not whole groups (got {groups})")
    found = weights.unflatten(-1, (groups, -1)).topk(topk // groups, dim=-1)
    first = torch.arange(groups, device=weights.device).unsqueeze(-1) * (experts // groups)
    return found.values.flatten(-2), (found.indices + first).flatten(-2)


def fused_moe(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    down_weights: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: Any = None,
    chunked_moe_layout: Any = None,
) -> Tensor:
    """Return each row's weighted sum over its experts of (silu(x @ gate.T) * (x @ up.T)) @ down.T: [tokens, width].

    gate_up_weights [experts, 2 * inner, width], down_weights [experts, width, inner]; topk_weights and topk_ids
    [tokens, topk]. `renormalize` divides a row's weights by their sum. `chunked_moe_layout` is dlinfer's layout with
    two empty experts around each chunk.
    """
    check_single_device(moe_metadata, "fused_moe")
    ids = topk_ids.long()
    if chunked_moe_layout is not None and chunked_moe_layout.packed:
        ids = ids + 2 * (ids // chunked_moe_layout.chunk_size) + 1

    def run(x: Tensor, expert: int) -> Tensor:
        gate, up = torch_linear(x, gate_up_weights[expert]).float().chunk(2, dim=-1)
        return torch_linear((silu(gate) * up).to(x.dtype), down_weights[expert])

    return _combine(hidden_states, topk_weights, ids, topk, renormalize, run)


def fused_moe_w8a8(
    hidden_states: Tensor,
    gate_up_weights: Tensor,
    gate_up_scales: Tensor,
    down_weights: Tensor,
    down_scales: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    topk: int,
    renormalize: bool,
    moe_metadata: Any = None,
) -> Tensor:
    """Return `fused_moe` with int8 weights, one scale for each of their rows, and activations rounded to int8."""
    check_single_device(moe_metadata, "fused_moe_w8a8")

    def multiply(x: Tensor, weights: Tensor, scales: Tensor, expert: int) -> Tensor:
        rounded, scale = dynamic_quant(x, torch.int8)
        return integer_product(rounded, weights[expert]) * scale.unsqueeze(-1) * scales[expert].float().reshape(-1)

    def run(x: Tensor, expert: int) -> Tensor:
        gate, up = multiply(x, gate_up_weights, gate_up_scales, expert).chunk(2, dim=-1)
        return multiply(silu(gate) * up, down_weights, down_scales, expert)

    return _combine(hidden_states, topk_weights, topk_ids.long(), topk, renormalize, run)


def _combine(
    x: Tensor, weights: Tensor, ids: Tensor, topk: int, renormalize: bool, run: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Return each row's weighted sum over its experts, expert by expert, added up in float32."""
    if ids.shape[-1] != topk:
        raise ValueError(f"fused_moe: experts of a row (got {ids.shape[-1]} ids; topk is {topk})")
    factors = weights.float()
    if renormalize:
        factors = factors / factors.sum(dim=-1, keepdim=True)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        total.index_add_(0, rows, run(x[rows], expert).float() * factors[rows, slots].unsqueeze(-1))
    return total.to(x.dtype)
