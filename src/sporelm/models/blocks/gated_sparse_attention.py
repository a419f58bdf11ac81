"""Sparse attention and norms with gates that are projections of the row (SK Telecom 2026, "A.X K2")."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.blocks.sparse_attention import SparseAttention, SparseLayer
from sporelm.models.inputs import StepInputs
from sporelm.models.latent_config import SparseConfig
from sporelm.models.params import Param, Rows


class GatedNorm(RMSNorm):
    """y * sigmoid(b(silu(a(y)))) of a normed row y, with a low-rank gate."""

    def __init__(self, name: str, width: int, eps: float, rank: int) -> None:
        super().__init__(name, width, eps)
        self.a, self.b = Linear(f"{name}_a", rank, width), Linear(f"{name}_b", width, rank)

    def params(self) -> list[Param]:
        return [*super().params(), *self.a.params(), *self.b.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        y = super().__call__(x, weights)
        gate = self.b(ops.activate(self.a(y, weights), kind="silu"), weights)
        return ops.activate_mul(gate, y, kind="sigmoid")


class GatedSparseAttention(SparseAttention):
    """o(values(softmax(scores) latents) * sigmoid(gate(z))). z joins the normed query latent and the one before the
    norm; queries are projections of z, too. The indexer reads the normed latent."""

    def __init__(self, name: str, config: SparseConfig, index: int, style: str) -> None:
        super().__init__(name, config, index, style)
        rows, values = 2 * config.latent.q_lora_rank, config.latent.v_head_dim
        self.q = Linear(f"{name}.attn_q_b", config.heads * config.head_dim, rows, split=Rows(config.head_dim))
        self.gate = Linear(f"{name}.attn_gate", config.heads * values, rows, split=Rows(values))

    def params(self) -> list[Param]:
        return [*super().params(), *self.gate.params()]

    def select_and_attend(
        self, x: Any, chosen: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any, *keys: Any
    ) -> tuple[Any, Any]:  # x [tokens, width]
        assert self.q_a is not None
        assert self.indexer is not None
        low, row, key, shares = apply_linears(x, weights, self.q_a, self.kv_a, self.indexer.k, self.indexer.weights)
        normed = self.q_norm(low, weights)
        q, gate = apply_linears(ops.join_columns(normed, low), weights, self.q, self.gate)
        chosen = self.indexer(self.indexer.q(normed, weights), key, shares, step, weights, *keys)
        latent, q = self.absorb(q, row, step, weights, cache)
        mixed = ops.sparse_mla(latent, q, cache, chosen, heads=self.heads, scale=self.scale)
        values = ops.linear_heads(mixed, weights[self.v_b.name])
        return self.o(ops.activate_mul(gate, values, kind="sigmoid"), weights), chosen


class GatedSparseLayer(SparseLayer):
    """The layer of gated sparse attention; the norm before a dense block has no gate."""

    def __init__(self, config: SparseConfig, index: int, style: str, rank: int) -> None:
        super().__init__(config, index, style)
        name, experts = f"layers.{index}", config.experts
        self.attention = GatedSparseAttention(name, config, index, style)
        self.attention_norm = GatedNorm(f"{name}.attn_norm", config.width, config.eps, rank)
        if experts is not None and experts.at(index):
            self.mlp_norm = GatedNorm(f"{name}.ffn_gated_norm", config.width, config.eps, rank)
