"""The base classes of the schemas of encoders."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import count_rows, label_json, label_names, read_head_labels
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.pooling import GGUF_POOLINGS
from sporelm.models.config import ModelConfig
from sporelm.models.encoder_config import EncoderConfig


class EncoderGgufSchema(GgufSchema):
    """GGUF files of encoders. The tensors determine the number of token types and the layers of the head."""

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        return replace(
            as_encoder_config(super().config_from_metadata(gguf, values)),
            token_types=count_rows(gguf.shapes, "token_types.weight"),
            head_labels=count_rows(gguf.shapes, "cls.output.weight"),
            has_head_dense="cls.weight" in gguf.shapes,
        )

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        config, prefix = as_encoder_config(config), self.name_for(config)
        found: dict[str, MetadataEntry] = {
            f"{prefix}.attention.causal": ("bool", False),
            f"{prefix}.context_length": ("u32", config.context_length),
        }
        if config.token_types:
            found["tokenizer.ggml.token_type_count"] = "u32", config.token_types
        if config.head_labels:
            found[f"{prefix}.pooling_type"] = "u32", GGUF_POOLINGS.index("rank")
            found[f"{prefix}.classifier.output_labels"] = "[str]", label_names(config.head_labels)
        return found


class EncoderHfSchema(HfSchema):
    """Folders of encoders.

    has_head   the class has a classification head
    """

    has_head: bool = False

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        config = as_encoder_config(super().config_from_json(values, dtype))
        if not self.has_head:
            return config
        return replace(config, head_labels=read_head_labels(values), has_head_dense=True)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return label_json(as_encoder_config(config).head_labels)


def as_encoder_config(config: ModelConfig) -> EncoderConfig:
    """Return the configuration of an encoder, with its type narrowed."""
    assert isinstance(config, EncoderConfig)
    return config


def without_equal_embedding_width(config: EncoderConfig) -> EncoderConfig:
    """Return the configuration without an embedding width that equals the model's: no projection is needed then."""
    return replace(config, embedding_width=0) if config.embedding_width == config.width else config
