"""GGUF files of Ling 3."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf.bailingmoe2 import BAILING2_EXPERT_ATTRIBUTES
from sporelm.checkpoints.gguf.kimi_linear import KDA_CONSTANTS, KDA_GGUF_KEYS, KDA_GGUF_TENSORS, KdaGgufSchema
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.latent_keys import LATENT_GGUF_KEYS
from sporelm.checkpoints.latent_tensors import KV_B_GGUF_TENSORS, LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.swiglu_limits import read_swiglu_limits
from sporelm.checkpoints.tensor_table import StoredAs, with_alternatives
from sporelm.checkpoints.transforms import Divide, Squeeze
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.bailingmoe3 import BailingMoe3, BailingMoe3Config
from sporelm.models.config import ModelConfig

LOWER_BOUND_KEY: Final = Key("kda_lower_bound", "kda.gate_lower_bound", "f32", -100.0, 0.0, -5.0)
BAILING3_CONSTANTS: Final = {"rope_style": "adjacent", **V3_ROUTING}
LIMITS: Final = "swiglu_clamp_exp"
SHARED_LIMITS: Final = "swiglu_clamp_shexp"


def with_swiglu_limits(
    config: BailingMoe3Config, values: ConfigValues, keys: tuple[str, str], *, is_bounded: bool
) -> BailingMoe3Config:
    """Return the configuration with its limits, and with the width of the shared expert.

    keys         of the limits of experts, and of the shared expert
    is_bounded   the bound of decays in the file applies

    Raises UnsupportedModel for limits of layers without experts.
    """
    experts = config.experts
    assert experts is not None
    limits, shared_limits = (read_swiglu_limits(values, key, config.layers) for key in keys)
    if any((*limits[: experts.leading], *shared_limits[: experts.leading])):
        raise UnsupportedModel(f"{values.where}: limits of layers without experts are not supported")
    return replace(
        config,
        experts=replace(experts, shared_ffn=experts.shared_width),
        kda_lower_bound=config.kda_lower_bound * is_bounded,
        swiglu_limits=limits,
        shared_swiglu_limits=shared_limits,
    )


def _decay_sign(config: ModelConfig) -> float:
    """Return the divisor of decays: files store their magnitude; parameters are negative."""
    return -1.0


@register
class BailingMoe3Gguf(KdaGgufSchema):
    """`bailingmoe3`."""

    names = ("bailingmoe3",)
    architecture = BailingMoe3
    keys = gguf_keys(
        *LATENT_GGUF_KEYS,
        *KDA_GGUF_KEYS,
        LOWER_BOUND_KEY,
        *gguf_expert_keys(*BAILING2_EXPERT_ATTRIBUTES, "shared_ffn"),
        without=("window",),
    )
    constants = {**BAILING3_CONSTANTS, **KDA_CONSTANTS}
    tensors = {
        **DECODER_TENSORS,
        **with_alternatives(LATENT_GGUF_TENSORS, KV_B_GGUF_TENSORS),
        "layers.{}.attn_gate.weight": "blk.{}.attn_gate.weight",
        **expert_tensors(),
        **SHARED_EXPERT_TENSORS,
        **CHOICE_BIAS_TENSORS,
        **KDA_GGUF_TENSORS,
        "layers.{}.delta.decay": StoredAs("blk.{}.ssm_a", Squeeze((1,), to_four=True), Divide(_decay_sign)),
        "layers.{}.delta_alpha.weight": "blk.{}.ssm_f_a.weight",
        "layers.{}.delta_z.weight": "blk.{}.ssm_g_a.weight",
    }
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, BailingMoe3Config)
        is_bounded = gguf.values.flag("kda.safe_gate", True)
        return with_swiglu_limits(config, gguf.values, (LIMITS, SHARED_LIMITS), is_bounded=is_bounded)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, BailingMoe3Config)
        found: dict[str, MetadataEntry] = {"kda.safe_gate": ("bool", True)}
        for key, limits in ((LIMITS, config.swiglu_limits), (SHARED_LIMITS, config.shared_swiglu_limits)):
            if any(limits):
                found[key] = "[f32]", list(limits)
        return super().extra_metadata(config) | {f"bailingmoe3.{key}": entry for key, entry in found.items()}

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, BailingMoe3Config)
        return "" if config.kda_lower_bound else "its decays have no bound"
