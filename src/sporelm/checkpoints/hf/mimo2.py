"""Hugging Face folders of MiMo-V2-Flash."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys, read_dense_layers
from sporelm.checkpoints.gguf.mimo2 import (
    LOCAL_THETA_KEY,
    MIMO2_ROUTING,
    VALUE_SCALE_KEY,
    first_and_every_sixth_layer,
)
from sporelm.checkpoints.hf_layer_types import FULL, LOCAL_THETA, SLIDING, layer_types_json
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, choice_bias_tensors, expert_tensors
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.mimo2 import Mimo2, Mimo2Config
from sporelm.models.config import MAX_HEAD_DIM, ModelConfig

DEFAULT_SHARE: Final = 0.334  # of each head that is rotated
DEFAULT_WINDOW: Final = 129
DEFAULT_THETAS: Final = {"rope_theta": 5e6, "swa_rope_theta": 1e4}
# Published lists -> lists of transformers 5, and their values for 0 and 1.
LISTS: Final = {
    "hybrid_layer_pattern": ("layer_types", (FULL, SLIDING)),
    "moe_layer_freq": ("mlp_layer_types", ("dense", "sparse")),
}


def with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return the values with the keys of transformers 5 in place of the published ones, and the rotary base of layers
    with a window under a key of ours. Raises UnsupportedModel for other differences between types of layers."""
    found = dict(values.values)
    for old, (new, words) in LISTS.items():
        marks = found.get(old)
        if isinstance(marks, list) and found.get(new) is None and all(mark in (0, 1) for mark in marks):
            found[new] = [words[int(mark)] for mark in marks]
    for key in ("routed_scaling_factor", "attention_value_scale"):
        found[key] = 1.0 if found.get(key, 0) is None else found.get(key)
    if isinstance(size := found.get("sliding_window_size"), int):
        found["sliding_window"] = size + 1  # transformers counts previous positions only
    if (eps := found.get("layernorm_epsilon")) is not None:
        found["rms_norm_eps"] = eps
    ropes = found.get("rope_parameters") or _published_rope(found)
    full, local = (ropes.get(kind) if isinstance(ropes, Mapping) else None for kind in (FULL, SLIDING))
    if not isinstance(full, Mapping) or not isinstance(local, Mapping):
        return values.with_values(found)
    share, local_share = (rope.get(PARTIAL, DEFAULT_SHARE) for rope in (full, local))
    if share != local_share or local.get("rope_type", "default") != "default":
        what = f"rope_parameters {format_value(dict(ropes))}: types of layers may differ only in rope_theta"
        raise UnsupportedModel(f"{values.where}: {what}")
    found |= {"rope_theta": None, "rope_scaling": None, PARTIAL: None}
    found |= {LOCAL_THETA: local.get("rope_theta"), "rope_parameters": {**full, PARTIAL: share}}
    return values.with_values(found)


def _published_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of both types of layers, from the published keys."""
    given = {key: value for key, value in values.items() if value is not None}
    theta, local_theta = (given.get(key, default) for key, default in DEFAULT_THETAS.items())
    share = given.get(PARTIAL, DEFAULT_SHARE)
    return {
        FULL: {"rope_theta": theta, PARTIAL: share},
        SLIDING: {"rope_theta": local_theta, PARTIAL: share},
    }


@register
class MiMoV2FlashForCausalLM(HfSchema):
    """MiMo-V2-Flash. Layers with a window may differ only in numbers that GGUF files can hold."""

    model_type = "mimo_v2_flash"
    architecture = Mimo2
    keys = hf_keys(
        Key("attention_bias", "attention_bias", "bool"),
        Key("value_head_dim", "v_head_dim", "u32", 1, MAX_HEAD_DIM),
        VALUE_SCALE_KEY._replace(key="attention_value_scale"),
        LOCAL_THETA_KEY._replace(key=LOCAL_THETA),
        *hf_expert_keys(
            count="n_routed_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            scale="routed_scaling_factor",
            renormalize="norm_topk_prob",
            groups="n_group",
            top_groups="topk_group",
        ),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "sliding_window": "window",
        "norm_topk_prob": "experts.renormalize",
    }
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "sliding_window": 129,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "attention_value_scale": 0.707,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "norm_topk_prob": True,
    }
    constants = MIMO2_ROUTING
    supported = {
        "hidden_act": ("silu",),
        "n_shared_experts": (None,),
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
        "add_full_attention_sink_bias": (False,),
        "add_swa_attention_sink_bias": (True,),
    }
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(),
        **choice_bias_tensors(),
        "layers.{}.attn_sinks.weight": f"{ATTENTION}attention_sink_bias",
    }
    ignored_tensors = ("model.mtp.*",)
    allows_partial_rotary = True
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_and_every_sixth_layer(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Mimo2Config:
        values = with_transformers_keys(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Mimo2Config)
        self._check_windowed_layers(config, values)
        full_layers = first_and_every_sixth_layer(config.layers)
        if values.has("layer_types"):
            full_layers = read_full_layers(values, config.layers)
        window = read_window(values, "sliding_window", DEFAULT_WINDOW)
        config = replace(config, window=window, full_layers=full_layers)
        assert config.experts is not None
        dense = read_dense_layers(values, config.layers, frozenset({0}))
        return replace(config, experts=replace(config.experts, dense=dense))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        rope = {"rope_type": "default", PARTIAL: config.rotary / config.head_dim}
        thetas = {FULL: config.rope_theta, SLIDING: config.local_theta}
        return {
            **layer_types_json(config),
            "rope_parameters": {kind: {**rope, "rope_theta": theta} for kind, theta in thetas.items()},
            "rope_scaling": None,
        }

    def _check_windowed_layers(self, config: Mimo2Config, values: ConfigValues) -> None:
        """Raise UnsupportedModel unless layers with a window have twice as many KV heads as the others, and otherwise
        equal heads."""
        supported = {
            "head_dim": config.head_dim,
            "v_head_dim": config.value_head_dim,
            "num_attention_heads": config.heads,
            "num_key_value_heads": 2 * config.kv_heads,
        }
        for key, number in supported.items():
            if (given := values.get(f"swa_{key}")) not in (None, number):
                raise UnsupportedModel(
                    f"{values.where}: swa_{key} is {format_value(given)}; only {number} is supported"
                )
        if config.heads % (2 * config.kv_heads):
            what = f"{config.heads} heads are not a multiple of {2 * config.kv_heads}"
            keys = values.list_keys("num_attention_heads", "num_key_value_heads", "swa_num_key_value_heads")
            raise UnsupportedModel(f"{values.where}: {what}{keys}")
