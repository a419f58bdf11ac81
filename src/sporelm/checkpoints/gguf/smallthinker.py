"""GGUF files of SmallThinker."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.smallthinker import SmallThinker
from sporelm.models.config import ModelConfig

SMALLTHINKER_ROUTING: Final = {"experts.renormalize": True}
WINDOW_STEP: Final = 4  # the first of each four layers has no window, and no positions


@register
class SmallThinkerGguf(GgufSchema):
    """`smallthinker`."""

    names = ("smallthinker",)
    architecture = SmallThinker
    keys = gguf_keys(
        Key("ffn", "feed_forward_length", "u32"),
        *gguf_expert_keys("count", "used", "ffn", "scores"),
    )
    constants = SMALLTHINKER_ROUTING
    tensors = DECODER_TENSORS | expert_tensors()

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP, first=0)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return replace(config, nope_layers=self.full_attention_layers(config.layers) if config.window else frozenset())

    def find_unsupported(self, config: ModelConfig) -> str:
        expected = self.full_attention_layers(config.layers) if config.window else frozenset()
        return "" if config.nope_layers == expected else "its layers without positions are not those without a window"
