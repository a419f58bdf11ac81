"""Expert routing: one launch, a program for each token.

Scores lie in a tile [groups, experts of a group] of one program. The best experts are taken one after the other, the
first among equals: that is exact for any values, and costs two reductions for each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.numbers import load_wide
from sporelm.backends.cuda.op_kernels import launches
from sporelm.backends.cuda.row_views import view_rows

MAX_OF_WARP = 1024  # experts that one warp holds


@triton.jit
def _without_nan(values):
    """Return scores with NaN as the lowest."""
    return tl.where(values != values, float("-inf"), values)


@triton.jit
def _take_best(values, index, is_open):
    """Return the index of the greatest value that is open, the lowest among equals, and a tile's others as open."""
    best = tl.max(tl.where(is_open, values, float("-inf")))
    taken = tl.min(tl.where(is_open & (values == best), index, 0x7FFFFFFF))
    return taken, is_open & (index != taken)


@triton.jit
def _find_top_groups(
    choice, is_expert, groups, members, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, GROUP_SCORE: tl.constexpr
):
    """Return which groups of a tile [groups, members] are eligible: [GROUPS]."""
    best = tl.max(choice, 1)
    if GROUP_SCORE == "sum_of_two":
        member = tl.arange(0, choice.shape[1])[None, :]
        first = tl.min(tl.where(is_expert & (choice == best[:, None]), member, choice.shape[1]), 1)
        second = tl.max(tl.where(member == first[:, None], float("-inf"), choice), 1)
        best = _without_nan(best + second)
    group = tl.arange(0, GROUPS)
    is_open = group < groups
    for _ in range(TOP_GROUPS):
        _, is_open = _take_best(best, group, is_open)
    return (group < groups) & (is_open == 0)


@triton.jit
def route_kernel(
    logits, selection_bias, factors, weights, ids, logit_stride, groups, members, epsilon, scale, near,
    K: tl.constexpr, SLOTS: tl.constexpr, SCORES: tl.constexpr, RENORMALIZES: tl.constexpr, TOP_GROUPS: tl.constexpr,
    GROUP_SCORE: tl.constexpr, GROUPS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """Write the K experts of a token and their weights. With TOP_GROUPS > 0 only experts of that many are eligible."""
    token = tl.program_id(0).to(tl.int64)
    group, member = tl.arange(0, GROUPS)[:, None], tl.arange(0, MEMBERS)[None, :]
    is_expert = (group < groups) & (member < members)
    expert = group * members + member
    own = load_wide(logits + token * logit_stride + expert, is_expert)
    scored = own
    if SCORES == "softmax":
        largest = tl.max(tl.where(is_expert, own, float("-inf")))
        scored = tl.where(is_expert, tl.exp(own - largest), 0.0)
        scored = tl.div_rn(scored, tl.sum(scored) + tl.zeros_like(scored))
    if SCORES == "sigmoid":
        scored = 1.0 / (1.0 + tl.exp(-own))
    choice = own
    if selection_bias is not None or (TOP_GROUPS > 0 and GROUP_SCORE != "max"):
        choice = scored
    if selection_bias is not None:
        choice += load_wide(selection_bias + expert, is_expert)
    choice = tl.where(is_expert, _without_nan(choice), float("-inf"))
    is_open = is_expert
    if TOP_GROUPS > 0:
        is_open &= _find_top_groups(choice, is_expert, groups, members, GROUPS, TOP_GROUPS, GROUP_SCORE)[:, None]
    is_left = is_expert
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros((SLOTS,), tl.int32)
    found = tl.zeros((SLOTS,), tl.float32)
    for place in range(K):
        taken, is_open = _take_best(choice, expert, is_open)
        is_taken = is_expert & (expert == taken)
        weight = tl.sum(tl.where(is_taken, scored, 0.0))
        if SCORES == "softmax_of_near":
            bound = tl.maximum(tl.abs(own), weight + tl.zeros_like(own))
            is_regular = (bound > 0) & (bound < float("inf"))  # else the quotient is NaN: not far
            is_far = is_regular & (tl.div_rn(weight - own, tl.where(is_regular, bound, 1.0)) > near)
            total = tl.sum(tl.where(is_left & (is_far == 0), tl.exp(own - weight), 0.0))
            weight = 1.0 / total
            is_left = is_left & (is_taken == 0)
        chosen = tl.where(slot == place, taken, chosen)
        found = tl.where(slot == place, weight, found)
    is_slot = slot < K
    if SCORES == "softmax_of_chosen":
        powers = tl.where(is_slot, tl.exp(found - tl.max(tl.where(is_slot, found, float("-inf")), 0)), 0.0)
        found = powers / tl.sum(powers, 0)
    if SCORES == "sigmoid_of_chosen":
        found = 1.0 / (1.0 + tl.exp(-found))
    if RENORMALIZES:
        found = found / (tl.sum(tl.where(is_slot, found, 0.0), 0) + epsilon)
    found *= scale
    if factors is not None:
        found *= load_wide(factors + chosen, is_slot)
    tl.store(weights + token * K + slot, found, mask=is_slot)
    tl.store(ids + token * K + slot, chosen, mask=is_slot)


@launches(ops.route)
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
    """Return the k experts of each token: float32 weights and int32 ids [tokens, k]."""
    tokens, experts = logits.shape
    rows = view_rows(logits)
    weights = torch.empty(tokens, k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    members = experts // groups
    bias, multiples = (None if each is None else each.contiguous() for each in (selection_bias, factors))
    launch(
        route_kernel,
        (tokens,),
        *(rows, bias, multiples, weights, ids, rows.stride(0), groups, members),
        *(float(epsilon), float(scale), float(near)),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        SCORES=scores,
        RENORMALIZES=renormalize,
        TOP_GROUPS=top_groups if groups > 1 else 0,
        GROUP_SCORE=group_score,
        GROUPS=triton.next_power_of_2(groups),
        MEMBERS=triton.next_power_of_2(members),
        num_warps=1 if experts <= MAX_OF_WARP else 4,
    )
    return weights, ids
