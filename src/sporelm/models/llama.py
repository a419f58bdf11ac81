"""The Llama family: Llama, Mistral (sliding window), SmolLM2, TinyStories, Minueza."""

from sporelm.models.blocks import Attention, GatedMLP, Layer, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig


@architecture("llama", "LlamaForCausalLM", "MistralForCausalLM")
class Llama(Decoder):
    """Norms in front, rotary attention of grouped queries, a SiLU-gated feed-forward block (Touvron et al. 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            RMSNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config, config.window_of(index)),
            RMSNorm(f"{name}.ffn_norm", config.width, config.eps),
            GatedMLP(name, config),
        )
