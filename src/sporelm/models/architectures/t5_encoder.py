"""The encoder of T5 and mT5."""

from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.biased_encoder import BiasedEncoder
from sporelm.models.blocks import MLP, EncoderLayer, EncoderSelfAttention, GatedMLP, RMSNorm
from sporelm.models.encoder_config import EncoderConfig

RELU: Final = "relu"  # feed-forward blocks, as config.json names them
GATED_GELU: Final = "gated-gelu"
UNGATED: Final = "_plain"  # the end of parameters' names in a block without a gate


@architecture("t5_encoder", EncoderConfig)
class T5Encoder(BiasedEncoder):
    """Pre-norms, unscaled scores, relative position biases, ReLU or gated GELU (Raffel et al. 2020)."""

    norms = RMSNorm
    outer_norms = ("", "output_norm")
    has_position_table = False

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        is_gated = config.activation == GATED_GELU
        mlp = GatedMLP(name, config, "gelu_tanh") if is_gated else MLP(name, config, "relu", part=UNGATED)
        return EncoderLayer(first, EncoderSelfAttention(name, config, biased=True), second, mlp, post=False)
