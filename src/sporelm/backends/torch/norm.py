"""Norms through plain torch. Statistics are float32."""

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import rms_norm as torch_rms_norm

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.step_context import STEP


@implements(ops.rms_norm, is_narrow=True)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    size, width = weight.shape[-1], x.shape[-1]
    if size == width and weight.dim() == 1:
        return _normalize(x, weight, eps).to(x.dtype)
    return _normalize(x.unflatten(1, (-1, size)), weight, eps).flatten(1).to(x.dtype)


def _normalize(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rows divided by their root mean squares, times the weight of all or of each: float32."""
    wide, width = rows.float(), rows.shape[-1]
    if wide.device.type != "cpu":  # one kernel there
        if weight.dim() == 1:
            return torch_rms_norm(wide, weight.shape, weight, eps)
        return torch_rms_norm(wide, (width,), None, eps).mul_(weight)
    # On the CPU torch's own function is a sequence of more calls than these five: twice the time for one row.
    norms = vector_norm(wide, dim=-1, keepdim=True)
    epsilon = STEP.share("epsilon", (), (eps,), lambda: torch.full((), eps))
    scales = torch.addcmul(epsilon, norms, norms, value=1 / width).rsqrt_()
    return (wide * scales).mul_(weight)


@implements(ops.layer_norm, is_narrow=True)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    wide = x.float()
    rows = wide.unflatten(1, weight.shape) if weight is not None and weight.dim() == 2 else wide
    # torch's own layer_norm takes mean and variance in one pass, which cancels for rows far from zero. There a rounded
    # mean is too coarse as well: the second one is of what it leaves.
    centred = rows - rows.mean(dim=-1, keepdim=True)
    centred -= centred.mean(dim=-1, keepdim=True)
    scaled = centred * centred.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
    scaled = (scaled if weight is None else scaled.mul_(weight)).flatten(1)
    return (scaled if bias is None else scaled.add_(bias)).to(x.dtype)


@implements(ops.add_layer_norm, is_narrow=True)
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


@implements(ops.add_rms_norm, is_narrow=True)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


@implements(ops.group_norm)
def group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, group: int, eps: float) -> Tensor:
    return (layer_norm(x.reshape(-1, group), eps=eps).view(-1, len(weight)) * weight + bias).view_as(x)
