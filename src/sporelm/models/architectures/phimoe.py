"""Phi-3.5-MoE: Llama with layer norms and a mixture of experts."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("phimoe")
class PhiMoe(Decoder):
    """The Llama layer with layer norms and a mixture (Abdin et al. 2024; SparseMixer, Liu et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
