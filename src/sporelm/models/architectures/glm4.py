"""GLM-4-0414: Llama with norms before and after its blocks."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("glm4")
class Glm4(Decoder):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))) (GLM team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, behind=True)
