"""Hugging Face folders of Phi-3.5-MoE."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.phimoe import PHIMOE_ROUTING, ROUTER_JITTER
from sporelm.checkpoints.hf.phi3 import with_longrope
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS, expert_tensors
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.phimoe import PhiMoe
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import LongRopeScaling

MAGNITUDE_KEYS: Final = ("short_mscale", "long_mscale")


@register
class PhimoeForCausalLM(HfSchema):
    """Phi-3.5-MoE: two experts, selected by SparseMixer."""

    model_type = "phimoe"
    architecture = PhiMoe
    keys = hf_keys(
        *HF_ATTENTION_BIAS,
        Key("output_bias", "lm_head_bias", "bool"),
        *hf_expert_keys(count="num_local_experts", used="num_experts_per_tok"),
    )
    class_keys = {"attention_bias": "attention_bias", "lm_head_bias": "output_bias", "sliding_window": "window"}
    defaults = {
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    }
    constants = PHIMOE_ROUTING
    supported = {"hidden_act": ("silu",), "num_experts_per_tok": (2,), "router_jitter_noise": (ROUTER_JITTER,)}
    tensors = {
        **DECODER_TENSORS,
        **NORM_BIAS_TENSORS,
        **{f"output.{part}": f"lm_head.{part}" for part in ("weight", "bias")},
        **expert_tensors("model.layers.{}.block_sparse_moe.", ("w1", "w3", "w2")),
    }
    module_names = ((".block_sparse_moe.gate.", ".mlp.router."),)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(_with_attention_factor(with_longrope(values)), dtype)
        return replace(config, window=read_window(values, "sliding_window", None))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        scaling = config.rope_scaling
        if not isinstance(scaling, LongRopeScaling):
            return {}
        found: dict[str, Any] = {
            "rope_type": "longrope",
            "short_factor": [*scaling.short],
            "long_factor": [*scaling.long],
            **dict.fromkeys(MAGNITUDE_KEYS, scaling.attention),
            "rope_theta": config.rope_theta,
            "original_max_position_embeddings": scaling.original,
        }
        return {"rope_scaling": found, "rope_parameters": None}


@register
class PhiMoEForCausalLM(PhimoeForCausalLM):
    """The class name in the first folders."""


def _with_attention_factor(values: ConfigValues) -> ConfigValues:
    """Return the values with the magnitude of LongRoPE's cosines and sines as `attention_factor`."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = values.get(key)
        if isinstance(rope, dict) and any(name in rope for name in MAGNITUDE_KEYS):
            short, long = found = [rope.get(name) for name in MAGNITUDE_KEYS]
            if short != long:
                what = f"short_mscale and long_mscale are {format_value(found)}; they must be equal"
                raise UnsupportedModel(f"config.json: {what}")
            rest = {name: value for name, value in rope.items() if name not in MAGNITUDE_KEYS}
            values = values.with_changes({key: {**rest, "attention_factor": short}})
    return values
