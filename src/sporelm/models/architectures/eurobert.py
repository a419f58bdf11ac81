"""EuroBERT: Llama's layer as an encoder."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Classifier, EncoderLayer, EncoderSelfAttention, GatedMLP, RMSNorm
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("eurobert", EncoderConfig)
class EuroBert(Encoder[EncoderConfig]):
    """Pre-norms, bidirectional grouped-query attention with rotary positions, SwiGLU (Boizard et al. 2025)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, GatedMLP(name, config), post=False)

    def head(self, config: EncoderConfig) -> Classifier:
        return Classifier(config.head_labels, config.width, dense=True, bias=True, activation="gelu")
