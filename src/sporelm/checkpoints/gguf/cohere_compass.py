"""GGUF files of North-Micro, the text model of Cohere Compass."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.cohere import COHERE_KEYS
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hybrid_layers import GGUF_ROPE_PATTERN, read_rope_pattern
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.cohere2 import Cohere2
from sporelm.models.config import ModelConfig

COMPASS_CONSTANTS: Final = {"parallel": True}


@register
class CohereCompassGguf(GgufSchema):
    """`cohere_compass_text`: the layer of Command-R7B, with halves of heads rotated together and a rotary base for each
    type of layers, or none (Cohere 2026)."""

    names = ("cohere_compass_text",)
    architecture = Cohere2
    keys = gguf_keys(
        *COHERE_KEYS,
        Key("head_dim", "attention.key_length", "u32"),
        Key("local_theta", "rope.freq_base_swa", "f32", 0.0, MAX_THETA, 0.0),
    )
    constants = COMPASS_CONSTANTS
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        pattern = read_rope_pattern(gguf.values, GGUF_ROPE_PATTERN, config.layers)
        return replace(config, nope_layers=frozenset(layer for layer in range(config.layers) if not pattern[layer]))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        layers, prefix = range(config.layers), f"{self.names[0]}."
        return {
            f"{prefix}{WINDOW_PATTERN}": ("[bool]", [config.window_of(layer) is not None for layer in layers]),
            f"{prefix}{GGUF_ROPE_PATTERN}": ("[bool]", [layer not in config.nope_layers for layer in layers]),
        }
