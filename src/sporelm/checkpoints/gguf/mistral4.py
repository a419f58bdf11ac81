"""GGUF files of Mistral Small 4."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_GGUF_KEYS
from sporelm.checkpoints.gguf.mistral3 import TEMPERATURE_KEY, check_temperature
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, SHARED_EXPERT_TENSORS, expert_tensors
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema
from sporelm.checkpoints.latent_tensors import KV_B_GGUF_TENSORS, LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import with_alternatives
from sporelm.models.architectures.mistral4 import Mistral4, Mistral4Config
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

MISTRAL4_CONSTANTS: Final = {
    "rope_style": "adjacent",
    "experts.group_score": "sum_of_two",
    "experts.epsilon": 1e-20,
}
TEMPERATURE_LENGTH: Final = "attention.temperature_length"


@register
class Mistral4Gguf(LatentGgufSchema):
    """`mistral4`."""

    names = ("mistral4",)
    architecture = Mistral4
    keys = gguf_keys(*LATENT_GGUF_KEYS, *V3_GGUF_KEYS, TEMPERATURE_KEY, without=("window",))
    constants = MISTRAL4_CONSTANTS
    tensors = {
        **DECODER_TENSORS,
        **with_alternatives(LATENT_GGUF_TENSORS, KV_B_GGUF_TENSORS),
        **expert_tensors(has_fused=True),
        **SHARED_EXPERT_TENSORS,
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Mistral4Config)
        check_temperature(config, config.temperature_scale, gguf.where)
        return config

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        found, scaling = super().extra_metadata(config), config.rope_scaling
        if isinstance(scaling, YarnScaling):
            found[f"mistral4.{TEMPERATURE_LENGTH}"] = "u32", scaling.original
        return found
