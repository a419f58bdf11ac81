"""ModernBERT: pre-norms, rotary positions, gated feed-forward blocks, windows in two layers of three."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Classifier, EncoderLayer, EncoderSelfAttention, GatedMLP, layer_norm_without_bias
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("modern_bert", EncoderConfig)
class ModernBert(Encoder[EncoderConfig]):
    """GPT-2's layer with GeGLU, rotary positions and no biases; the first has no norm before
    attention (Warner et al. 2024)."""

    norms = staticmethod(layer_norm_without_bias)
    outer_norms = ("embedding_norm", "output_norm")

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name, window = f"layers.{index}", config.window_of(index)
        attention = EncoderSelfAttention(name, config, None if window is None else window // 2)
        first = self.norm(f"{name}.attn_norm") if index else None
        return EncoderLayer(first, attention, self.norm(f"{name}.ffn_norm"), GatedMLP(name, config, "gelu"), post=False)

    def head(self, config: EncoderConfig) -> Classifier:
        norm = self.norm("classifier_norm")
        return Classifier(config.head_labels, config.width, dense=True, bias=False, activation="gelu", norm=norm)
