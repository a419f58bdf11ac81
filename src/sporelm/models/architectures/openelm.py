"""OpenELM: Llama whose layers grow with depth, with norms of each head of queries and keys."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.layer_shapes import LayerShapesConfig


@architecture("openelm", LayerShapesConfig)
class OpenELM(Decoder[LayerShapesConfig]):
    """The Llama layer (Mehta et al. 2024)."""

    def layer(self, config: LayerShapesConfig, index: int) -> Layer:
        own_config = config.for_layer(index)
        return pre_norm(own_config, index, Attention(f"layers.{index}", own_config, norm="heads"))
