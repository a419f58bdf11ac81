"""OLMoE: Llama with norms of whole rows of queries and keys, and experts in every layer."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("olmoe")
class Olmoe(Decoder):
    """Norms of rows of queries and keys; a mixture in place of Llama's feed-forward block (Muennighoff et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="whole")
        return pre_norm(config, index, attention)
