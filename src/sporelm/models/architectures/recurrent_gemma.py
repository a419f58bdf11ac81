"""RecurrentGemma: Griffin's recurrent blocks, and attention with a window in every third layer."""

from dataclasses import dataclass

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, GatedMLP, GatedRecurrence, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class RecurrentGemmaConfig(ModelConfig):
    """conv_kernel: rows that a convolution reads. lru_width: channels of a recurrent block. attention_layers: the
    layers with attention."""

    conv_kernel: int
    lru_width: int
    attention_layers: frozenset[int] = frozenset()


@architecture("recurrent_gemma", RecurrentGemmaConfig)
class RecurrentGemma(Decoder[RecurrentGemmaConfig]):
    """Gemma's layer with a recurrent block in place of most of its attention (Botev et al. 2024)."""

    def layer(self, config: RecurrentGemmaConfig, index: int) -> Layer:
        name, mlp = f"layers.{index}", GatedMLP(f"layers.{index}", config, "gelu_tanh")
        if index in config.attention_layers:
            return pre_norm(config, index, Attention(name, config, config.window), mlp)
        return pre_norm(config, index, GatedRecurrence(name, config, config.lru_width, config.conv_kernel), mlp)
