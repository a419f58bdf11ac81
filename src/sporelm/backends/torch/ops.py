"""Each op through plain torch: its numpy meaning, on tensors of whatever device they lie on.

Nothing here names a device, waits for one, or knows of back-ends. Indices may be int32; `Weight` and `Rounded` are how
packed weights and rounded rows lie here. Shapes are those of the meanings in `sporelm.ops`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from sporelm.ops.attention import PAGE
from sporelm.ops.cache import BlockPages
from sporelm.ops.linear import ROW_FORMATS
from sporelm.quant import Q8_0


class Weight(NamedTuple):
    """A weight matrix, dequantized once, and the activation numbers that its format multiplies."""

    values: Tensor  # float32 [out, in]
    activation: str

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


class Rounded(NamedTuple):
    """Rows rounded for an integer dot product, as the float32 numbers that it multiplies: [tokens, width]."""

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


# ---- rows


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    mean_square = x.double().square().mean(dim=-1, keepdim=True)
    return x * (mean_square + eps).rsqrt().float() * weight


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
    groups = x.unflatten(1, (-1, group))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = torch.full_like(largest, 127)
    inverse = steps / largest
    integers = (groups * inverse.masked_fill(inverse.isinf(), 0)).round()
    return Rounded((integers * (largest / steps)).flatten(1))


def linear(x: Tensor | Rounded, weight: Weight, bias: Tensor | None = None) -> Tensor:
    if isinstance(x, Tensor) and weight.activation in ROW_FORMATS:
        x = quantize_rows(x, activation=weight.activation)
    y = (x if isinstance(x, Tensor) else x.values) @ weight.values.T
    return y if bias is None else y + bias


def linear_group(x: Tensor | Rounded, weights: tuple[Weight, ...], biases: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    return tuple(linear(x, *pair) for pair in zip(weights, biases or [None] * len(weights), strict=True))


def linear_silu_mul(x: Tensor | Rounded, gate: Weight, up: Weight) -> Tensor:
    return silu_mul(linear(x, gate), linear(x, up))


def add_lora(y: Tensor, x: Tensor, which: Any, a: tuple[Any, ...], b: tuple[Any, ...]) -> Tensor:
    """One adapter after the other; `which` is a numpy array."""
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        chosen = (which == number).nonzero()[0].tolist()
        if down is not None and chosen:
            rows = torch.tensor(chosen, device=y.device)
            result.index_add_(0, rows, (x.index_select(0, rows) @ down.T) @ up)
    return result


# ---- attention


def rope(x: Tensor, positions: Tensor, table: Tensor, *, head_dim: int, style: str) -> Tensor:
    rotary = table.shape[1]
    cosines, sines = table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [tokens, 1, rotary / 2]
    heads = x.unflatten(1, (-1, head_dim))
    turned, rest = heads[..., :rotary], heads[..., rotary:]
    left, right = turned.chunk(2, dim=-1) if style == "half" else (turned[..., ::2], turned[..., 1::2])
    pairs = (left * cosines - right * sines, right * cosines + left * sines)
    turned = torch.cat(pairs, dim=-1) if style == "half" else torch.stack(pairs, dim=-1).flatten(-2)
    return torch.cat((turned, rest), dim=-1).flatten(1)


def store_kv(k: Tensor, v: Tensor, cache: Tensor | BlockPages, slots: Tensor) -> tuple[()]:
    page, offset = (slots // PAGE).long(), (slots % PAGE).long()
    for half, rows in enumerate((k, v)):
        heads = rows.unflatten(1, cache.shape[2::2])
        if isinstance(cache, BlockPages):
            cache.blocks[:, half][page, :, offset] = rounded_blocks(heads)
        else:
            cache[:, half][page, :, offset] = heads.to(cache.dtype)
    return ()


def rounded_blocks(heads: Tensor) -> Tensor:
    """[..., head_dim] as Q8_0 blocks of 34 bytes, zeros after the last value: uint8 [..., groups * 34]."""
    groups = pad(heads, (0, -heads.shape[-1] % Q8_0.values)).unflatten(-1, (-1, Q8_0.values))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    scales = largest / torch.full_like(largest, 127)
    inverse = torch.ones_like(scales) / scales
    scaled = groups * inverse.masked_fill(~inverse.isfinite(), 0)
    whole = scaled.trunc()
    away = torch.where((scaled - whole).abs() >= 0.5, scaled.sign(), 0)  # halves go away from zero
    integers = (whole + away).nan_to_num(0).to(torch.int8)
    return torch.cat((scales.half().view(torch.uint8), integers.view(torch.uint8)), dim=-1).flatten(-2)


def held_in(cache: Tensor | BlockPages, pages: Tensor) -> Tensor:
    """What pages hold, in the cache's numbers; blocks of Q8_0 as the float32 that they stand for."""
    if not isinstance(cache, BlockPages):
        return cache.index_select(0, pages)
    blocks = cache.blocks.index_select(0, pages).unflatten(-1, (-1, Q8_0.nbytes))
    scales = blocks[..., :2].contiguous().view(torch.float16).float()
    values = (blocks[..., 2:].contiguous().view(torch.int8).float() * scales).flatten(-2)
    return values[..., : cache.shape[-1]]


def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    cache: Tensor | BlockPages,
    slots: Tensor,
    **how: Any,
) -> Tensor:
    store_kv(rope(k, positions, table, **how), v, cache, slots)
    return rope(q, positions, table, **how)


def attention(
    q: Tensor,
    cache: Tensor | BlockPages,
    starts: Any,
    lengths: Any,
    pages: Tensor,
    sinks: Tensor | None = None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One sequence after the other, over the pages that its rows see; `starts` and `lengths` are numpy arrays."""
    out = torch.zeros_like(q)
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), strict=True)
    for sequence, (start, stop, length) in enumerate(bounds):
        if start == stop:
            continue
        row = length - (stop - start)  # position of the first row
        page = 0 if window is None else max(0, row - window + 1) // PAGE
        held = held_in(cache, pages[sequence, page : -(-length // PAGE)])  # [pages, 2, kv_heads, PAGE, head_dim]
        first = 0 if window is None else max(0, row - window + 1) - page * PAGE
        held = held.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, first : length - page * PAGE].float()
        seen = None
        if stop - start > 1:
            place = torch.arange(page * PAGE + first, length, device=q.device)
            rows = torch.arange(row, length, device=q.device).unsqueeze(1)
            seen = place <= rows if window is None else (place <= rows) & (place > rows - window)
        queries = q[start:stop].unflatten(1, (-1, cache.shape[4])).transpose(0, 1)  # [heads, rows, head_dim]
        if sinks is None and softcap is None:
            mixed = scaled_dot_product_attention(
                queries.unsqueeze(0), *held.unsqueeze(1), attn_mask=seen, scale=scale, enable_gqa=True
            )[0]
        else:
            mixed = _mixed(queries, held, seen, sinks, scale, softcap)
        out[start:stop] = mixed.transpose(0, 1).flatten(1)
    return out


def _mixed(
    queries: Tensor, held: Tensor, seen: Tensor | None, sinks: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attention with sinks or bounded scores: queries [heads, rows, head_dim], held [2, kv_heads, positions, ...]."""
    keys, values = held.unsqueeze(2)  # a place for the group
    grouped = queries.unflatten(0, (keys.shape[0], -1))
    scores = grouped @ keys.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.view(*grouped.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[2]]
    return (weights @ values).flatten(0, 1)


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(add, silu_mul, rms_norm, add_rms_norm, embedding, select_columns, select_rows, argmax, top_k, quantize_rows),
        count_nonfinite,
        *(add_lora, linear, linear_group, linear_silu_mul, rope, store_kv, rope_store, attention),
    )
}
