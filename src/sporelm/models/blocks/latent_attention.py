"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"): heads share the cached row of a position."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import Latent
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.latent_config import LatentAttentionShape
from sporelm.models.params import Columns, Param, Rows

EPS = 1e-6  # of its norms, independent of the model's, as in transformers and in DeepSeek's code


class LatentAttention:
    """o(values(softmax(scores) latents)). Queries pass the key projection and are compared with latents, and with a
    rotated key if the model has rotary positions. Queries may have a latent of their own.

    growth   name of a table [context, 1]: the factor of queries at each position
    """

    def __init__(self, name: str, config: ModelConfig, shape: LatentAttentionShape, *, growth: str = "") -> None:
        heads, dim, width = config.heads, config.head_dim, config.width
        made, rows = "attn_q_b" if shape.q_lora_rank else "attn_q", shape.q_lora_rank or width
        self.q = Linear(f"{name}.{made}", heads * dim, rows, split=Rows(dim))
        self.q_a = Linear(f"{name}.attn_q_a", shape.q_lora_rank, width) if shape.q_lora_rank else None
        self.q_norm = RMSNorm(f"{name}.attn_q_a_norm", shape.q_lora_rank, EPS)
        self.kv_a = Linear(f"{name}.attn_kv_a", shape.kv_lora_rank + shape.qk_rope_head_dim, width)
        self.kv_norm = Param(f"{name}.attn_kv_a_norm.weight", (shape.kv_lora_rank,))
        self.k_b = Param(f"{name}.attn_k_b.weight", (heads, shape.kv_lora_rank, dim - shape.qk_rope_head_dim), Rows())
        self.v_b = Param(f"{name}.attn_v_b.weight", (heads, shape.v_head_dim, shape.kv_lora_rank), Rows())
        self.o = Linear(f"{name}.attn_o", width, heads * shape.v_head_dim, split=Columns(shape.v_head_dim))
        self.memory = Latent(shape.kv_lora_rank + shape.qk_rope_head_dim, shape.kv_lora_rank)
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
        latent, q = self.absorb(q, row, step, weights, cache)
        held = (cache, step.starts, step.lengths, step.pages)
        return self.project_values(ops.latent_attention(latent, q, *held, heads=self.heads, scale=self.scale), weights)

    def absorb(self, q: Any, row: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> tuple[Any, Any]:
        """Store the latent and the key of `row`. Return the queries of latents and the queries of keys, from q [tokens,
        heads * dim]."""
        if self.growth:
            q = ops.combine_experts(q, ops.select_rows(weights[self.growth], step.positions))
        norm, places = weights[self.kv_norm.name], (step.positions, weights[ROPE]) if self.rotates else (None, None)
        if self.rotates:
            q = ops.rope(q, *places, head_dim=self.dim, style=self.style)
        ops.store_latent(row, norm, *places, cache, step.slots, eps=EPS, style=self.style)
        return ops.linear_heads(q, weights[self.k_b.name]), q

    def project_values(self, mixed: Any, weights: Mapping[str, Any]) -> Any:
        """Return the output projection of the values of mixed latents [tokens, heads * rank]."""
        return self.o(ops.linear_heads(mixed, weights[self.v_b.name]), weights)
