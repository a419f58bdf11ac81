"""GGUF files of CodeGen 1."""

from typing import Final

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gptj import GptJGguf
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.config import ModelConfig

NUM_CORES: Final = 4  # of the TPUs that it was trained on, each with a quarter of the heads


@register
class CodeGenGguf(GptJGguf):
    """`codegen`: GPT-J (Nijkamp et al. 2022)."""

    names = ("codegen",)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        check_heads(config, gguf.where, "attention.head_count")
        return config


def check_heads(config: ModelConfig, where: str, key: str) -> None:
    """Raise UnsupportedModel unless all cores have the same number of heads. `key` has it in the file."""
    if config.heads % NUM_CORES:
        raise UnsupportedModel(f"{where}: {key} is {config.heads}; multiples of {NUM_CORES} are supported")
