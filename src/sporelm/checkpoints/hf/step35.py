"""Hugging Face folders of Step 3.5 Flash."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys, read_dense_layers
from sporelm.checkpoints.gguf.step35 import STEP35_ROUTING, check_rotary
from sporelm.checkpoints.hf.gemma import NORMS_LESS_ONE, stored_less_one
from sporelm.checkpoints.hf_layer_types import FULL, SLIDING, layer_types_json, with_rope_of_types
from sporelm.checkpoints.hf_schema import PER_LAYER_CONFIG, HfSchema
from sporelm.checkpoints.hf_tensors import (
    ATTENTION,
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    choice_bias_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.swiglu_limits import read_swiglu_limits
from sporelm.checkpoints.window_head_keys import LOCAL_HEADS, with_hf_windows, with_window_heads
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.step35 import Step35, Step35Config
from sporelm.models.config import MAX_LAYERS, ModelConfig

DEFAULT_LEADING: Final = 3  # leading dense layers
LIMITS: Final = "swiglu_limits"
SHARED_LIMITS: Final = "swiglu_limits_shared"
HEADS: Final = "num_attention_heads"
SLIDING_SETTING: Final = "attention_other_setting"  # of layers with a window
EXPERT_LAYERS: Final = "moe_layers_enum"
LISTS: Final = ("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors")
# Published keys -> keys of transformers.
PUBLISHED_KEYS: Final = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}


def with_transformers_keys(values: ConfigValues) -> ConfigValues:
    """Return the values with the keys of transformers in place of the published ones, without the entries of MTP
    layers, and with the numbers of layers with a window under keys of ours."""
    found = dict(values.values)
    found |= {new: found[old] for old, new in PUBLISHED_KEYS.items() if found.get(old) is not None}
    layers = found.get("num_hidden_layers")
    count = min(layers, MAX_LAYERS) if isinstance(layers, int) else 0
    found |= {key: found[key][:count] for key in LISTS if isinstance(found.get(key), list)}
    if not isinstance(found.get("layer_types"), list):
        found["layer_types"] = [FULL] * count
    if (given := found.get(EXPERT_LAYERS)) is not None and found.get("mlp_layer_types") is None:
        items = given.split(",") if isinstance(given, str) else given
        numbers = {str(item).strip() for item in items} if isinstance(items, list) else set()
        found["mlp_layer_types"] = ["sparse" if str(layer) in numbers else "dense" for layer in range(count)]
    heads = _read_local_heads(found, values.where)
    values = with_rope_of_types(values.with_values(found | heads), _read_ropes(found, values.where))
    return values.with_changes({"rope_theta": None, "rope_scaling": None})


def _read_local_heads(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the query heads of layers with a window. Raises UnsupportedModel for other differences."""
    setting, records = values.get(SLIDING_SETTING) or {}, values.get(PER_LAYER_CONFIG)
    shared = {"num_attention_groups": values.get("num_key_value_heads"), "head_dim": values.get("head_dim")}
    if not isinstance(setting, Mapping) or any(setting.get(key, number) != number for key, number in shared.items()):
        raise UnsupportedModel(f"{where}: {SLIDING_SETTING} {format_value(setting)}: only {HEADS} may differ")
    if values.get("query_pre_attn_scalar") not in (None, shared["head_dim"]):
        raise UnsupportedModel(f"{where}: query_pre_attn_scalar is not head_dim, which is not supported")
    heads = values.get("num_sliding_attention_heads") or setting.get(HEADS) or values.get(HEADS)
    if isinstance(records, Mapping) and all(record == {HEADS: heads} for record in records.values()):
        records = None  # transformers writes one for each layer with a window
    return {LOCAL_HEADS: heads, PER_LAYER_CONFIG: records}


def _read_ropes(values: Mapping[str, Any], where: str) -> Any:
    """Return the rotary parameters of both types of layers; only those of layers without a window are scaled."""
    if given := values.get("rope_parameters"):
        return given
    ropes: dict[str, dict[str, Any]] = {FULL: {"rope_theta": 10000.0}, SLIDING: {}}
    types = values["layer_types"]
    for key, rope_key in (("rope_theta", "rope_theta"), ("partial_rotary_factors", PARTIAL)):
        given = values.get(key)
        numbers = given if isinstance(given, list) else [given] * len(types)
        for kind, rope in ropes.items():
            own = [number for each, number in zip(types, numbers, strict=False) if each == kind]
            if any(number != own[0] for number in own):
                raise UnsupportedModel(
                    f"{where}: {key} {format_value(numbers)}: layers of one type must have equal values"
                )
            if own and own[0] is not None:
                rope[rope_key] = own[0]
    scaling = values.get("rope_scaling") or {}
    return {**ropes, FULL: {**ropes[FULL], **scaling}} if isinstance(scaling, Mapping) else scaling


def with_leading_or_dense_layers(config: Step35Config, values: ConfigValues) -> Step35Config:
    """Return the configuration without experts in the dense layers of `mlp_layer_types`."""
    if config.experts is None:
        return config
    dense = read_dense_layers(values, config.layers, frozenset(range(min(DEFAULT_LEADING, config.layers))))
    leading = len(dense) if dense == {*range(len(dense))} else 0
    experts = replace(config.experts, leading=leading, dense=frozenset() if leading else dense)
    return replace(config, experts=experts)


@register
class Step3p5ForCausalLM(HfSchema):
    """Step 3.5 Flash. Stored weights of norms are one less."""

    model_type = "step3p5"
    architecture = Step35
    keys = hf_keys(
        *hf_expert_keys(
            count="n_routed_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            shared_ffn="share_expert_dim",
            scale="moe_router_scaling_factor",
        )
    )
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128000,
    }
    constants = STEP35_ROUTING
    supported = {
        "hidden_act": ("silu", "swigluoai"),
        "moe_router_activation": ("sigmoid",),
        "use_head_wise_attn_gate": (True,),
        "zero_centered": (True,),
        "use_moe_router_bias": (True,),
        "norm_expert_weight": (True,),
        "sink": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "use_bidirectional_attention": (False,),
        "moe_every_n_layer": (1,),
        "yarn_only_types": (["full_attention"],),
        "use_rope_layers": ([],),
        "att_impl_type": ("GQA",),
        "use_qk_norm": (True,),
    }
    tensors = {
        **DECODER_TENSORS,
        **NORMS_LESS_ONE,
        **stored_less_one(HEAD_NORM_TENSORS),
        **shared_expert_tensors(f"{LAYER}share_expert."),
        **choice_bias_tensors(f"{LAYER}moe.router_bias"),
        "layers.{}.attn_gate.weight": f"{ATTENTION}g_proj.weight",
        "layers.{}.ffn_gate_inp.weight": f"{LAYER}moe.gate.weight",
        **{f"layers.{{}}.ffn_{name}_exps.weight": f"{LAYER}moe.{name}_proj.weight" for name in ("gate", "up", "down")},
    }
    module_names = ((".share_expert.", ".mlp.shared_experts."),)
    allows_partial_rotary = True
    has_window_pattern = True
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Step35Config:
        values = with_transformers_keys(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Step35Config)
        config = with_window_heads(with_hf_windows(config, values), values)
        config = with_leading_or_dense_layers(config, values)
        check_rotary(config, values.where)
        return replace(
            config,
            swiglu_limits=read_swiglu_limits(values, LIMITS, config.layers),
            shared_swiglu_limits=read_swiglu_limits(values, SHARED_LIMITS, config.layers),
        )

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Step35Config)
        windowed = [config.window_of(layer) is not None for layer in range(config.layers)]
        rotary = {True: config.local_rotary or config.rotary, False: config.rotary}
        return {
            **layer_types_json(config),
            "num_sliding_attention_heads": config.local_heads,
            "rope_theta": [config.local_theta if each else config.rope_theta for each in windowed],
            "partial_rotary_factors": [rotary[each] / config.head_dim for each in windowed],
            "sliding_window": config.window,
            "rope_parameters": None,
            LIMITS: list(config.swiglu_limits),
            SHARED_LIMITS: list(config.shared_swiglu_limits),
        }
