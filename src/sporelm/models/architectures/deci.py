"""DeciLM and Llama-Nemotron, results of architecture search: Llama with layers of different shapes, some without a
block."""

from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, IdentityNorm, Layer, Linear, MLPOnlyMixer, RMSNorm
from sporelm.models.blocks.layer import Mixer
from sporelm.models.decoder import Decoder
from sporelm.models.layer_shapes import LayerShapesConfig


class NoOpLayer(Layer):
    """A layer without blocks, which returns its rows as they are."""

    def __init__(self) -> None:
        super().__init__(None, MLPOnlyMixer(IdentityNorm()))

    def __call__(self, x: Any, *args: Any) -> Any:  # x [tokens, width]
        return x


@architecture("deci", LayerShapesConfig)
class Deci(Decoder[LayerShapesConfig]):
    """The Llama layer; attention may be one matrix or missing, and the feed-forward block may be missing (Bercovich et
    al. 2024)."""

    def layer(self, config: LayerShapesConfig, index: int) -> Layer:
        name = f"layers.{index}"
        own_config = config.for_layer(index)
        attention_norm, mlp_norm = (
            RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")
        )
        mlp = GatedMLP(name, own_config)
        if not own_config.heads:
            return Layer(mlp_norm, MLPOnlyMixer(mlp)) if own_config.ffn else NoOpLayer()
        mixer: Mixer = MLPOnlyMixer(Linear(f"{name}.attn_linear", config.width, config.width))
        if own_config.kv_heads:
            mixer = Attention(name, own_config)
        return Layer(attention_norm, mixer, mlp_norm, mlp) if own_config.ffn else Layer(attention_norm, mixer)
