"""GPT-NeoX Japanese: only the last layer has a bias on the output of attention."""

from dataclasses import replace

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.gelu_names import GELUS


@architecture("gpt_neox_japanese")
class GPTNeoXJapanese(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (ABEJA 2022)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, replace(config, attention_out_bias=index == config.layers - 1))
        return pre_norm(config, index, attention, MLP(name, config, GELUS[config.activation]), norm=self.norms)
