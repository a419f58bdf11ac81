"""Expert routing through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.route)
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
    ids = _find_top_k(choice, _excluded_experts(choice, groups, top_groups, group_score), k)
    weights = scored.gather(1, ids)
    if scores == "softmax_of_chosen":
        weights = weights.softmax(dim=1)
    if scores == "sigmoid_of_chosen":
        weights = weights.sigmoid()
    if scores == "softmax_of_near":
        weights = _sparse_mixer_weights(logits, ids, near)
    if renormalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + epsilon)
    weights = weights * scale
    return weights if factors is None else weights * factors[ids], ids.int()


def _sparse_mixer_weights(logits: Tensor, ids: Tensor, near: float) -> Tensor:
    """Return each selected expert's softmax over the near experts that were not selected before."""
    weights, left = [], torch.ones_like(logits, dtype=torch.bool)
    for chosen in ids.split(1, dim=1):
        own = logits.gather(1, chosen)
        far = (own - logits) / torch.maximum(logits.abs(), own) > near
        weights.append(1 / (logits - own).exp().masked_fill(far | ~left, 0.0).sum(dim=1, keepdim=True))
        left = left.scatter(1, chosen, False)
    return torch.cat(weights, dim=1)


def _find_top_k(values: Tensor, shut: Tensor, k: int) -> Tensor:
    """Return the indices of the k greatest values of each row that are not excluded, the first among equals.

    Two stable sorts: minus infinity may be selected if nothing better is eligible.
    """
    order = torch.argsort(-values, dim=1, stable=True)
    last = torch.argsort(shut.gather(1, order).int(), dim=1, stable=True)
    return order.gather(1, last)[:, :k]


def _excluded_experts(choice: Tensor, groups: int, top_groups: int, group_score: str) -> Tensor:
    """Return which experts are in a group that is not eligible."""
    if top_groups == groups:
        return torch.zeros_like(choice, dtype=torch.bool)
    members = choice.unflatten(1, (groups, -1))
    best = members.amax(dim=2) if group_score == "max" else members.sort(dim=2).values[:, :, -2:].sum(dim=2)
    best = best.masked_fill(best.isnan(), -torch.inf)
    taken = _find_top_k(best, torch.zeros_like(best, dtype=torch.bool), top_groups)
    closed = torch.ones_like(best, dtype=torch.bool).scatter(1, taken, False)
    return closed.repeat_interleave(choice.shape[1] // groups, dim=1)
