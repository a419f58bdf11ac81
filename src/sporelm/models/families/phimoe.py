"""Phi-3.5-MoE: layer norms and biases, LongRoPE, and two experts chosen as SparseMixer weighs them."""

from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.phi3 import reworded as as_longrope
from sporelm.models.families.phi3 import windowed
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.experts import expert_fields, expert_names
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.weights.fields import shown
from sporelm.weights.names import COMMON, NORM_BIASES, changed, with_bias
from sporelm.weights.rope_scaling import LongRope

JITTER = 0.01  # of the router: GGUF files do not say it, and experts within twice as much are near
DEFAULTS: dict[str, Any] = {"num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2}
DEFAULTS |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
FLAGS = (("attention_bias", "attention_bias"), ("lm_head_bias", "output_bias"), ("sliding_window", "window"))
MAGNITUDES = ("short_mscale", "long_mscale")


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """By how much LongRoPE enlarges cosines and sines, in the words of others."""
    values = as_longrope(values)
    for key in ("rope_scaling", "rope_parameters"):
        given = values.get(key)
        if isinstance(given, dict) and any(name in given for name in MAGNITUDES):
            found = [given.get(name) for name in MAGNITUDES]
            if found[0] != found[1]:
                raise UnsupportedModel(
                    f"config.json: short_mscale and long_mscale are {shown(found)}; they must be equal"
                )
            inner = {name: value for name, value in given.items() if name not in MAGNITUDES}
            values = {**values, key: {**inner, "attention_factor": found[0]}}
    return values


def _words(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if not isinstance(scaling, LongRope):
        return {}
    found: dict[str, Any] = {"rope_type": "longrope", "short_factor": [*scaling.short], "long_factor": [*scaling.long]}
    found |= dict.fromkeys(MAGNITUDES, scaling.attention) | {"rope_theta": config.rope_theta}
    return {"rope_scaling": {**found, "original_max_position_embeddings": scaling.original}, "rope_parameters": None}


@architecture(
    Family(
        "phimoe",
        tuple(HfClass(name, "phimoe", DEFAULTS, FLAGS) for name in ("PhimoeForCausalLM", "PhiMoEForCausalLM")),
        fields(
            *ATTENTION_BIAS,
            Field("output_bias", "", "bool", "lm_head_bias", weight="output.bias"),
            *expert_fields(count="num_local_experts", used="num_experts_per_tok"),
        ),
        changed(
            COMMON,
            *NORM_BIASES,
            *with_bias("output", "output", "lm_head"),
            *expert_names("model.layers.{}.block_sparse_moe.", ("w1", "w3", "w2")),
        ),
        fixed={"experts.scores": "softmax_of_near", "experts.near": 2 * JITTER},
        only={"hidden_act": ("silu",), "num_experts_per_tok": (2,), "router_jitter_noise": (JITTER,)},
        finish=windowed,
        reworded=_reworded,
        words=_words,
        windowless=True,
        modules=((".block_sparse_moe.gate.", ".mlp.router."),),
    )
)
class PhiMoe(Decoder):
    """The Llama layer with layer norms and a mixture (Abdin et al. 2024; SparseMixer, Liu et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, norm=self.norms)
