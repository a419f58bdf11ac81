"""Nomic BERT: BERT with rotary positions, a gated feed-forward block and no biases but those of norms; and Nomic Embed
v2, which has ungated blocks with biases, and experts in every other layer."""

from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, EncoderLayer, EncoderSelfAttention, GatedMLP, Mixture, RowBlock
from sporelm.models.encoder import Encoder
from sporelm.models.encoder_config import EncoderConfig

UNGATED: Final = "_plain"  # ends the names of parameters of blocks without a gate


@architecture("nomic_bert", EncoderConfig)
class NomicBert(Encoder[EncoderConfig]):
    """The sum of token and type embeddings, post-norms, rotary attention, SwiGLU (Nussbaum et al. 2024); or GELU, and a
    mixture in every other layer (Nussbaum, Duderstadt 2025)."""

    def layer(self, config: EncoderConfig, index: int) -> EncoderLayer:
        name = f"layers.{index}"
        first, second = (self.norm(f"{name}.{part}_norm") for part in ("attn", "ffn"))
        return EncoderLayer(first, EncoderSelfAttention(name, config), second, self.block(config, index), post=True)

    def block(self, config: EncoderConfig, index: int) -> RowBlock:
        """Return the feed-forward block of a layer."""
        name = f"layers.{index}"
        if config.experts is None:
            return GatedMLP(name, config)
        return Mixture(name, config) if config.experts.at(index) else MLP(name, config, "gelu", part=UNGATED)
