"""Llama, and the many models that share its layer."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("llama")
class Llama(Decoder):
    """Pre-norm attention of grouped queries with rotary positions, and a SiLU-gated feed-forward block (Touvron et al.
    2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index)
