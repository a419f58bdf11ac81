"""Attention whose queries and outputs experts make: a token's few experts have heads of their own over shared keys
(JetMoE, Shen et al. 2024; Zhang et al. 2022)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mixture import ExpertLinear
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.params import Param

JOINED, CUT = "expert_heads", "heads_of_experts"  # tables: the columns of heads by keys, and those of each expert


def expert_head_tables(config: ModelConfig) -> dict[str, np.ndarray]:
    """The columns that bring each head of keys its heads of all experts, and those that bring them back."""
    heads, dim = config.kv_heads, config.head_dim
    columns = np.arange(config.heads * dim, dtype=np.int32)
    by_keys = columns.reshape(-1, heads, dim).swapaxes(0, 1).reshape(-1)
    return {JOINED: np.ascontiguousarray(by_keys), CUT: np.argsort(by_keys).astype(np.int32)}


class AttentionExperts:
    """The weighted sum, and a bias, of what a token's experts make of what their own heads mix."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        assert config.experts is not None
        self.experts, width, made = config.experts, config.width, config.kv_heads * config.head_dim
        count = self.experts.count
        self.router = Linear(f"{name}.attn_gate_inp", count, width)
        self.q = ExpertLinear(f"{name}.attn_q_exps", (count, made, width), bias=False)
        self.o = ExpertLinear(f"{name}.attn_output_exps", (count, width, made), bias=False)
        self.k, self.v = (Linear(f"{name}.attn_{part}", made, width) for part in "kv")
        self.added = Param(f"{name}.attn_mixture.bias", (width,))
        self.memory, self.scale = Paged(config.kv_heads, config.head_dim), config.attention_scale

    def params(self) -> list[Param]:
        linears = (self.router, self.k, self.v)
        return [
            *(param for linear in linears for param in linear.params()),
            *self.q.params(),
            *self.o.params(),
            self.added,
        ]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        scores, k, v = apply_linears(x, weights, self.router, self.k, self.v)
        shares, ids = ops.route(scores, k=self.experts.used, scores="softmax_of_chosen")
        q = ops.join_slots(self.q(x, weights, ids), weights[JOINED])
        q, k = (
            ops.rope(each, step.positions, weights[ROPE], head_dim=self.memory.head_dim, style="half")
            for each in (q, k)
        )
        ops.store_kv(k, v, cache, step.slots)
        mixed = ops.attention(q, cache, step.starts, step.lengths, step.pages, scale=self.scale)
        made = self.o(ops.cut_slots(mixed, weights[CUT], k=self.experts.used), weights, ids)
        return ops.combine_experts(made, shares, weights[self.added.name])
