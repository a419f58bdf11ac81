"""GGUF files of Qwen2-VL and Qwen2.5-VL: their text model."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError
from sporelm.models.architectures.qwen2vl import Qwen2VL, Qwen2VLConfig
from sporelm.models.config import ModelConfig

SECTIONS_KEY: Final = "rope.dimension_sections"  # the fourth number is 0
DEFAULT_SECTION: Final = (16, 24, 24)


def with_mrope_section(
    config: ModelConfig, values: ConfigValues, key: str, default: tuple[int, int, int]
) -> Qwen2VLConfig:
    """Return the configuration with the M-RoPE sections under a key.

    default   used if the key is missing and the default fits

    Raises ModelFileError for sections that are not pairs of a head.
    """
    assert isinstance(config, Qwen2VLConfig)
    half = config.head_dim // 2
    given: Any = values.get(key)
    section = given.tolist() if hasattr(given, "tolist") else given
    section = list(default) if section is None and sum(default) == half else section
    if not isinstance(section, list | tuple) or len(section) not in (3, 4) or any(section[3:]):
        raise ModelFileError(
            f"{values.where}: {key} is {format_value(section)}; it must be a list of three numbers of pairs"
        )
    if any(type(count) is not int or count < 0 for count in section) or sum(section) != half:
        raise ModelFileError(f"{values.where}: {key} is {format_value(section)}; it must be integers with sum {half}")
    return replace(config, mrope_section=tuple(section[:3]))


def mrope_metadata(config: ModelConfig, name: str) -> dict[str, MetadataEntry]:
    """Return the M-RoPE sections for GGUF metadata of an architecture."""
    assert isinstance(config, Qwen2VLConfig)
    return {f"{name}.{SECTIONS_KEY}": ("[i32]", [*config.mrope_section, 0])}


@register
class Qwen2VLGguf(GgufSchema):
    """`qwen2vl`."""

    names = ("qwen2vl",)
    architecture = Qwen2VL
    constants = {"attention_bias": True}
    tensors = DECODER_TENSORS
    llama_cpp_has_window = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Qwen2VLConfig:
        config = super().config_from_metadata(gguf, values)
        return with_mrope_section(config, gguf.values, SECTIONS_KEY, DEFAULT_SECTION)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        return mrope_metadata(config, self.names[0])
