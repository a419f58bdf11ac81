"""The ops `torch.ops.sporelm.*`: their schemas, their kernels by device, and their fake implementations.

Real arguments may have any floating type: kernels on the CPU compute in float32, results have the type of x.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from sporelm.adaptors.torch import device_kernels
from sporelm.adaptors.torch.gated_weights import GatedWeights
from sporelm.adaptors.torch.thread_choice import host_kernels
from sporelm.quant import dequantize_tensor, format_of

NAMESPACE = "sporelm"
SCHEMAS = {
    "quantize": "(Tensor weight, str format) -> Tensor",
    "dequantize": "(Tensor blocks, str format, int[] shape) -> Tensor",
    "pack": "(Tensor blocks, str format, int[] shape) -> Tensor",
    "linear": "(Tensor x, Tensor packed, Tensor? bias, str format, int[] shape) -> Tensor",
    "gated_mlp": (
        "(Tensor x, Tensor gate, Tensor up, Tensor down, str format, str down_format, int inner, str kind) -> Tensor"
    ),
    "experts": (
        "(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor ids, Tensor weights, str format, str down_format,"
        " int[] shape) -> Tensor"
    ),
    "rms_norm": "(Tensor x, Tensor weight, float eps) -> Tensor",
    "silu_and_mul": "(Tensor x) -> Tensor",
    "rotary": "(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    "attention": "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool is_causal) -> Tensor",
}
_LIBRARY = Library(NAMESPACE, "FRAGMENT")
for _name, _schema in SCHEMAS.items():
    _LIBRARY.define(_name + _schema)


def _on_host(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the kernel of an op for tensors of the CPU."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _LIBRARY.impl(name, function, "CPU")
        return function

    return register


def _elsewhere(name: str, function: Callable[..., Any]) -> None:
    """Register the kernel of an op for tensors of any other device."""
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")


def _fake(name: str, function: Callable[..., Any]) -> None:
    register_fake(f"{NAMESPACE}::{name}", function, lib=_LIBRARY)


def _call_host(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that takes kernels with those of the CPU."""
    return function(host_kernels(), *args, **options)


# ---- weights


@_on_host("quantize")
def _quantize(weight: Tensor, format: str) -> Tensor:
    return host_kernels().quantize(weight, format)


_elsewhere("quantize", lambda weight, format: host_kernels().quantize(weight.cpu(), format).to(weight.device))
_fake(
    "quantize",
    lambda weight, format: weight.new_empty(
        (*weight.shape[:-1], format_of(format).tensor_nbytes((weight.shape[-1],))), dtype=torch.uint8
    ),
)


def _dequantize(blocks: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    values = dequantize_tensor(format_of(format), blocks.cpu().contiguous().numpy(), tuple(shape))
    return torch.from_numpy(values).to(blocks.device)


_elsewhere("dequantize", _dequantize)
_fake("dequantize", lambda blocks, format, shape: blocks.new_empty(shape, dtype=torch.float32))


@_on_host("pack")
def _pack(blocks: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    return host_kernels().pack(blocks, format, shape)


_elsewhere("pack", device_kernels.pack)


def _packed_bytes(device: torch.device, format: str, shape: Sequence[int]) -> int:
    kernels: Any = host_kernels() if device.type == "cpu" else device_kernels
    return int(kernels.packed_bytes(format, shape))


_fake(
    "pack",
    lambda blocks, format, shape: blocks.new_empty(_packed_bytes(blocks.device, format, shape), dtype=torch.uint8),
)


# ---- products


@_on_host("linear")
def _linear(x: Tensor, packed: Tensor, bias: Tensor | None, format: str, shape: Sequence[int]) -> Tensor:
    y = host_kernels().linear(x, packed, bias, format, shape)
    return _result(y, x, (*x.shape[:-1], shape[0]))


_elsewhere("linear", device_kernels.linear)
_fake("linear", lambda x, packed, bias, format, shape: x.new_empty((*x.shape[:-1], shape[0])))


def _gated_mlp(
    kernels: Any,
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    format: str,
    down_format: str,
    inner: int,
    kind: str,
) -> Tensor:
    weights = GatedWeights(gate, up, down, format, down_format, (inner, x.shape[-1]))
    return _result(kernels.gated_mlp(x, weights, kind), x, x.shape)


def _experts(
    kernels: Any,
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    format: str,
    down_format: str,
    shape: Sequence[int],
) -> Tensor:
    packed = GatedWeights(gate, up, down, format, down_format, tuple(shape))
    return _result(kernels.experts(x, packed, ids, weights), x, x.shape)


for _name, _function in (("gated_mlp", _gated_mlp), ("experts", _experts)):
    _LIBRARY.impl(_name, partial(_call_host, _function), "CPU")
    _elsewhere(_name, partial(_function, device_kernels))
    _fake(_name, lambda x, *args, **options: x.new_empty(x.shape))


# ---- rows


@_on_host("rms_norm")
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _result(host_kernels().rms_norm(x, weight, eps), x, x.shape)


_elsewhere("rms_norm", device_kernels.rms_norm)
_fake("rms_norm", lambda x, weight, eps: x.new_empty(x.shape))


@_on_host("silu_and_mul")
def _silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return _result(host_kernels().silu_mul(gate, up), x, gate.shape)


def _silu_and_mul_elsewhere(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


_elsewhere("silu_and_mul", _silu_and_mul_elsewhere)
_fake("silu_and_mul", lambda x: x.new_empty((*x.shape[:-1], x.shape[-1] // 2)))


@_on_host("rotary")
def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    head_dim = x.shape[-1]
    table = torch.cat((cos, sin), dim=-1).float()
    table = table.expand(*x.shape[:-2], table.shape[-1])
    y = host_kernels().rotary(x.flatten(-2), table.reshape(-1, table.shape[-1]), head_dim, "half")
    return _result(y, x, x.shape)


_elsewhere("rotary", device_kernels.rotary)
_fake("rotary", lambda x, cos, sin: x.new_empty(x.shape))


# ---- attention


@_on_host("attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, is_causal: bool) -> Tensor:
    batch, heads, rows, head_dim = q.shape
    keys, value_dim = k.shape[2], v.shape[3]
    spans = None if mask is None else _spans_of(mask.expand(batch, -1, rows, keys))
    if head_dim != value_dim or head_dim % 2 or (mask is not None and spans is None):
        return device_kernels.attention(q, k, v, mask, scale, is_causal).to(q.dtype)
    kernels = host_kernels()
    # [batch, rows, heads * head_dim]: most models lay their heads out like this already
    queries, held, values = (x.transpose(1, 2).reshape(batch, x.shape[2], -1) for x in (q, k, v))
    found = []
    for each in range(batch):
        one = queries[each], held[each], values[each]
        if spans is None and is_causal and rows > 1:
            found.append(kernels.causal_attention(*one, head_dim, scale))
            continue
        seen = spans[each] if spans is not None else torch.tensor([[0, keys]], dtype=torch.int32).expand(rows, 2)
        order = None
        if spans is not None and rows > 1:
            order = torch.argsort(seen[:, 0].long() * (keys + 1) + seen[:, 1].long(), stable=True)
            one, seen = (one[0][order], *one[1:]), seen[order]
        mixed = kernels.span_attention(*one, seen, head_dim, scale)
        found.append(mixed if order is None else mixed[torch.argsort(order)])
    mixed = found[0] if batch == 1 else torch.cat([each.contiguous() for each in found])
    return _result(mixed, q, (batch, rows, heads, head_dim))


def _spans_of(mask: Tensor) -> Tensor | None:
    """Return the span of keys that each row sees, int32 [batch, rows, 2]; None if the keys of some row are not one
    span, or heads differ. `mask` is bool [batch, 1, rows, keys], or numbers that are added to scores."""
    if mask.shape[1] != 1:
        return None
    if mask.dtype is torch.bool:
        seen = mask[:, 0]
    else:
        seen = mask[:, 0] == 0
        if not (mask[:, 0][~seen] <= torch.finfo(mask.dtype).min / 2).all():
            return None
    counts = seen.sum(dim=-1, dtype=torch.int32)
    begins = seen.to(torch.uint8).argmax(dim=-1).to(torch.int32)
    ends = seen.shape[-1] - seen.flip(-1).to(torch.uint8).argmax(dim=-1).to(torch.int32)
    if not ((ends - begins == counts) & (counts > 0)).all():
        return None
    return torch.stack((begins, ends), dim=-1)


_elsewhere("attention", device_kernels.attention)
_fake(
    "attention",
    lambda q, k, v, mask, scale, is_causal: q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])),
)


def _result(y: Tensor, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return results in x's type and this shape: a tensor of their own, not a view of longer rows."""
    return y.reshape(shape).to(x.dtype).contiguous()


# ---- the same ops as functions


def quantize(weight: Tensor, format: str) -> Tensor:
    """Return a weight's rows as blocks of a number format, as GGUF files have them.

    weight [..., columns] of any floating type -> uint8 [..., bytes of a row]. Raises OpError where rows are not whole
    blocks, for numbers that are not finite, and for formats that are read-only.
    """
    return torch.ops.sporelm.quantize(weight, format_of(format).name)


def dequantize(blocks: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    """Return the numbers of blocks: float32 of this shape, on the same device."""
    return torch.ops.sporelm.dequantize(blocks, format_of(format).name, list(shape))


def pack(blocks: Tensor, format: str, shape: Sequence[int]) -> Tensor:
    """Return blocks of a matrix [out, in], or of experts' matrices [experts, out, in], as the kernels of their device
    read them: uint8 [bytes]. On the CPU the layout depends on the instructions that this machine has."""
    return torch.ops.sporelm.pack(blocks, format_of(format).name, list(shape))


def linear(x: Tensor, packed: Tensor, format: str, shape: Sequence[int], bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias: x [..., in], a packed weight of shape (out, in), bias [out] -> [..., out]."""
    return torch.ops.sporelm.linear(x, packed, bias, format_of(format).name, list(shape))


def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    format: str,
    inner: int,
    *,
    down_format: str = "",
    kind: str = "silu",
) -> Tensor:
    """Return (activate(x @ gate.T) * (x @ up.T)) @ down.T for packed weights [inner, width] and [width, inner].

    x [..., width] -> [..., width]. `kind` is silu, gelu or gelu_tanh.
    """
    form = format_of(format).name
    return torch.ops.sporelm.gated_mlp(x, gate, up, down, form, format_of(down_format or form).name, inner, kind)


def experts(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    format: str,
    shape: Sequence[int],
    *,
    down_format: str = "",
) -> Tensor:
    """Return the sum over each row's experts of its weight times the expert's gated MLP with silu.

    x [tokens, width]; gate and up packed (experts, inner, width) = shape, down packed (experts, width, inner); ids of
    integers and weights of floats [tokens, k] -> [tokens, width]
    """
    form = format_of(format).name
    down_name = format_of(down_format or form).name
    return torch.ops.sporelm.experts(x, gate, up, down, ids, weights, form, down_name, list(shape))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rows [..., width] divided by their root mean squares, times weight [width]; statistics are float32."""
    return torch.ops.sporelm.rms_norm(x, weight, eps)


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu of the first half of each row [..., 2 * width] times its second half: [..., width]."""
    return torch.ops.sporelm.silu_and_mul(x)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first numbers of each head by halves: x [..., heads, head_dim], cos and sin [..., rotary / 2]."""
    return torch.ops.sporelm.rotary(x, cos, sin)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float, is_causal: bool = True
) -> Tensor:
    """Return softmax(q k * scale) v: q [batch, heads, rows, head_dim], k and v [batch, kv_heads, keys, head_dim] ->
    [batch, rows, heads, head_dim].

    mask       bool [batch, 1, rows, keys], or numbers to add. On the CPU, masks in which each row sees one span of keys
               are computed by our kernels, others by torch
    is_causal  without a mask, rows are the last ones of the keys, and each sees the keys up to its own
    """
    return torch.ops.sporelm.attention(q, k, v, mask, scale, is_causal)
