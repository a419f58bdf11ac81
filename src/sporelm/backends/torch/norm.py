"""Norms through plain torch."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.rms_norm)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    heads = x.unflatten(1, (-1, weight.shape[-1]))
    mean_square = heads.double().square().mean(dim=-1, keepdim=True)
    return (heads * (mean_square + eps).rsqrt().float() * weight).flatten(1)


@implements(ops.layer_norm)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    wide = (x if weight is None or weight.dim() == 1 else x.unflatten(1, weight.shape)).double()
    wide = wide - wide.mean(dim=-1, keepdim=True)
    scaled = (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).float()
    if weight is not None:
        scaled = (scaled * weight).view_as(x)
    return scaled if bias is None else scaled + bias


@implements(ops.add_layer_norm)
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


@implements(ops.add_rms_norm)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


@implements(ops.group_norm)
def group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, group: int, eps: float) -> Tensor:
    return (layer_norm(x.reshape(-1, group), eps=eps).view(-1, len(weight)) * weight + bias).view_as(x)
