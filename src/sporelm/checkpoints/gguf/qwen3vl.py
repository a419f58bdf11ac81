"""GGUF files of Qwen3-VL: its text model."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.qwen2vl import SECTIONS_KEY, mrope_metadata, with_mrope_section
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig
from sporelm.models.architectures.qwen3vl import Qwen3VL
from sporelm.models.config import MAX_LAYERS, ModelConfig

DEEPSTACK_KEY: Final = Key("deepstack_layers", "n_deepstack_layers", "u32", 0, MAX_LAYERS, 0)
DEFAULT_SECTION: Final = (24, 20, 20)


@register
class Qwen3VLGguf(GgufSchema):
    """`qwen3vl`."""

    names: tuple[str, ...] = ("qwen3vl",)
    architecture = Qwen3VL
    keys = gguf_keys(DEEPSTACK_KEY)
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS
    llama_cpp_has_window = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Qwen2VLConfig:
        config = super().config_from_metadata(gguf, values)
        return with_mrope_section(config, gguf.values, SECTIONS_KEY, DEFAULT_SECTION)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return mrope_metadata(config, self.names[0])
