"""BLOOM: a norm after the embedding, layer norms with biases, GELU, and linear biases in place of positions."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@architecture("bloom")
class Bloom(Decoder):
    """Pre-norm attention with linear biases, then GELU (BigScience workshop 2022)."""

    norms = LayerNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding_norm = LayerNorm("embedding_norm", config.width, config.eps)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)

    def params(self) -> list[Param]:
        return [*super().params(), *self.embedding_norm.params()]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)
