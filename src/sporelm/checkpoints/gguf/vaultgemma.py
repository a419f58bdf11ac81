"""GGUF files of VaultGemma."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma2 import LOGIT_CAP_KEY, SCORE_CAP_KEY, find_other_score_scale, with_score_scale
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma import Gemma
from sporelm.models.config import ModelConfig


@register
class VaultGemmaGguf(GgufSchema):
    """`vaultgemma`: Gemma 2 without the norms after its blocks (Google 2025)."""

    names = ("vaultgemma",)
    architecture = Gemma
    keys = gguf_keys(SCORE_CAP_KEY, LOGIT_CAP_KEY)
    tensors = DECODER_TENSORS
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(2)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_score_scale(with_scaled_embedding(super().config_from_metadata(gguf, values)), 0)

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_other_score_scale(config, 0)
