"""The configuration of a model with linear attention in most of its layers."""

from dataclasses import dataclass

from sporelm.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(ModelConfig):
    """attention_layers: the layers with softmax attention. full_attention_interval: one in this many
    layers has it, if a file does not list them."""

    full_attention_interval: int = 4
    attention_layers: frozenset[int] = frozenset()
