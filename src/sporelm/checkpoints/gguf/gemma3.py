"""GGUF files of Gemma 3's text model."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY, find_other_score_scale, with_score_scale
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma3 import Gemma3
from sporelm.models.config import ModelConfig

LARGEST_MODEL_LAYERS: Final = 62  # layers of the 27B
WINDOW_STEP: Final = 6  # each sixth layer has no window
LOCAL_THETA: Final = 10000.0


@register
class Gemma3Gguf(GgufSchema):
    """`gemma3`."""

    names = ("gemma3",)
    architecture = Gemma3
    keys = gguf_keys(LOGIT_CAP_KEY, Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    tensors = DECODER_TENSORS | POST_NORM_TENSORS | HEAD_NORM_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_score_scale(with_scaled_embedding(super().config_from_metadata(gguf, values)), LARGEST_MODEL_LAYERS)

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_other_score_scale(config, LARGEST_MODEL_LAYERS)
