"""Attention of whole texts in both directions, with rotary positions, linear biases or neither."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import RowBlock
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_inputs import EncoderInputs
from sporelm.models.inputs import BIASES, LOCAL, ROPE, SLOPES
from sporelm.models.params import Columns, Param, Rows


class EncoderSelfAttention:
    """o(softmax(rope(q) rope(k)) v) over the rows of a text.

    half_window  positions before and after a row that it attends to; None: the whole text
    normed       each head of queries and keys is normed before it is rotated
    biased       scores have a learned bias for each distance
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        half_window: int | None = None,
        *,
        normed: bool = False,
        biased: bool = False,
    ) -> None:
        width, dim, bias = config.width, config.head_dim, config.attention_bias
        queries, keys, group = config.heads * dim, config.kv_heads * dim, config.heads // config.kv_heads
        self.q = Linear(f"{name}.attn_q", queries, width, bias=bias, split=Rows(dim * group))
        self.k = Linear(f"{name}.attn_k", keys, width, bias=bias, split=Rows(dim))
        self.v = Linear(f"{name}.attn_v", keys, width, bias=bias, split=Rows(dim))
        self.o = Linear(f"{name}.attn_o", width, queries, bias=config.attention_out_bias, split=Columns(dim * group))
        parts = "qk" if normed else ""
        self.norms = [RMSNorm(f"{name}.attn_{part}_norm", dim, config.eps) for part in parts]
        self.head_dim, self.scale, self.half_window, self.rotates = (
            dim,
            config.attention_scale,
            half_window,
            config.rotary > 0,
        )
        self.tables = [SLOPES if config.alibi > 0 else None, *([BIASES] if biased else [])]
        self.table = LOCAL if half_window is not None and config.local_theta else ROPE

    def params(self) -> list[Param]:
        parts: list[RowBlock] = [self.q, self.k, self.v, self.o, *self.norms]
        return [param for part in parts for param in part.params()]

    def __call__(self, x: Any, texts: EncoderInputs, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        q, k, v = apply_linears(x, weights, self.q, self.k, self.v)
        if self.norms:
            q, k = self.norms[0](q, weights), self.norms[1](k, weights)
        if self.rotates:
            table, dim = weights[self.table], self.head_dim
            q, k = (ops.rope(each, texts.positions, table, head_dim=dim, style="half") for each in (q, k))
        options = {} if self.half_window is None else {"half_window": self.half_window}
        added = [name and weights[name] for name in self.tables]
        mixed = ops.encoder_attention(
            q, k, v, texts.starts, *added, head_dim=self.head_dim, scale=self.scale, **options
        )
        return self.o(mixed, weights)
