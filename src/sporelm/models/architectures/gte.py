"""GTE v1.5 and multilingual: BERT with rotary positions and GeGLU. Jina BERT v2 is GTE with linear biases (ALiBi)."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import EncoderLayer, EncoderSelfAttention, GatedMLP
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("gte", EncoderConfig)
class Gte(Encoder[EncoderConfig]):
    """The sum of token and type embeddings, post-norms, GeGLU (Zhang et al. 2024); rotary positions or linear biases
    (Guenther et al. 2023)."""

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        mlp = GatedMLP(name, config, "gelu", down_bias=True)
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, mlp, post=True)
