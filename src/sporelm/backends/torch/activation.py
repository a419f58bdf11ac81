"""Activation functions through plain torch."""

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.activate, is_narrow=True)
def activate(x: Tensor, *, kind: str) -> Tensor:
    """Each kind rounds once: torch computes its functions of narrow numbers in float32."""
    if kind == "silu":
        return silu(x)
    if kind == "gelu_quick":
        wide = x.float()
        return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
    if kind == "linear":
        return x
    if kind == "sigmoid":
        return x.sigmoid()
    if kind == "softplus":
        return softplus(x)
    if kind in ("relu", "relu_squared"):
        return x.relu() ** (2 if kind == "relu_squared" else 1)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


@implements(ops.activate_mul, is_narrow=True)
def activate_mul(gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    return activate(gate, kind=kind) * up


@implements(ops.scale, is_narrow=True)
def scale(x: Tensor, *, factor: float) -> Tensor:
    return x * factor


@implements(ops.scale_by)
def scale_by(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


@implements(ops.xielu)
def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor, *, layer: int) -> Tensor:
    raw_p, raw_n, slope, least = (each.flatten()[layer] for each in (alpha_p, alpha_n, beta, eps))
    below = (slope + softplus(raw_n)) * (torch.minimum(x, least).expm1() - x)
    return torch.where(x > 0, softplus(raw_p) * x * x, below) + slope * x


@implements(ops.clip)
def clip(x: Tensor, *, limit: float) -> Tensor:
    return x.clamp(-limit, limit)


@implements(ops.softcap)
def softcap(x: Tensor, *, cap: float) -> Tensor:
    return cap * (x / cap).tanh()
