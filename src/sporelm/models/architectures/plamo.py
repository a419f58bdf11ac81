"""PLaMo 1: attention and the feed-forward block side by side, after one norm."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("plamo")
class Plamo(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)) (Preferred Networks 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, shared=True)
