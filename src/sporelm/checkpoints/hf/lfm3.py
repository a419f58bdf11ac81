"""Hugging Face folders of LFM3."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf.lfm2 import LFM2_HF_KEYS, LFM2_TENSORS
from sporelm.checkpoints.hf_rope_by_type import (
    FULL,
    LOCAL_THETA_KEY,
    SLIDING,
    flatten_rope,
    read_proportion,
    rope_by_type_json,
)
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, HEAD_NORM_TENSORS, LAYER
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.lfm2_layers import LAYER_TYPES, list_layer_types, with_window_or_conv_layers
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.lfm3 import Lfm3, Lfm3Config
from sporelm.models.config import ModelConfig

DEFAULT_ROPE: Final = {
    SLIDING: {"rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}


@register
class Lfm3ForCausalLM(HfSchema):
    """LFM3."""

    model_type = "lfm3"
    architecture = Lfm3
    keys = hf_keys(
        *LFM2_HF_KEYS,
        *HF_ATTENTION_BIAS,
        Key("has_attention_gate", "use_attention_gate", "bool", default=True),
        Key("has_post_norms", "use_sandwich_norm", "bool", default=True),
        Key("local_theta", LOCAL_THETA_KEY, "f32", 1.0, MAX_THETA, 10000.0),
    )
    class_keys = {
        "attention_bias": "attention_bias",
        "sliding_window": "window",
        "use_attention_gate": "has_attention_gate",
        "use_sandwich_norm": "has_post_norms",
    }
    defaults = {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "conv_L_cache": 7,
        "sliding_window": 256,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128000,
    }
    supported = {"conv_bias": (False,)}
    tensors = {
        **LFM2_TENSORS,
        **HEAD_NORM_TENSORS,
        "layers.{}.attn_o.weight": f"{ATTENTION}o_proj.weight",
        "layers.{}.attn_gate.weight": f"{ATTENTION}gate_proj.weight",
        "layers.{}.attn_post_norm.weight": f"{LAYER}post_operator_norm.weight",
        "layers.{}.ffn_post_norm.weight": f"{LAYER}post_ffn_norm.weight",
    }
    resaved_names = ((".self_attn.gate_proj.", ".self_attn.g_proj."),)
    has_window_pattern = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = values.with_changes(flatten_rope(values.get("rope_parameters") or DEFAULT_ROPE))
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Lfm3Config)
        config = with_window_or_conv_layers(config, values)
        windowed = frozenset(layer for layer, kind in enumerate(list_layer_types(config, values)) if kind == SLIDING)
        window = read_window(values, "sliding_window", 256)
        if window is None and windowed:
            what = f"layers are {SLIDING!r}, but sliding_window is null"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported")
        return replace(
            config,
            window=window if windowed else None,
            full_layers=frozenset(range(config.layers)) - windowed,
            rope_scaling=read_proportion(config, values),
        )

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Lfm3Config)
        kinds = [
            LAYER_TYPES[layer in config.attention_layers] if config.window_of(layer) is None else SLIDING
            for layer in range(config.layers)
        ]
        return {"layer_types": kinds, **rope_by_type_json(config)}
