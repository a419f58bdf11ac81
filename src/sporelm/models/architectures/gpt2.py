"""GPT-2: layer norms with biases, learned positions, a feed-forward block without a gate."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Embedding, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@architecture("gpt2")
class GPT2(Decoder):
    """The sum of token and position embeddings, pre-norm attention, GELU (Radford et al. 2019)."""

    norms = LayerNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = Embedding("positions", config.context_length, config.width)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)

    def params(self) -> list[Param]:
        return [*super().params(), *self.positions.params()]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.add(super().embedded(step, weights), self.positions(step.positions, weights))
