"""The choice of experts through plain torch: its numpy meaning in `sporelm.ops.routing`."""

import torch
from torch import Tensor


def route(
    logits: Tensor,  # [tokens, experts]
    selection_bias: Tensor | None = None,  # [experts]
    *,
    k: int,
    scores: str = "softmax",
    renormalize: bool = False,
    epsilon: float = 0.0,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "max",
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
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + epsilon)
    return weights * scale, ids.int()


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
