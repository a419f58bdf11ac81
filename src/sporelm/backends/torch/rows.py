"""Ops on rows through plain torch: norms, activation functions, looking up and picking."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sporelm.backends.torch.products import Rounded, Weight, linear


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate / (1 + torch.exp(-alpha * gate)))


def activate(x: Tensor, *, kind: str) -> Tensor:
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "gelu_quick":
        return x / (1 + torch.exp(-1.702 * x))
    if kind == "linear":
        return x
    if kind == "sigmoid":
        return x.sigmoid()
    if kind == "softplus":
        return softplus(x)
    if kind in ("relu", "relu_squared"):
        return x.relu() ** (2 if kind == "relu_squared" else 1)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def activate_mul(gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    return activate(gate, kind=kind) * up


def linear_activate_mul(x: Tensor | Rounded, gate: Weight, up: Weight, *, kind: str) -> Tensor:
    return activate_mul(linear(x, gate), linear(x, up), kind=kind)


def scale(x: Tensor, *, factor: float) -> Tensor:
    return x * factor


def scale_by(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor, *, layer: int) -> Tensor:
    raw_p, raw_n, slope, least = (each.flatten()[layer] for each in (alpha_p, alpha_n, beta, eps))
    below = (slope + softplus(raw_n)) * (torch.minimum(x, least).expm1() - x)
    return torch.where(x > 0, softplus(raw_p) * x * x, below) + slope * x


def clip(x: Tensor, *, limit: float) -> Tensor:
    return x.clamp(-limit, limit)


def softcap(x: Tensor, *, cap: float) -> Tensor:
    return cap * (x / cap).tanh()


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    heads = x.unflatten(1, (-1, weight.shape[-1]))
    mean_square = heads.double().square().mean(dim=-1, keepdim=True)
    return (heads * (mean_square + eps).rsqrt().float() * weight).flatten(1)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    wide = (x if weight is None or weight.dim() == 1 else x.unflatten(1, weight.shape)).double()
    wide = wide - wide.mean(dim=-1, keepdim=True)
    scaled = (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).float()
    if weight is not None:
        scaled = (scaled * weight).view_as(x)
    return scaled if bias is None else scaled + bias


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


def embedding(ids: Tensor, table: Weight, *, fills: bool = False) -> Tensor:
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.values.index_select(0, ids.masked_fill(~known, 0))
    return found if fills else found.masked_fill(~known.unsqueeze(1), torch.nan)


def select_rows(x: Tensor, wanted: Tensor) -> Tensor:
    return x.index_select(0, wanted)


def select_columns(x: Tensor, columns: Tensor) -> Tensor:
    return x.index_select(1, columns)


def join_columns(x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
    return torch.cat((x, y) if z is None else (x, y, z), dim=1)


def join_slots(y: Tensor, columns: Tensor) -> Tensor:
    return y.flatten(1).index_select(1, columns)


def cut_slots(x: Tensor, columns: Tensor, *, k: int) -> Tensor:
    return x.index_select(1, columns).unflatten(1, (k, -1)).contiguous()


def count_nonfinite(values: Tensor) -> Tensor:
    return (~values.isfinite()).sum(dim=1, dtype=torch.int32)


def argmax(logits: Tensor) -> Tensor:
    """The first of equals, as torch promises."""
    return logits.argmax(dim=-1).masked_fill(logits.isnan().any(dim=-1), -1).int()


def top_k(logits: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """By a stable sort: `torch.topk` promises no order among equals. NaN come last, as numpy sorts them."""
    order = torch.argsort(-logits, dim=-1, stable=True)[:, :k]
    return logits.gather(-1, order), order.int()
