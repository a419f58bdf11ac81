"""GGUF files of Qwen3 and of its rerankers."""

from dataclasses import replace

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import count_rows
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.qwen3 import Qwen3
from sporelm.models.config import ModelConfig


@register
class Qwen3Gguf(GgufSchema):
    """`qwen3`. Files of rerankers have the rows of "yes" and "no" of the output, by llama.cpp's converter."""

    names = ("qwen3",)
    architecture = Qwen3
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS | {"classifier.weight": "cls.output.weight"}
    llama_cpp_has_window = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        labels = count_rows(gguf.shapes, "cls.output.weight")
        if labels not in (0, 2):
            raise UnsupportedModel(f"{config.name}: a head of {labels} rows is not supported; one of 'yes' and 'no' is")
        return replace(config, labels=labels)
