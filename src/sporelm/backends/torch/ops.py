"""Each op through plain torch: its numpy meaning, on tensors of whatever device they lie on.

Nothing here names a device, waits for one, or knows of back-ends. Indices may be int32; `Weight` and `Rounded` are how
packed weights and rounded rows lie here. Shapes are those of the meanings in `sporelm.ops`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sporelm.backends.torch.attention import attention, rope, rope_store
from sporelm.backends.torch.cache import store_kv
from sporelm.backends.torch.routing import route
from sporelm.ops.linear import ROW_FORMATS


class Weight(NamedTuple):
    """A weight matrix, dequantized once, and the activation numbers that its format multiplies."""

    values: Tensor  # float32 [out, in], or [experts, out, in]
    activation: str

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


class Rounded(NamedTuple):
    """Rows rounded for an integer dot product, as the float32 numbers that it multiplies: [tokens, (k,) width]."""

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


# ---- rows


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate / (1 + torch.exp(-alpha * gate)))


def activate(x: Tensor, *, kind: str) -> Tensor:
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "gelu_quick":
        return x / (1 + torch.exp(-1.702 * x))
    if kind in ("relu", "relu_squared"):
        return x.relu() ** (2 if kind == "relu_squared" else 1)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def activate_mul(gate: Tensor, up: Tensor, *, kind: str) -> Tensor:
    return activate(gate, kind=kind) * up


def scale(x: Tensor, *, factor: float) -> Tensor:
    return x * factor


def softcap(x: Tensor, *, cap: float) -> Tensor:
    return cap * (x / cap).tanh()


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    heads = x.unflatten(1, (-1, len(weight)))
    mean_square = heads.double().square().mean(dim=-1, keepdim=True)
    return (heads * (mean_square + eps).rsqrt().float() * weight).flatten(1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float) -> Tensor:
    wide = x.double()
    wide = wide - wide.mean(dim=-1, keepdim=True)
    scaled = (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).float() * weight
    return scaled if bias is None else scaled + bias


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps=eps), total


def embedding(ids: Tensor, table: Weight) -> Tensor:
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.values.index_select(0, ids.masked_fill(~known, 0))
    return found.masked_fill(~known.unsqueeze(1), torch.nan)


def select_rows(x: Tensor, wanted: Tensor) -> Tensor:
    return x.index_select(0, wanted)


def select_columns(x: Tensor, columns: Tensor) -> Tensor:
    return x.index_select(1, columns)


def count_nonfinite(values: Tensor) -> Tensor:
    return (~values.isfinite()).sum(dim=1, dtype=torch.int32)


def argmax(logits: Tensor) -> Tensor:
    """The first of equals, as torch promises."""
    return logits.argmax(dim=-1).masked_fill(logits.isnan().any(dim=-1), -1).int()


def top_k(logits: Tensor, *, k: int) -> tuple[Tensor, Tensor]:
    """By a stable sort: `torch.topk` promises no order among equals. NaN come last, as numpy sorts them."""
    order = torch.argsort(-logits, dim=-1, stable=True)[:, :k]
    return logits.gather(-1, order), order.int()


# ---- products


def quantize_rows(x: Tensor, *, activation: str = "int8/32") -> Rounded:
    """Divisions are of tensors: by a Python number, some devices multiply by a rounded reciprocal."""
    group = ROW_FORMATS[activation].values
    groups = x.unflatten(-1, (-1, group))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = torch.full_like(largest, 127)
    inverse = steps / largest
    integers = (groups * inverse.masked_fill(inverse.isinf(), 0)).round()
    return Rounded((integers * (largest / steps)).flatten(-2))


def multiplied(x: Tensor | Rounded, weight: Weight) -> Tensor:
    """The numbers of x that a weight multiplies."""
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    return x if isinstance(x, Tensor) else x.values


def linear(x: Tensor | Rounded, weight: Weight, bias: Tensor | None = None) -> Tensor:
    y = multiplied(x, weight) @ weight.values.T
    return y if bias is None else y + bias


def linear_group(x: Tensor | Rounded, weights: tuple[Weight, ...], biases: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    return tuple(linear(x, *pair) for pair in zip(weights, biases or [None] * len(weights), strict=True))


def linear_silu_mul(x: Tensor | Rounded, gate: Weight, up: Weight) -> Tensor:
    return silu_mul(linear(x, gate), linear(x, up))


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


def combine_experts(y: Tensor, weights: Tensor) -> Tensor:
    rows = y.reshape(*weights.shape, y.shape[-1])
    total = weights[:, :1] * rows[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * rows[:, slot]
    return total


def add_lora(y: Tensor, x: Tensor, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> Tensor:
    """One adapter after the other; `which` is a numpy array."""
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = (which == number).nonzero()[0].tolist()
        if down is not None and chosen:
            rows = torch.tensor(chosen, device=y.device)
            result.index_add_(0, rows, (x.index_select(0, rows) @ down.T) @ up)
    return result


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(add, silu_mul, clamped_swiglu, rms_norm, add_rms_norm, embedding, select_columns, select_rows, argmax),
        *(top_k, quantize_rows, activate, activate_mul, scale, softcap, layer_norm, add_layer_norm),
        count_nonfinite,
        *(route, linear_experts, linear_experts_silu_mul, combine_experts),
        *(add_lora, linear, linear_group, linear_silu_mul, rope, store_kv, rope_store, attention),
    )
}
