"""ELECTRA: BERT with embeddings that may be narrower than its layers, and GELU in its head."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Classifier, EncoderLayer, EncoderSelfAttention
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("electra", EncoderConfig)
class Electra(Encoder[EncoderConfig]):
    """BERT's layers after embeddings that a projection widens (Clark et al. 2020)."""

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, MLP(name, config, "gelu"), post=True)

    def head(self, config: EncoderConfig) -> Classifier:
        dense = config.has_head_dense
        return Classifier(config.head_labels, config.width, dense=dense, bias=True, activation="gelu")
