"""GLM-5, 5.1 and 5.2: DeepSeek V3.2 with another rotation of its indexer; layers of 5.2 share a selection."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.deepseek32 import Deepseek32
from sporelm.models.blocks.sparse_attention import SparseLayer
from sporelm.models.latent_config import SparseConfig


@architecture("glm_dsa", SparseConfig)
class GlmDsa(Deepseek32):
    """DeepSeek V3.2's layer; some layers use the selection of the one before them (Zhipu AI 2026)."""

    def layer(self, config: SparseConfig, index: int) -> SparseLayer:
        return SparseLayer(config, index, "adjacent")
