"""OLMo 2 and 3, FlexOlmo: norms after each block, and norms of whole rows of queries and keys."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, RMSNorm, feed_forward
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("olmo2")
class Olmo2(Decoder):
    """x + norm(attention(x)), then x + norm(mlp(x)), or a mixture of experts (OLMo team 2024, Shi et al. 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return post_norm_layer(config, index)


def post_norm_layer(config: ModelConfig, index: int) -> Layer:
    """Return the layer of this number."""
    name = f"layers.{index}"
    return Layer(
        None,
        Attention(name, config, config.window_of(index), norm="whole"),
        None,
        feed_forward(name, config, index),
        after_attention=RMSNorm(f"{name}.attn_post_norm", config.width, config.eps),
        after_mlp=RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps),
    )
