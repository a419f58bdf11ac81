"""Command-R, Command-R+, Aya: attention and feed-forward block side by side, layer norms without biases."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, layer_norm_without_bias, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class CohereConfig(ModelConfig):
    """has_head_norms: there is a norm for each head of queries and keys."""

    has_head_norms: bool = False


@architecture("cohere", CohereConfig)
class Cohere(Decoder[CohereConfig]):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both (Cohere 2024)."""

    norms = staticmethod(layer_norm_without_bias)

    def layer(self, config: CohereConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, norm="each" if config.has_head_norms else "")
        return pre_norm(config, index, attention, norm=self.norms, shared=True)
