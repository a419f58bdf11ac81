"""GGUF files of PLaMo 3."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.plamo2 import PLAMO_TENSORS
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.plamo3 import Plamo3
from sporelm.models.config import MAX_LAYERS, ModelConfig

WINDOW_STEP: Final = 8  # each eighth layer has no window
LOCAL_THETA: Final = 10000.0


@register
class Plamo3Gguf(GgufSchema):
    """`plamo3`. Some files have the step of layers without a window in place of a list of all layers."""

    names = ("plamo3",)
    architecture = Plamo3
    keys = gguf_keys(Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    tensors = PLAMO_TENSORS
    has_window_pattern = True
    yarn_truncates = False

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = gguf.values
        if type(values.get(WINDOW_PATTERN)) is int:
            layers = values.integer("block_count", 1, MAX_LAYERS)
            step = values.integer(WINDOW_PATTERN, 1, MAX_LAYERS)
            values = values.with_changes({WINDOW_PATTERN: [(layer + 1) % step > 0 for layer in range(layers)]})
        return super().config_from_metadata(gguf, values)
