"""LFM3: LFM2 with norms after its blocks, gated heads, and a window in layers with their own rotary base."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.lfm2 import Lfm2Config
from sporelm.models.blocks import Attention, HeadGatedAttention, Layer, ShortConv, pre_norm
from sporelm.models.blocks.head_gated_attention import head_tables
from sporelm.models.blocks.layer import Mixer
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Lfm3Config(Lfm2Config):
    """has_attention_gate: the output of each head is multiplied by a sigmoid. has_post_norms: there are norms after the
    blocks."""

    has_attention_gate: bool = True
    has_post_norms: bool = True


@architecture("lfm3", Lfm3Config)
class Lfm3(Decoder[Lfm3Config]):
    """LFM2's layer with norms after its blocks, and a sigmoid for each head of attention (Liquid AI 2026)."""

    def layer(self, config: Lfm3Config, index: int) -> Layer:
        name, window = f"layers.{index}", config.window_of(index)
        mixer: Mixer
        if index not in config.attention_layers:
            mixer = ShortConv(name, config, config.conv_kernel)
        elif config.has_attention_gate:
            mixer = HeadGatedAttention(name, config, window, "sigmoid")
        else:
            mixer = Attention(name, config, window, norm="heads")
        return pre_norm(config, index, mixer, behind=config.has_post_norms)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        config = self.config
        gate_tables = head_tables(config.head_dim, [config.heads]) if config.has_attention_gate else {}
        return super().tables(context) | gate_tables
