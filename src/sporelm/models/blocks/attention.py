"""Grouped-query attention over a paged cache, with rotary positions, linear biases or neither."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.blocks.layer_norm import HeadLayerNorm
from sporelm.models.blocks.linear import Linear, apply_linears, scale_rows
from sporelm.models.blocks.rms_norm import BareRMSNorm, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import LOCAL, ROPE, SLOPES, StepInputs
from sporelm.models.params import Columns, Param, Rows

WIDENED = "values_widened."  # prefix of tables, by the number of key heads: columns that pad the values of a head
NARROWED = "values_narrowed"  # a table: the columns of all heads that are values, without the padding


def value_tables(config: ModelConfig, values: int, kv_heads: Iterable[int]) -> dict[str, np.ndarray]:
    """Return the tables of attention with values narrower than keys, for layers with these numbers of key heads.

    A head is padded with its last value, so that no block's scale changes. The padding is never read.
    """
    column = np.arange(config.head_dim, dtype=np.int32)
    filled = np.minimum(column, values - 1)
    found = {f"{WIDENED}{count}": np.add.outer(np.arange(count) * values, filled) for count in kv_heads}
    found[NARROWED] = np.add.outer(np.arange(config.heads) * config.head_dim, column[:values])
    return {name: columns.reshape(-1).astype(np.int32) for name, columns in found.items()}


class Attention:
    """o(softmax(rope(q) rope(k)) v), each group of query heads sharing one head of keys and values.

    window      positions that a row attends to; None for all
    chunked     positions are cut into chunks of the window's length; a row attends to its own chunk
    norm        of queries and keys: one for all "heads", a "bare" one without a weight, one of the "whole" row, or a
                layer norm for "each" head; "": none
    rotates     queries and keys are rotated, if the model has rotary positions
    norms_last  norms follow the rotation
    query_table name of the rotary table of queries, if keys have another one or none
    sinks       each head has a learned score in the softmax that belongs to no position (gpt-oss)
    values      width of the values of a head, if smaller than that of keys; pages pad them
    value_scale factor of values
    gated       outputs are multiplied by a sigmoid gate, element by element (Qiu et al. 2025)
    streams     the position that each pair takes in steps whose rows have three, see `ops.rope` (M-RoPE)
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        window: int | None = None,
        *,
        norm: str = "",
        rotates: bool = True,
        norms_last: bool = False,
        query_table: str = "",
        sinks: bool = False,
        gated: bool = False,
        chunked: bool = False,
        values: int = 0,
        value_scale: float = 1.0,
        streams: tuple[int, ...] = (),
    ) -> None:
        width, dim, bias = config.width, config.head_dim, config.attention_bias
        queries, keys = config.heads * dim, config.kv_heads * dim
        group, values = config.heads // config.kv_heads, values or dim
        self.q = Linear(f"{name}.attn_q", queries, width, bias=bias, split=Rows(dim * group, group))
        self.k = Linear(f"{name}.attn_k", keys, width, bias=bias, split=Rows(dim))
        self.v = Linear(f"{name}.attn_v", config.kv_heads * values, width, bias=bias, split=Rows(values))
        mixed, cut = config.heads * values, Columns(values * group, group)
        self.o = Linear(f"{name}.attn_o", width, mixed, bias=config.attention_out_bias, split=cut)
        self.value_scale = value_scale
        self.widened = f"{WIDENED}{config.kv_heads}" if values != dim else ""
        gate = Linear(f"{name}.attn_gate", queries, width, bias=bias, split=Rows(dim * group, group))
        self.gate = [gate] if gated else []
        self.norms = _norms(name, config, norm)
        self.sinks = [Param(f"{name}.attn_sinks.weight", (config.heads,), Rows(group, group))] if sinks else []
        self.memory = Paged(config.kv_heads, dim)
        self.scale, self.window_option = config.attention_scale, {"chunk" if chunked else "window": window}
        self.table, self.cap = LOCAL if window is not None and config.local_theta else ROPE, config.score_cap
        self.style, self.biased = config.rope_style, config.alibi > 0
        turned = self.table if rotates and config.rotary else ""
        self.norms_last, self.query_table, self.key_table = norms_last, query_table or turned, turned
        self.limit, self.streams = config.qkv_limit, streams

    def params(self) -> list[Param]:
        parts = (self.q, *self.gate, self.k, self.v, self.o, *self.norms)
        return [*(param for part in parts for param in part.params()), *self.sinks]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        q, k, v, *gate = apply_linears(x, weights, self.q, self.k, self.v, *self.gate)
        v = v if self.limit is None else ops.clip(v, limit=self.limit)
        for change in (self._rotate_qk, self._norm_qk) if self.norms_last else (self._norm_qk, self._rotate_qk):
            q, k = change(q, k, step, weights)
        v = scale_rows(v, self.value_scale)
        if self.widened:
            v = ops.select_columns(v, weights[self.widened])
        ops.store_kv(k, v, cache, step.slots)
        more = [weights[sinks.name] for sinks in self.sinks]
        if self.biased:
            more = [*(more or [None]), weights[SLOPES]]
        if step.spans is not None:
            more = [*[*more, None, None][:2], step.spans]
        mixed = ops.attention(q, cache, step.starts, step.lengths, step.pages, *more, **self._options())
        if self.widened:
            mixed = ops.select_columns(mixed, weights[NARROWED])
        mixed = self._apply_gate(mixed, gate[0], weights) if gate else mixed
        return self.o(mixed, weights)

    def _apply_gate(self, mixed: Any, gate: Any, weights: Mapping[str, Any]) -> Any:
        return ops.activate_mul(gate, mixed, kind="sigmoid")

    def _norm_qk(self, q: Any, k: Any, step: StepInputs, weights: Mapping[str, Any]) -> tuple[Any, Any]:
        if self.norms:
            q, k = self.norms[0](q, weights), self.norms[1](k, weights)
        return (q, k) if self.limit is None else (ops.clip(q, limit=self.limit), ops.clip(k, limit=self.limit))

    def _rotate_qk(self, q: Any, k: Any, step: StepInputs, weights: Mapping[str, Any]) -> tuple[Any, Any]:
        how: dict[str, Any] = {"head_dim": self.memory.head_dim, "style": self.style}
        positions = step.positions
        if self.streams and step.rope_positions is not None:
            positions, how["streams"] = step.rope_positions, self.streams
        q, k = (
            ops.rope(x, positions, weights[table], **how) if table else x
            for x, table in ((q, self.query_table), (k, self.key_table))
        )
        return q, k

    def _options(self) -> dict[str, Any]:
        cap = {} if self.cap is None else {"softcap": self.cap}
        return {"scale": self.scale, **self.window_option, **cap}


def _norms(name: str, config: ModelConfig, kind: str) -> list[RMSNorm] | list[HeadLayerNorm]:
    """Return the norms of queries and of keys; none if `kind` is empty."""
    dim, counts = config.head_dim, {"q": config.heads, "k": config.kv_heads}
    if kind == "bare":
        bare: list[RMSNorm] = [BareRMSNorm(f"{name}.attn_{part}_norm", dim, config.eps) for part in counts]
        return bare
    if kind == "each":
        return [
            HeadLayerNorm(f"{name}.attn_{part}_norm", count, dim, config.eps, count // config.kv_heads)
            for part, count in counts.items()
        ]
    widths = {part: dim if kind == "heads" else count * dim for part, count in counts.items()} if kind else {}
    return [RMSNorm(f"{name}.attn_{part}_norm", width, config.eps) for part, width in widths.items()]
