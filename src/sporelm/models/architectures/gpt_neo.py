"""GPT-Neo, TinyStories: GPT-2 with a window in every other layer."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.gpt2 import GPT2
from sporelm.models.blocks import MLP, Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig


@architecture("gpt_neo")
class GPTNeo(GPT2):
    """GPT-2's layer (Black et al. 2021)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, config.window_of(index))
        return pre_norm(config, index, attention, MLP(name, config, "gelu_tanh"), norm=self.norms)
