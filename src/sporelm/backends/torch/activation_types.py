"""The types in which the torch back-end keeps and computes real numbers (ADR 0044)."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sporelm.ops import Op
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F16, F32, DType

ACTIVATION_TYPES: dict[str, tuple[DType, torch.dtype]] = {
    "f32": (F32, torch.float32),
    "f16": (F16, torch.float16),
    "bf16": (BF16, torch.bfloat16),
}
NARROW_TYPES = (torch.float16, torch.bfloat16)
# Ops that decide something, or whose results are added up over many steps: their results stay float32.
F32_OPS = frozenset({
    "argmax", "top_k", "route", "split_zero_experts", "edit_logits", "mask_logits", "draw_tokens", "token_logprobs",
    "mean_rows", "topk_indexer",
})  # fmt: skip


def number_types_of(name: str, activation: DType) -> NumberTypes:
    """Return the types of an op, given the back-end's type of activations."""
    return NumberTypes(F32 if name in F32_OPS else activation, F32)


def round_results(op: Op, function: Callable[..., Any], activation: torch.dtype, *, widens: bool) -> Callable[..., Any]:
    """Return an op's function with its results rounded to its activation type. `widens`: narrow arguments are widened,
    for a function that takes only float32; arguments that the op changes in place stay as they are."""
    target = torch.float32 if op.name in F32_OPS else activation

    @wraps(function)
    def rounded(*args: Any, **options: Any) -> Any:
        if widens:
            args = tuple(arg if index in op.updates else _widen(arg) for index, arg in enumerate(args))
        return _round(function(*args, **options), target)

    return rounded


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in NARROW_TYPES else value
    return tuple(map(_widen, value)) if type(value) is tuple else value


def _round(result: Any, target: torch.dtype) -> Any:
    if isinstance(result, Tensor):
        return result.to(target) if result.is_floating_point() and result.dtype is not target else result
    return tuple(_round(each, target) for each in result) if type(result) is tuple else result
