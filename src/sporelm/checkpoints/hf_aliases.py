"""Aliases of config.json's keys: the `attribute_map` of transformers' configuration classes.

transformers accepts either name. If a file has both, the alias wins, because it is set last.
"""

from collections.abc import Mapping
from typing import Any

_LAYERS = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
_GPT2 = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", **_LAYERS}
_T5 = {"head_dim": "d_kv", "hidden_size": "d_model", "num_attention_heads": "num_heads"}
_T5 |= {"num_hidden_layers": "num_layers"}
_HEADS = {"num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
_ROUTED = {"num_local_experts": "n_routed_experts"}
_LOCAL = {"num_local_experts": "num_experts"}
_EXPERTS = {"num_experts": "num_local_experts"}
_KINDS = {"layer_types": "layers_block_type"}
_BAILING = {
    "model_max_length": "max_position_embeddings",
    "num_expert_group": "n_group",
    "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob",
    "num_experts_per_token": "num_experts_per_tok",
    "num_experts": "num_local_experts",
}
# model_type -> alias -> field of the configuration class.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "axk1": _ROUTED,
    "axk2": _ROUTED,
    "bailing_hybrid": _BAILING,
    "bamba": _KINDS,
    "bloom": _LAYERS,
    "codegen": _GPT2,
    "dbrx": {"hidden_size": "d_model", "max_position_embeddings": "max_seq_len", **_HEADS},
    "deepseek_v2": {"num_experts": "n_routed_experts"},
    "deepseek_v3": _ROUTED,
    "deepseek_v32": _ROUTED,
    "distilbert": {"hidden_size": "dim", **_HEADS},
    "dots1": _ROUTED,
    "ernie4_5_moe": {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    "falcon_h1": _KINDS,
    "flex_olmo": _LOCAL,
    "glm4_moe": _ROUTED,
    "glm4_moe_lite": {"head_dim": "qk_rope_head_dim", **_ROUTED},
    "glm_moe_dsa": _ROUTED,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    "gpt_oss": _EXPERTS,
    "gptj": _GPT2,
    "granitemoehybrid": {"layers_block_type": "layer_types"},
    "hunyuan_v1_moe": {"num_experts_per_tok": "moe_topk", **_LOCAL},
    "hy_v3": _LOCAL,
    "jamba": _LOCAL,
    "jetmoe": {"head_dim": "kv_channels"},
    "kimi_linear": _BAILING,
    "kolibri1": _LOCAL,
    "lfm3": {"rms_norm_eps": "norm_eps"},
    "longcat_flash": {
        "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size",
        "num_experts_per_tok": "moe_topk",
        **_ROUTED,
    },
    "mellum": _LOCAL,
    "mimo_v2_flash": _ROUTED,
    "minimax": _EXPERTS,
    "minimax_m2": _EXPERTS,
    "mistral4": _ROUTED,
    "mixtral": _EXPERTS,
    "mpt": {"hidden_size": "d_model", **_HEADS},
    "mt5": _T5,
    "nemotron_h": {**_KINDS, **_ROUTED},
    "olmoe": _LOCAL,
    "openai-gpt": _GPT2,
    "qwen3_moe": _LOCAL,
    "qwen3_vl_moe": _LOCAL,
    "recurrent_gemma": {**_KINDS, "sliding_window": "attention_window_size"},
    "solar_open": _ROUTED,
    "step3p5": {
        "moe_num_experts": "n_routed_experts",
        "moe_top_k": "num_experts_per_tok",
        "num_attention_groups": "num_key_value_heads",
        "share_expert_dims": "share_expert_dim",
    },
    "t5": _T5,
    "xglm": {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"},
    "zamba2": {"head_dim": "attention_head_dim", **_KINDS},
}


def with_both_names(values: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return a config.json, `text_config` included, with each aliased value under both names; a null alias is
    ignored."""
    found = dict(values)
    for alias, key in ALIASES.get(model_type, {}).items():
        if values.get(alias) is not None:
            found[key] = values[alias]
        elif key in values:
            found[alias] = values[key]
    if isinstance(text := values.get("text_config"), Mapping):
        found["text_config"] = with_both_names(text, model_type)
    return found
