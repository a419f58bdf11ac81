"""Llama, and the many models that share its layer."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.blocks.linear import scale_rows
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs


@architecture("llama")
class Llama(Decoder):
    """Pre-norm attention of grouped queries with rotary positions, and a SiLU-gated feed-forward block (Touvron et al.
    2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index)

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        """Return the input of the first layer. Granite's multiplier applies to the rows of images, too."""
        if step.image_rows is None:
            return super().embedded(step, weights)
        x = ops.replace_rows(self.embedding(step.tokens, weights), step.image_values, step.image_rows)
        return scale_rows(x, self.config.scales.embedding)
