"""gpt-oss: a sink for each head, a window in every other layer, and experts with biases and clamped gates."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder


@architecture("gpt_oss")
class GptOss(Decoder):
    """Pre-norm attention with sinks, then a mixture of experts (OpenAI 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), sinks=True)
        return pre_norm(config, index, attention)
