"""Experts of attention: each expert of a token computes queries and outputs of its own heads, over shared keys and
values (JetMoE, Shen et al. 2024; Zhang et al. 2022)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mixture import ExpertLinear
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.params import Columns, Param, Rows

# Tables: the columns of all experts' heads, key head by key head, and the inverse order.
BY_KEY_HEAD, BY_EXPERT = "expert_heads", "heads_of_experts"


def expert_head_tables(config: ModelConfig) -> dict[str, np.ndarray]:
    """Return the columns that order the heads of all experts by key head, and the inverse order."""
    kv_heads, head_dim = config.kv_heads, config.head_dim
    columns = np.arange(config.heads * head_dim, dtype=np.int32)
    by_key_head = columns.reshape(-1, kv_heads, head_dim).swapaxes(0, 1).reshape(-1)
    return {BY_KEY_HEAD: np.ascontiguousarray(by_key_head), BY_EXPERT: np.argsort(by_key_head).astype(np.int32)}


class AttentionExperts:
    """The weighted sum of the outputs of a token's experts, each from its own heads, plus a bias."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        self.experts, width, kv_width = config.experts, config.width, config.kv_heads * config.head_dim
        count = self.experts.count
        self.router = Linear(f"{name}.attn_gate_inp", count, width)
        rows, columns = Rows(config.head_dim), Columns(config.head_dim)
        self.q = ExpertLinear(f"{name}.attn_q_exps", (count, kv_width, width), bias=False, split=rows)
        self.o = ExpertLinear(f"{name}.attn_output_exps", (count, width, kv_width), bias=False, split=columns)
        self.k, self.v = (Linear(f"{name}.attn_{part}", kv_width, width, split=rows) for part in "kv")
        self.output_bias = Param(f"{name}.attn_mixture.bias", (width,))
        self.memory, self.scale = Paged(config.kv_heads, config.head_dim), config.attention_scale

    def params(self) -> list[Param]:
        linears = (self.router, self.k, self.v)
        return [
            *(param for linear in linears for param in linear.params()),
            *self.q.params(),
            *self.o.params(),
            self.output_bias,
        ]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        scores, k, v = apply_linears(x, weights, self.router, self.k, self.v)
        shares, ids = ops.route(scores, k=self.experts.used, scores="softmax_of_chosen")
        q = ops.join_slots(self.q(x, weights, ids), weights[BY_KEY_HEAD])
        q, k = (
            ops.rope(each, step.positions, weights[ROPE], head_dim=self.memory.head_dim, style="half")
            for each in (q, k)
        )
        ops.store_kv(k, v, cache, step.slots)
        heads = ops.attention(q, cache, step.starts, step.lengths, step.pages, scale=self.scale)
        outputs = self.o(ops.cut_slots(heads, weights[BY_EXPERT], k=self.experts.used), weights, ids)
        return ops.combine_experts(outputs, shares, weights[self.output_bias.name])
