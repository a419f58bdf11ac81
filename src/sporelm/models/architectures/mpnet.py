"""MPNet: BERT with learned relative position biases, shared by all layers."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.biased_encoder import BiasedEncoder
from sporelm.models.blocks import MLP, EncoderLayer, EncoderSelfAttention
from sporelm.models.encoder_config import EncoderConfig


@architecture("mpnet", EncoderConfig)
class MPNet(BiasedEncoder):
    """BERT's layer without token types, with T5's relative positions beside learned ones (Song et al. 2020)."""

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        attention = EncoderSelfAttention(name, config, biased=True)
        return EncoderLayer(first, attention, second, MLP(name, config, "gelu"), post=True)
