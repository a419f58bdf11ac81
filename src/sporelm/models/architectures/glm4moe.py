"""GLM-4.5, GLM-4.6 and Solar Open: Llama with a mixture of experts, and in some models norms of heads."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig(ModelConfig):
    """has_head_norms: there is a norm for each head of queries and keys."""

    has_head_norms: bool


@architecture("glm4moe", Glm4MoeConfig)
class Glm4Moe(Decoder[Glm4MoeConfig]):
    """The Llama layer with a mixture in place of its feed-forward block (Zeng et al. 2025)."""

    def layer(self, config: Glm4MoeConfig, index: int) -> Layer:
        norm = "heads" if config.has_head_norms else ""
        return pre_norm(config, index, Attention(f"layers.{index}", config, config.window_of(index), norm=norm))
