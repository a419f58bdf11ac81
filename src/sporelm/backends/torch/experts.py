"""Experts through plain torch: how they are chosen, products with their matrices, and the sum of what they made."""

import torch
from torch import Tensor

from sporelm.backends.torch.products import Rounded, Weight, multiplied, silu_mul


def route(
    logits: Tensor,  # [tokens, experts]
    selection_bias: Tensor | None = None,  # [experts]
    factors: Tensor | None = None,  # [experts]
    *,
    k: int,
    scores: str = "softmax",
    renormalize: bool = False,
    epsilon: float = 0.0,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "max",
    near: float = 0.0,
) -> tuple[Tensor, Tensor]:
    scored = logits.softmax(dim=1) if scores == "softmax" else logits.sigmoid() if scores == "sigmoid" else logits
    by_logits = selection_bias is None and (groups == 1 or group_score == "max")
    choice = logits if by_logits else scored
    if selection_bias is not None:
        choice = choice + selection_bias
    choice = choice.masked_fill(choice.isnan(), -torch.inf)
    ids = _greatest(choice, _shut(choice, groups, top_groups, group_score), k)
    weights = scored.gather(1, ids)
    if scores == "softmax_of_chosen":
        weights = weights.softmax(dim=1)
    if scores == "sigmoid_of_chosen":
        weights = weights.sigmoid()
    if scores == "softmax_of_near":
        weights = _softmax_of_near(logits, ids, near)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + epsilon)
    weights = weights * scale
    return weights if factors is None else weights * factors[ids], ids.int()


def _softmax_of_near(logits: Tensor, ids: Tensor, near: float) -> Tensor:
    """Of each that was chosen, among those near it that were not chosen before."""
    weights, left = [], torch.ones_like(logits, dtype=torch.bool)
    for chosen in ids.split(1, dim=1):
        own = logits.gather(1, chosen)
        far = (own - logits) / torch.maximum(logits.abs(), own) > near
        weights.append(1 / (logits - own).exp().masked_fill(far | ~left, 0.0).sum(dim=1, keepdim=True))
        left = left.scatter(1, chosen, False)
    return torch.cat(weights, dim=1)


def _greatest(values: Tensor, shut: Tensor, k: int) -> Tensor:
    """Places of the k greatest of each row that are not shut, the first of equals: two stable sorts, as minus infinity
    may be chosen where nothing better is open."""
    order = torch.argsort(-values, dim=1, stable=True)
    last = torch.argsort(shut.gather(1, order).int(), dim=1, stable=True)
    return order.gather(1, last)[:, :k]


def _shut(choice: Tensor, groups: int, top_groups: int, group_score: str) -> Tensor:
    """Which experts stand in a group that may not be chosen from."""
    if top_groups == groups:
        return torch.zeros_like(choice, dtype=torch.bool)
    members = choice.unflatten(1, (groups, -1))
    best = members.amax(dim=2) if group_score == "max" else members.sort(dim=2).values[:, :, -2:].sum(dim=2)
    best = best.masked_fill(best.isnan(), -torch.inf)
    taken = _greatest(best, torch.zeros_like(best, dtype=torch.bool), top_groups)
    closed = torch.ones_like(best, dtype=torch.bool).scatter(1, taken, False)
    return closed.repeat_interleave(choice.shape[1] // groups, dim=1)


def part_idle(shares: Tensor, ids: Tensor, *, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    idle, total = ids >= experts, torch.zeros_like(shares[:, 0])
    for slot in range(ids.shape[1]):
        total = total + shares[:, slot].where(idle[:, slot], 0)
    slots = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).masked_fill(idle, ids.shape[1] - 1)
    first = ids.gather(1, slots.amin(dim=1, keepdim=True)).masked_fill(idle.all(dim=1, keepdim=True), 0)
    return shares.masked_fill(idle, 0), ids.where(~idle, first), total[:, None]


def linear_experts(x: Tensor | Rounded, weight: Weight, ids: Tensor, bias: Tensor | None = None) -> Tensor:
    """A few pairs of tokens and experts: with copies of their experts' matrices, without waiting for the device. Many:
    one expert after the other, for which the device is asked once where each one's pairs end."""
    rows = multiplied(x, weight)
    pairs = ids.flatten().long()
    tokens = torch.arange(len(pairs), device=pairs.device)
    rows = rows[tokens // ids.shape[1]] if rows.dim() == 2 else rows.flatten(0, 1)
    if len(pairs) <= len(weight.values):
        y = (weight.values[pairs] @ rows.unsqueeze(2)).squeeze(2)
    else:
        order = pairs.argsort(stable=True)
        counts = torch.zeros(len(weight.values), dtype=torch.int64, device=pairs.device)
        counts.index_add_(0, pairs, torch.ones_like(pairs))
        parts = rows[order].split(counts.tolist())
        sums = [part @ matrix.T for part, matrix in zip(parts, weight.values, strict=True)]
        y = torch.empty_like(torch.cat(sums)).index_copy_(0, order, torch.cat(sums))
    if bias is not None:
        y = y + bias[pairs]
    return y.unflatten(0, ids.shape)


def linear_experts_silu_mul(x: Tensor | Rounded, gate: Weight, up: Weight, ids: Tensor) -> Tensor:
    return silu_mul(linear_experts(x, gate, ids), linear_experts(x, up, ids))


def combine_experts(y: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, :1] * rows[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * rows[:, slot]
    return total if bias is None else total + bias
