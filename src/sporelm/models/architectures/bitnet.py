"""BitNet b1.58: Llama with norms before each block's last product, for weights of -1, 0 and 1."""

from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, Layer, NormedLinear, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder

# Names of activations -> kinds of `ops.activate`: as in llama.cpp, and as in the 2B model.
ACTIVATIONS: Final = {"silu": "silu", "relu2": "relu_squared"}


@architecture("bitnet")
class BitNet(Decoder):
    """x + o(norm(attention(norm(x)))), then x + down(norm(act(gate) up)) of norm(x) (Ma et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config)
        mlp = GatedMLP(name, config, ACTIVATIONS[config.activation])
        attention.o = NormedLinear(attention.o, f"{name}.attn_sub_norm", config.eps)
        mlp.down = NormedLinear(mlp.down, f"{name}.ffn_sub_norm", config.eps)
        return pre_norm(config, index, attention, mlp)
