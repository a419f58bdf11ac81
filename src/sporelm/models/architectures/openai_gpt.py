"""GPT: GPT-2 with norms after the residual sums, and none after the last layer."""

from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.gpt2 import GPT2
from sporelm.models.blocks import MLP, Attention, IdentityNorm, Layer, LayerNorm, PostNormLayer, RowBlock
from sporelm.models.config import ModelConfig

# Names in config.json -> kinds of `ops.activate`. This "gelu" is computed with a tanh.
ACTIVATIONS: Final = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


@architecture("openai_gpt")
class OpenAIGPT(GPT2):
    """The sum of token and position embeddings, then blocks with norms after the sums (Radford et al. 2018)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention_norm, mlp_norm = (
            LayerNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")
        )
        mlp = MLP(name, config, ACTIVATIONS[config.activation])
        return PostNormLayer(attention_norm, Attention(name, config), mlp_norm, mlp)

    def last_norm(self, config: ModelConfig) -> RowBlock:
        return IdentityNorm()
