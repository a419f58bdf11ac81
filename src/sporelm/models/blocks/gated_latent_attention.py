"""Latent attention with an output gate, a projection of the input row (Ling 3, Kimi K3)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.head_gated_attention import GATE_COLUMNS
from sporelm.models.blocks.latent_attention import LatentAttention
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.latent_config import LatentAttentionShape
from sporelm.models.params import Param, Rows


class GatedLatentAttention(LatentAttention):
    """o(values(softmax(scores) latents) * sigmoid(gate(x))).

    each   one gate for each channel of a head's values; otherwise one for each head, and the model has `head_tables`
    """

    def __init__(self, name: str, config: ModelConfig, shape: LatentAttentionShape, *, each: bool) -> None:
        super().__init__(name, config, shape)
        numbers = shape.v_head_dim if each else 1
        self.gate = Linear(f"{name}.attn_gate", config.heads * numbers, config.width, split=Rows(numbers))
        self.gate_columns = "" if each else f"{GATE_COLUMNS}{config.heads}"

    def params(self) -> list[Param]:
        return [*super().params(), *self.gate.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        q, row, gate = apply_linears(x, weights, self.q_a or self.q, self.kv_a, self.gate)
        if self.q_a is not None:
            q = self.q(self.q_norm(q, weights), weights)
        latent, q = self.absorb(q, row, step, weights, cache)
        held = (cache, step.starts, step.lengths, step.pages)
        mixed = ops.latent_attention(latent, q, *held, heads=self.heads, scale=self.scale)
        values = ops.linear_heads(mixed, weights[self.v_b.name])
        gate = ops.select_columns(gate, weights[self.gate_columns]) if self.gate_columns else gate
        return self.o(ops.activate_mul(gate, values, kind="sigmoid"), weights)
