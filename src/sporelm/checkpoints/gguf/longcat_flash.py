"""GGUF files of LongCat-Flash."""

from dataclasses import replace
from typing import Final, TypeVar

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS_TENSORS, DECODER_TENSORS, EMBEDDING_TENSORS, expert_tensors
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS, LatentGgufSchema, get_latent
from sporelm.checkpoints.latent_tensors import LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, alternatives
from sporelm.checkpoints.transforms import Divide
from sporelm.models.architectures.longcat_flash import HALVES, LongcatFlash
from sporelm.models.config import ModelConfig
from sporelm.models.latent_config import LatentConfig
from sporelm.ops.expert_routing import MAX_EXPERTS

LONGCAT_CONSTANTS: Final = {"rope_style": "adjacent", "experts.choice_bias": True}
Config = TypeVar("Config", bound=ModelConfig)


def latent_norm_factor(config: LatentConfig) -> float:
    """Return the divisor of the norm of latents: the model multiplies the latents by its reciprocal."""
    factor: float = (config.latent.kv_lora_rank / config.width) ** 0.5
    return factor


def with_scaled_queries(config: Config) -> Config:
    """Return the configuration with the scale of scores: queries are multiplied by the square root of the ratio of the
    model width to the latent width."""
    factor = (config.width / (get_latent(config).q_lora_rank or config.width)) ** 0.5
    return replace(config, scales=replace(config.scales, attention=config.attention_scale * factor))


def half_tensors(tensors: TensorTable, number: int) -> TensorTable:
    """Return the weights of one half of a layer under the half's parameter names, with a scaled norm of latents."""
    found: TensorTable = {}
    for parameter, row in tensors.items():
        if not parameter.startswith("layers.") or not parameter.endswith(".weight"):
            continue
        stored = alternatives(row)[0]
        if parameter.endswith("kv_a_norm.weight"):
            stored = StoredAs(stored.name, *stored.transforms, Divide(latent_norm_factor))
        found[parameter.replace("layers.{}.", f"layers.{{}}.{HALVES[number]}.")] = stored
    return found


def _gguf_half_tensors(number: int) -> TensorTable:
    """Return the weights of one half of a layer; in the second half stored names end in 2."""
    found = half_tensors(DECODER_TENSORS | LATENT_GGUF_TENSORS, number)
    end = "_2.weight" if number else ".weight"
    return {
        parameter: StoredAs(stored.name.replace(".weight", end), *stored.transforms)
        for parameter, row in found.items()
        for stored in alternatives(row)
    }


@register
class LongcatFlashGguf(LatentGgufSchema):
    """`longcat-flash`."""

    names = ("longcat-flash",)
    architecture = LongcatFlash
    keys = gguf_keys(
        *LATENT_GGUF_KEYS,
        Key("layers", "block_count", "u32"),
        Key("ffn", "feed_forward_length", "u32"),
        Key("num_zero_experts", "expert_idle_count", "u32", 0, MAX_EXPERTS, 0),
        *gguf_expert_keys("count", "used", "ffn", "scale"),
        without=("window",),
    )
    constants = LONGCAT_CONSTANTS
    tensors = {
        **EMBEDDING_TENSORS,
        **_gguf_half_tensors(0),
        **_gguf_half_tensors(1),
        **expert_tensors(),
        **CHOICE_BIAS_TENSORS,
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_scaled_queries(super().config_from_metadata(gguf, values))
