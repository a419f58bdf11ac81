"""GGUF files of EmbeddingGemma."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.dense import check_dense_widths, read_dense_shapes
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf.gemma import with_scaled_embedding
from sporelm.checkpoints.gguf.gemma2 import find_other_score_scale, with_score_scale
from sporelm.checkpoints.gguf.gemma3 import LARGEST_MODEL_LAYERS, LOCAL_THETA, WINDOW_STEP
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, POST_NORM_TENSORS
from sporelm.checkpoints.hf_windows import every_nth_layer
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.gemma_embedding import GemmaEmbedding
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig


@register
class GemmaEmbeddingGguf(EncoderGgufSchema):
    """`gemma-embedding`."""

    names = ("gemma-embedding",)
    architecture = GemmaEmbedding
    keys = gguf_keys(Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, LOCAL_THETA))
    tensors = DECODER_TENSORS | POST_NORM_TENSORS | HEAD_NORM_TENSORS
    has_window_pattern = True
    has_dense_modules = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(WINDOW_STEP)(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        config = with_score_scale(
            with_scaled_embedding(super().config_from_metadata(gguf, values)), LARGEST_MODEL_LAYERS
        )
        return replace(
            config, dense=check_dense_widths(read_dense_shapes(gguf.shapes, config.name), config.width, config.name)
        )

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        found = super().extra_metadata(config)
        for layer in config.dense:
            key = f"gemma-embedding.{layer.name}_feat"
            found |= {f"{key}_in": ("u32", layer.width), f"{key}_out": ("u32", layer.out)}
        return found

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_other_score_scale(config, 0)
