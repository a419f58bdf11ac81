"""GGUF files of Flint."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys, with_experts_where_routers_are
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.flint import Flint
from sporelm.models.config import ModelConfig

FLINT_ROUTING: Final = {"experts.scores": "sigmoid"}


def usual_full_layers(layers: int) -> frozenset[int]:
    """Return the layers without a window in files that do not list them: the first two, each fourth from the second on,
    and the last."""
    return frozenset({0, 1, *range(1, layers, 4), layers - 1}) & frozenset(range(layers))


@register
class FlintGguf(GgufSchema):
    """`flint`. Layers with a router have experts."""

    names = ("flint",)
    architecture = Flint
    keys = gguf_keys(*gguf_expert_keys("count", "used", "ffn", "shared_ffn", "renormalize"))
    constants = FLINT_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        "layers.{}.attn_sinks.weight": "blk.{}.attn_sinks.weight",
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return usual_full_layers(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_experts_where_routers_are(super().config_from_metadata(gguf, values), gguf.shapes)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        pattern = [config.window_of(layer) is not None for layer in range(config.layers)]
        return {f"flint.{WINDOW_PATTERN}": ("[bool]", pattern)}
