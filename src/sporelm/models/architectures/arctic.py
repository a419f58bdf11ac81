"""Snowflake Arctic: Llama with a feed-forward block as wide as its rows, and experts that read what attention reads."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, Layer, Mixture, RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class DenseAndExpertsLayer(Layer):
    """x' + mlp(norm(x')) + experts(norm(x)) of x' = x + attention(norm(x)) (dense-MoE hybrid, Snowflake 2024)."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        norms = [RMSNorm(f"{name}.{part}", config.width, config.eps) for part in ("attn_norm", "ffn_norm")]
        mlp = GatedMLP(name, config, ffn=config.width)
        super().__init__(norms[0], Attention(name, config), norms[1], mlp)
        self.experts_norm = RMSNorm(f"{name}.ffn_norm_exps", config.width, config.eps)
        self.experts = Mixture(name, config)

    def params(self) -> list[Param]:
        return [*super().params(), *self.experts_norm.params(), *self.experts.params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        mixed = self.experts(self.experts_norm(x, weights), weights)
        return ops.add(super().__call__(x, step, weights, *caches), mixed)


@architecture("arctic")
class Arctic(Decoder):
    """Layers of a dense block beside experts (Snowflake 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return DenseAndExpertsLayer(f"layers.{index}", config)
