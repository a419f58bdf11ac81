"""Attention of grouped queries over a paged cache, with rotary positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear, products
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.weights.config import ModelConfig
from sporelm.weights.names import Columns, Param, Rows


@dataclass(frozen=True)
class Paged:
    """What a block keeps of each position: keys and values of `kv_heads` heads, in pages of 64 positions."""

    kv_heads: int
    head_dim: int


class Attention:
    """o(softmax(rope(q) rope(k)) v), each group of query heads sharing one head of keys and values."""

    def __init__(self, name: str, config: ModelConfig, window: int | None) -> None:
        width, dim, bias = config.width, config.head_dim, config.attention_bias
        queries, keys = config.heads * dim, config.kv_heads * dim
        group = config.heads // config.kv_heads
        self.q = Linear(f"{name}.attn_q", queries, width, bias=bias, split=Rows(dim * group))
        self.k = Linear(f"{name}.attn_k", keys, width, bias=bias, split=Rows(dim))
        self.v = Linear(f"{name}.attn_v", keys, width, bias=bias, split=Rows(dim))
        self.o = Linear(f"{name}.attn_o", width, queries, bias=config.attention_out_bias, split=Columns(dim * group))
        self.memory = Paged(config.kv_heads, dim)
        self.window = window

    def params(self) -> list[Param]:
        return [*self.q.params(), *self.k.params(), *self.v.params(), *self.o.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        q, k, v = products(x, weights, self.q, self.k, self.v)
        dim, table = self.memory.head_dim, weights[ROPE]
        q = ops.rope(q, step.positions, table, head_dim=dim, style="half")
        k = ops.rope(k, step.positions, table, head_dim=dim, style="half")
        ops.store_kv(k, v, cache, step.slots)
        mixed = ops.attention(q, cache, step.starts, step.lengths, step.pages, scale=dim**-0.5, window=self.window)
        return self.o(mixed, weights)
