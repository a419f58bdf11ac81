"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): all heads share what is kept of a position."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.checkpoints.latent import LatentShape
from sporelm.models.blocks.block_memory import Latent
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.params import Columns, Param, Rows

EPS = 1e-6  # of its own norms, whatever the model's is: in transformers, and in the code that its makers published


class LatentAttention:
    """o(values(softmax(scores) latents)): scores of queries, through the matrix that makes keys, with rows of latents
    and a key that is rotated where the model rotates; queries may come out of a latent of their own.

    growth   name of a table [context, 1]: what queries are multiplied by, by their position
    """

    def __init__(self, name: str, config: ModelConfig, *, growth: str = "") -> None:
        shape: LatentShape = config.own
        heads, dim, width = config.heads, config.head_dim, config.width
        made, rows = "attn_q_b" if shape.q_rank else "attn_q", shape.q_rank or width
        self.q = Linear(f"{name}.{made}", heads * dim, rows, split=Rows(dim))
        self.q_a = Linear(f"{name}.attn_q_a", shape.q_rank, width) if shape.q_rank else None
        self.q_norm = RMSNorm(f"{name}.attn_q_a_norm", shape.q_rank, EPS)
        self.kv_a = Linear(f"{name}.attn_kv_a", shape.rank + shape.rotary, width)
        self.kv_norm = Param(f"{name}.attn_kv_a_norm.weight", (shape.rank,))
        self.k_b = Param(f"{name}.attn_k_b.weight", (heads, shape.rank, dim - shape.rotary))
        self.v_b = Param(f"{name}.attn_v_b.weight", (heads, shape.value, shape.rank))
        self.o = Linear(f"{name}.attn_o", width, heads * shape.value, split=Columns(shape.value))
        self.memory = Latent(shape.rank + shape.rotary, shape.rank)
        self.heads, self.dim, self.scale, self.style = heads, dim, config.attention_scale, config.rope_style
        self.rotates, self.growth = config.rotary > 0, growth

    def params(self) -> list[Param]:
        first = [] if self.q_a is None else [*self.q_a.params(), *self.q_norm.params()]
        matrices = [*self.kv_a.params(), self.kv_norm, self.k_b, self.v_b]
        return [*first, *self.q.params(), *matrices, *self.o.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        q, row = apply_linears(x, weights, self.q_a or self.q, self.kv_a)
        if self.q_a is not None:
            q = self.q(self.q_norm(q, weights), weights)
        latent, q = self.absorbed(q, row, step, weights, cache)
        held = (cache, step.starts, step.lengths, step.pages)
        return self.made(ops.latent_attention(latent, q, *held, heads=self.heads, scale=self.scale), weights)

    def absorbed(self, q: Any, row: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> tuple[Any, Any]:
        """Keep the latent and its key, `row`; what latents and keys are multiplied with, of q [tokens, heads * dim]."""
        if self.growth:
            q = ops.combine_experts(q, ops.select_rows(weights[self.growth], step.positions))
        norm, places = weights[self.kv_norm.name], (step.positions, weights[ROPE]) if self.rotates else (None, None)
        if self.rotates:
            q = ops.rope(q, *places, head_dim=self.dim, style=self.style)
        ops.store_latent(row, norm, *places, cache, step.slots, eps=EPS, style=self.style)
        return ops.linear_heads(q, weights[self.k_b.name]), q

    def made(self, mixed: Any, weights: Mapping[str, Any]) -> Any:
        """Of mixed latents [tokens, heads * rank] the values, and their product."""
        return self.o(ops.linear_heads(mixed, weights[self.v_b.name]), weights)
