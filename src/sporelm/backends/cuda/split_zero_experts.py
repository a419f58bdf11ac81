"""The split of zero-computation experts: one launch, a program for some tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.launch import launch
from sporelm.backends.cuda.op_kernels import launches

TOKENS = 8  # of a program


@triton.jit
def split_zero_experts_kernel(
    weights, ids, kept_weights, kept_ids, idle_weights, tokens, k, experts, TOKENS: tl.constexpr, SLOTS: tl.constexpr
):
    """Write the weights and ids of TOKENS tokens without experts that do not compute, and the sums of their weights."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.arange(0, SLOTS)[None, :]
    place = token.to(tl.int64)[:, None] * k + slot
    inside = (token < tokens)[:, None] & (slot < k)
    weight, expert = tl.load(weights + place, mask=inside, other=0.0), tl.load(ids + place, mask=inside, other=0)
    is_idle = expert >= experts
    first_slot = tl.min(tl.where(inside & (is_idle == 0), slot, SLOTS), 1)
    first = tl.sum(tl.where(slot == first_slot[:, None], expert, 0), 1)  # 0 if none computes
    tl.store(kept_weights + place, tl.where(is_idle, 0.0, weight), mask=inside)
    tl.store(kept_ids + place, tl.where(is_idle, first[:, None], expert), mask=inside)
    tl.store(idle_weights + token, tl.sum(tl.where(is_idle, weight, 0.0), 1), mask=token < tokens)


@launches(ops.split_zero_experts)
def split_zero_experts(weights: Tensor, ids: Tensor, *, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights and ids of experts that compute, and the sum of the others' weights: [tokens, 1]."""
    tokens, k = ids.shape
    given, chosen = weights.float().contiguous(), ids.int().contiguous()
    kept_weights, kept_ids = torch.empty_like(given), torch.empty_like(chosen)
    idle_weights = torch.empty(tokens, 1, dtype=torch.float32, device=ids.device)
    launch(
        split_zero_experts_kernel,
        (triton.cdiv(tokens, TOKENS),),
        *(given, chosen, kept_weights, kept_ids, idle_weights, tokens, k, experts),
        TOKENS=TOKENS,
        SLOTS=triton.next_power_of_2(k),
        num_warps=1,
    )
    return kept_weights, kept_ids, idle_weights
