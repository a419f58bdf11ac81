"""EmbeddingGemma: Gemma 3's layer as an encoder; pooled vectors pass two dense layers."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import EncoderLayer, EncoderSelfAttention, GatedMLP, RMSNorm
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("gemma_embedding", EncoderConfig)
class GemmaEmbedding(Encoder[EncoderConfig]):
    """Gemma 3's layer with bidirectional attention, half a window in each direction (Schechter Vera et al. 2025)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name, window = f"layers.{index}", config.window_of(index)
        attention = EncoderSelfAttention(name, config, None if window is None else window // 2, normed=True)
        first, second, third, fourth = (
            self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn", "attn_post", "ffn_post")
        )
        mlp = GatedMLP(name, config, "gelu_tanh")
        return EncoderLayer(first, attention, second, mlp, post=False, behind=(third, fourth))
