"""Megatron-BERT and XLM-RoBERTa-XL: BERT with pre-norms."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, EncoderLayer, EncoderSelfAttention
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig


@architecture("megatron_bert", EncoderConfig)
class MegatronBert(Encoder[EncoderConfig]):
    """Norms before each block and after the last layer, none of the embeddings (Shoeybi et al. 2019, Goyal et al.
    2021)."""

    outer_norms = ("", "output_norm")

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, MLP(name, config, "gelu"), post=False)
