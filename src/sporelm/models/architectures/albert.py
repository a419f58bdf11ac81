"""ALBERT: one BERT layer that is applied repeatedly, and narrow embeddings."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, EncoderLayer, EncoderSelfAttention
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig
from sporelm.models.gelu_names import GELUS


@architecture("albert", EncoderConfig)
class Albert(Encoder[EncoderConfig]):
    """BERT's layer, applied once for each layer of the configuration (Lan et al. 2020)."""

    def __init__(self, config: EncoderConfig) -> None:
        self.passes = config.layers
        super().__init__(config)

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        mlp = MLP(name, config, GELUS[config.activation])
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, mlp, post=True)
